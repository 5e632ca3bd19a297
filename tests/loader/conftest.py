"""Files that several tests of the loader read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.files import write_images, write_labels


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests have as many workers as they name, on a machine with fewer cores too."""
    monkeypatch.setattr("dataloading.loader.num_cores", lambda: 64)


@pytest.fixture(scope="session")
def labels_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels") / "labels.beton", 100)


@pytest.fixture(scope="session")
def photos_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photos.beton"
    write_images(path, 61, class_names=["cat", "dog"])
    return path
