"""What an interrupted conversion compares before it is gone on with: options, samples' names, files' sizes and ages."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from converters import ImageFolder, ImagePolicy, Options, convert
from converters.engine.fingerprint import changed_files, file_stamps, stamp_of, stamps_of
from converters.sources.table import Table
from dataloading import UsageError
from tests.converters.engine.test_resume import (
    Blocks,
    die_at_write,
    in_a_child,
    interrupted,
    save_in_turn,
    write,
)
from tests.converters.making import class_folders


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 3}, "seed was 0, is 3 now"),
        ({"limit": 50}, "limit was null, is 50 now"),
        ({"page_size": 1 << 24}, "page_size was null, is 16777216 now"),
        ({"dataset": Blocks(61)}, "num_samples was 60, is 61 now"),
    ],
)
def test_other_options_or_another_number_of_samples_are_refused_with_both_values(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = tmp_path / "o.beton"
    interrupted(path)
    with pytest.raises(UsageError, match=message):
        write(path, resume=True, **changed)
    assert write(path, resume=True).num_resumed > 0


def folder_source(tmp_path: Path) -> ImageFolder:
    return ImageFolder(class_folders(tmp_path / "src", {"ant": 9, "bee": 9}))


def from_folder(source: ImageFolder, path: Path, **options: Any) -> Any:
    return convert(source, path, policy=ImagePolicy(), options=Options(checkpoint_seconds=1e-9, **options))


def test_a_file_that_was_converted_and_then_changed_is_refused_and_one_not_yet_read_is_not(tmp_path: Path) -> None:
    source, path = folder_source(tmp_path), tmp_path / "o.beton"
    first, last = Path(source.task(0)[0]), Path(source.task(17)[0])

    def act() -> None:
        save_in_turn()
        die_at_write(25, 1)
        from_folder(source, path)

    assert in_a_child(act) == -signal.SIGKILL
    shutil.copyfile(source.task(16)[0], last)
    before = first.stat()
    data = first.read_bytes()
    first.write_bytes(data[:-1])
    with pytest.raises(UsageError, match=r"source has changed since .* from sample 0 \(ant/00.jpg\)"):
        from_folder(source, path, resume=True)
    first.write_bytes(data)
    with pytest.raises(UsageError, match="size or time differs"):
        from_folder(source, path, resume=True)
    os.utime(first, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert from_folder(source, path, resume=True).num_resumed > 0
    fresh = tmp_path / "fresh.beton"
    from_folder(source, fresh)
    assert path.read_bytes() == fresh.read_bytes()


def test_renamed_samples_are_refused(tmp_path: Path) -> None:
    source, path = folder_source(tmp_path), tmp_path / "o.beton"

    def act() -> None:
        save_in_turn()
        die_at_write(25, 1)
        from_folder(source, path)

    assert in_a_child(act) == -signal.SIGKILL
    old = Path(source.task(17)[0])
    old.rename(old.with_name("zz.jpg"))
    with pytest.raises(UsageError, match="names_of_samples was"):
        from_folder(ImageFolder(tmp_path / "src"), path, resume=True)


def test_a_table_that_changed_is_refused_though_its_images_have_not(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "src", {"ant": 9})
    table, path = tmp_path / "t.csv", tmp_path / "o.beton"
    rows = [f"src/ant/{entry.name},{number}" for number, entry in enumerate(sorted((folder / "ant").iterdir()))]
    table.write_text("\n".join(["image,label", *rows]))

    def from_table(**options: Any) -> Any:
        return convert(Table(str(table)), path, policy=ImagePolicy(), options=Options(**options))

    def act() -> None:
        save_in_turn()
        die_at_write(14, 1)
        from_table(checkpoint_seconds=1e-9)

    assert in_a_child(act) == -signal.SIGKILL
    before = table.read_text()
    table.write_text(before.replace(",0", ",7"))
    with pytest.raises(UsageError, match=r"the source has changed since .* was begun: t.csv \(its size or time"):
        from_table(resume=True)
    assert from_table(overwrite=True).num_resumed == 0


def test_many_files_of_a_source_are_one_checksum_that_any_change_shows_in(tmp_path: Path) -> None:
    class Source:
        def __init__(self) -> None:
            self.files = [(f"{number}.bin", str(tmp_path / f"{number}.bin")) for number in range(50)]

    source: Any = Source()
    for _, path in source.files[1:]:
        Path(path).write_bytes(b"x")
    then = file_stamps(source)
    assert list(then) == ["50 files"]
    assert not changed_files(then, file_stamps(source))
    Path(source.files[0][1]).write_bytes(b"")
    assert changed_files(then, file_stamps(source)) == "one of 50 files"
    source.files.pop()
    assert changed_files(then, file_stamps(source)) == "the number of files"


def test_many_tasks_have_the_stamps_of_each(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        Path(path).write_bytes(b"x")
    tasks: list[list[object]] = [
        [(0, paths[0]), (1, paths[0])], [(0, paths[0]), (1, paths[1])], [(paths[0], 1), (paths[0], True)],
        [1, 2], [1, True], [(1,), (1, 2)], [(1, 2, 3)], [paths[0], None], [[1, 2]],
    ]  # fmt: skip
    for together in tasks:
        assert stamps_of(together) == [stamp_of(task) for task in together]
    status = os.stat(paths[0])
    assert stamp_of((7, paths[0])) == f"\0{7}\0{status.st_size} {status.st_mtime_ns}"
