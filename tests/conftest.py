"""Rules for the whole suite, what may be skipped and where; and the stores that tests of several folders use."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import find_browser
from tests.support.files import write_images, write_labels

if TYPE_CHECKING:
    from tests.support.buckets import GCSServer
    from tests.support.servers import S3Server

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs under test: a suite started in a shell's background inherits it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the machine cannot run, except where a skip would hide a fault."""
    has_ffcv = importlib.util.find_spec("ffcv") is not None
    for item in items:
        if item.get_closest_marker("gpu") and os.environ.get("FAIL_WITHOUT_CUDA") != "1" and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device (set FAIL_WITHOUT_CUDA=1 to fail instead)"))
        if item.get_closest_marker("ffcv") and not has_ffcv and not IN_CI:
            item.add_marker(pytest.mark.skip(reason="the real ffcv is not installed (CI fails here)"))
        if item.get_closest_marker("browser") and find_browser() is None and not IN_CI:
            item.add_marker(pytest.mark.skip(reason="there is no Chromium (CI fails here)"))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collections of the tests: they walk it in vain."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Give a server that speaks S3, where the environment says that S3 is."""
    from tests.support.servers import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCSServer]:
    """Give a server that speaks as Google's storage does, where the environment says that it is."""
    from tests.support.buckets import gcs_server

    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def labels_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels") / "labels.beton", 100)


@pytest.fixture(scope="session")
def photos_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photos.beton"
    write_images(path, 61, class_names=["cat", "dog"])
    return path


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
