"""Where a verb's results appear: new files that get their names together, and nothing left of runs that were cut off.

Owns a hidden folder beside the destinations, in which each file is written and may be checked, and the step that gives
them their names. Before that step it notes in the folder what is going to be named how; so if the process dies in the
midst of it, the next run with the same destination names the rest. It knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dataloading import UsageError
from dataloading.cli import note
from dataloading.tools import PartFolder, remove_orphans, sync_folder, whole_file

__all__ = ["NewFiles", "check_target", "remove_leftovers"]

_RECORD = "names.json"
_SHOWN = 3


class NewFiles:
    """New files under way; leaving the ``with`` block by an error removes them.

    Parameters
    ----------
    targets : sequence of str
        The files to make, in the order in which they get their names; their folders must exist.
    overwrite : bool
        Whether existing files may be replaced.
    inputs : sequence of str
        Files that are being read, which must not be among the targets.
    anchor : str, optional
        The destination that the next run will have as well, by default the first target.
    replaces : sequence of str
        Targets that may be replaced in any case.
    identity : mapping, optional
        JSON-able values that say what is made of which input. If a run of the same identity and targets died while it
        named its files, they are named now, and `is_done` is true: there is nothing to write.

    Attributes
    ----------
    is_done : bool

    Raises
    ------
    UsageError
        If a target exists and must not be replaced, is named twice, or is an input.

    Examples
    --------
    >>> with NewFiles(["a.txt"], overwrite=True, inputs=[]) as files:
    ...     _ = Path(files.part("a.txt")).write_text("done")
    ...     files.publish()
    >>> Path("a.txt").read_text()
    'done'
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        overwrite: bool,
        inputs: Sequence[str],
        anchor: str | None = None,
        replaces: Sequence[str] = (),
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self._overwrite = overwrite
        self._inputs = list(inputs)
        self._targets = list(targets)
        self._replaces = set(replaces)
        self._identity = None if identity is None else json.loads(json.dumps(identity))
        self._parts: dict[str, str] = {}
        self._folders: dict[str, PartFolder] = {}
        for target in self._targets:
            if target in self._parts:
                raise UsageError(f"two results would be called {target}; put {{name}} or {{index}} into the pattern")
            self._parts[target] = ""
        anchor = self._targets[0] if anchor is None else anchor
        anchors = {os.path.dirname(place): place for place in reversed([anchor, *self._targets])}
        self._anchors = [anchor, *(place for place in anchors.values() if place != anchor)]
        finished = _finish(anchor)
        same = {"identity": self._identity, "targets": [os.path.abspath(target) for target in self._targets]}
        self.is_done = identity is not None and same in finished
        if self.is_done:
            remove_orphans(*self._anchors)
            return
        self._check()
        _clear([*self._anchors, *self._targets])
        try:
            for place in self._anchors:
                # In the same folder, so that the last step is a rename on one disk.
                self._folders[os.path.dirname(place)] = PartFolder(place)
            for number, target in enumerate(self._targets):
                folder = self._folders[os.path.dirname(target)]
                self._parts[target] = str(Path(folder.part) / f"{number:06}.beton")
        except BaseException:
            self._remove()
            raise

    def _check(self) -> None:
        there = []
        for target in self._targets:
            may = self._overwrite or target in self._replaces
            check_target(target, overwrite=True, inputs=self._inputs)
            if not may and os.path.lexists(target):
                there.append(target)
        if len(there) > 1:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            raise UsageError(
                f"{len(there)} of the {len(self._targets)} files to be made exist ({', '.join(there[:_SHOWN])}{more}); "
                "--overwrite (overwrite=True) replaces them when the new ones are complete"
            )
        if there:
            check_target(there[0], overwrite=False, inputs=self._inputs)

    def part(self, target: str) -> str:
        """Return where ``target`` is to be written until all are complete."""
        return self._parts[target]

    def publish(self) -> None:
        """Give every file its name.

        Raises
        ------
        UsageError
            If a target has appeared meanwhile and must not be replaced. None has its name then.
        """
        self._check()
        if len(self._targets) > 1:
            self._write_record()
        named: list[str] = []
        replaced = 0
        try:
            for target in self._targets:
                folder = self._folders[os.path.dirname(target)]
                may = self._overwrite or target in self._replaces
                is_there = may and os.path.lexists(target)
                folder.publish_file(Path(self._parts[target]).name, target, overwrite=may)
                named.append(target)
                replaced += is_there
        except BaseException as error:
            if replaced:
                # What was replaced is gone, so the next run goes on from here.
                for folder in self._folders.values():
                    folder.close()
            else:
                for target in named:
                    with contextlib.suppress(OSError):
                        Path(target).unlink()
            if isinstance(error, FileExistsError):
                raise UsageError(str(error)) from error
            raise
        for place in self._folders:
            sync_folder(place)
        self._remove()

    def _write_record(self) -> None:
        files = [
            {
                "part": os.path.abspath(self._parts[target]),
                "target": os.path.abspath(target),
                "new": _state(self._parts[target]),
                "old": _state(target),
            }
            for target in self._targets
        ]
        record = {
            "identity": self._identity,
            "anchors": [os.path.abspath(place) for place in self._anchors],
            "files": files,
        }
        folder = self._folders[os.path.dirname(self._anchors[0])].part
        with whole_file(Path(folder) / _RECORD) as part, open(part, "w", encoding="ascii") as file:
            json.dump(record, file)

    def _remove(self) -> None:
        for folder in self._folders.values():
            folder.discard()

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def _state(path: str) -> list[int] | None:
    """Return what tells one file from another, wherever it is moved on its disk; None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _finish(anchor: str) -> list[dict[str, Any]]:
    """Name the files of runs that died while they were doing so; return what they were making, and where."""
    finished = []
    for folder in PartFolder.abandoned(os.path.abspath(anchor)):
        held = [folder]
        try:
            record = json.loads((Path(folder.part) / _RECORD).read_bytes())
            held += [other for place in record["anchors"][1:] for other in PartFolder.abandoned(place)]
            if _name_rest(record["files"], {each.part: each for each in held}):
                targets = [each["target"] for each in record["files"]]
                finished.append({"identity": record["identity"], "targets": targets})
                folder.discard()
        except (FileNotFoundError, ValueError):
            pass  # it died before all files were complete
        finally:
            for each in held:
                each.close()
    return finished


def _name_rest(files: Sequence[Mapping[str, Any]], folders: Mapping[str, PartFolder]) -> bool:
    """Give those files their names that have none yet; False if something else has been done there since."""
    rest = [each for each in files if _state(each["target"]) != each["new"]]
    for each in rest:
        folder = os.path.dirname(each["part"])
        is_ready = folder in folders and _state(each["part"]) == each["new"]
        if not is_ready or _state(each["target"]) != each["old"]:
            note(
                f"an interrupted run had named {len(files) - len(rest)} of its {len(files)} files, and the rest cannot "
                f"follow: {each['target']} has changed since"
            )
            return False
    for each in rest:
        part = Path(each["part"])
        folders[str(part.parent)].publish_file(part.name, each["target"], overwrite=each["old"] is not None)
    for place in sorted({os.path.dirname(each["target"]) for each in files}):
        sync_folder(place)
    if not rest:
        return True
    names = ", ".join(each["target"] for each in files[:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
    note(f"finished what an interrupted run had complete: {names} ({len(rest)} of {len(files)} had no name yet)")
    return True


def _clear(places: Sequence[str]) -> None:
    found = remove_orphans(*dict.fromkeys(places))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        note(f"removed what interrupted runs had left: {', '.join(found[:_SHOWN])}{more}")


def remove_leftovers(target: str) -> None:
    """Remove what dead writers to a destination have left, and say so in one line; the living keep theirs.

    Parameters
    ----------
    target : str
        A file or a folder that is going to be made, or a manifest that is going to be replaced.
    """
    _finish(target)
    _clear([target])


def check_target(target: str, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Refuse a place where no file can or may be written.

    Parameters
    ----------
    target : str
        The file to make.
    overwrite : bool
        Whether an existing file may be replaced.
    inputs : sequence of str
        Files that are being read; replacing one of them would pull the data away.

    Raises
    ------
    UsageError
        If it exists and must not be replaced, is a folder or an input, or its folder does not exist.
    """
    place = Path(target)
    if place.is_dir():
        raise UsageError(f"{target} is a folder; name the file to write in it")
    if not place.parent.is_dir():
        raise UsageError(f"the folder {place.parent} does not exist; make it first")
    if os.path.lexists(target):
        if any(Path(each).exists() and place.exists() and place.samefile(each) for each in inputs):
            raise UsageError(f"{target} is being read; write the result to another file")
        if not overwrite:
            raise UsageError(f"{target} exists; --overwrite (overwrite=True) replaces it when the new one is complete")
