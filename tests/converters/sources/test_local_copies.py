"""A temporary copy is read by the machine's other processes, and one that cannot see it says so."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converters.sources.arrays import Arrays
from converters.sources.local_copies import LocalCopy
from dataloading import UsageError

READER = """
import pickle, sys
copy = pickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(open(copy.path, "rb").read())
"""


def test_another_process_of_the_machine_reads_it(tmp_path: Path) -> None:
    copy = LocalCopy("some rows", "keep them")
    copy.file.write(b"abc")
    copy.file.flush()
    done = subprocess.run([sys.executable, "-c", READER], input=pickle.dumps(copy), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"abc"), done.stderr


def test_it_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    copy = LocalCopy("some rows", "keep them")
    copy.file.write(b"abc")
    assert not list(tmp_path.iterdir())


def test_where_its_path_is_missing_or_another_file_the_copy_is_refused_with_what_to_do() -> None:
    copy = LocalCopy("some rows", "keep them in a shared folder")
    data = pickle.dumps(copy)
    number = copy.file.fileno()
    copy.file.close()
    with pytest.raises(UsageError, match=r"the copy of some rows is .* cannot see: keep them in a shared folder"):
        pickle.loads(data)
    # What is at its path on another machine is somebody else's.
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, number)
    try:
        with pytest.raises(UsageError, match="cannot see"):
            pickle.loads(data)
    finally:
        os.close(number)
        if other != number:
            os.close(other)


def test_a_source_that_needs_one_names_its_array_and_a_way_without(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, image=np.zeros((3, 4, 4, 3), np.uint8))
    source = Arrays([str(path)])
    assert len(pickle.loads(pickle.dumps(source))) == 3
    data = pickle.dumps(source)
    del source  # and with it the temporary file
    with pytest.raises(UsageError, match=r"unpacked array 'image.npy' of .*a.npz.*numpy.savez"):
        pickle.loads(data)
