"""The output files of a command, which are renamed together; cleans up after interrupted runs.

Files are written and checked in a hidden folder beside the destinations, then renamed. Before that step the folder gets
a record of the names. If the process dies during the step, the next run with the same destination renames the rest.
Also names the output files for a shard set.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataloading import Manifest, Reader, Shard, UsageError
from dataloading.cli import note
from dataloading.tools import PartFolder, is_manifest, remove_orphans, shard_path, sync_folder, whole_file

__all__ = ["NewFiles", "check_target", "new_paths", "remove_leftovers", "shard_entry"]

_RECORD = "names.json"
_SHOWN = 3


class NewFiles:
    """Unfinished output files; an error in the ``with`` block removes them.

    Parameters
    ----------
    targets : sequence of str
        The files to make, in the order in which they are renamed; their folders must exist.
    overwrite : bool
        Whether existing files may be replaced.
    inputs : sequence of str
        Input files, which must not be targets.
    anchor : str, optional
        A destination that a repeated run also has, by default the first target.
    replaces : sequence of str
        Targets that may be replaced in any case.
    identity : mapping, optional
        Identifies the command and its inputs, as JSON values. If a run of the same identity and targets died while it
        renamed its files, they are renamed now, and `is_done` is true: there is nothing to write.

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
        for target in self._targets:
            check_target(target, overwrite=True, inputs=self._inputs)
        there = [target for target in self._targets if not self._may_replace(target) and os.path.lexists(target)]
        if len(there) > 1:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            raise UsageError(
                f"{len(there)} of the {len(self._targets)} files to be made exist ({', '.join(there[:_SHOWN])}{more}); "
                "--overwrite (overwrite=True) replaces them when the new ones are complete"
            )
        if there:
            check_target(there[0], overwrite=False, inputs=self._inputs)

    def _may_replace(self, target: str) -> bool:
        return self._overwrite or target in self._replaces

    def part(self, target: str) -> str:
        """Return the path to write ``target`` to until all files are complete."""
        return self._parts[target]

    def write_manifest(self) -> None:
        """Write the manifest of a shard set, the last target, once its shards are complete; see `new_paths`."""
        *shards, manifest = self._targets
        entries = [shard_entry(self.part(path), os.path.basename(path)) for path in shards]
        Manifest(shards=tuple(entries)).save(self.part(manifest))

    def publish(self) -> None:
        """Rename every file to its target.

        Raises
        ------
        UsageError
            If a target has appeared meanwhile and must not be replaced. Then no file is renamed.
        """
        self._check()
        if len(self._targets) > 1:
            self._write_record()
        named: list[str] = []
        replaced = 0
        try:
            for target in self._targets:
                folder = self._folders[os.path.dirname(target)]
                may_replace = self._may_replace(target)
                is_there = may_replace and os.path.lexists(target)
                folder.publish_file(Path(self._parts[target]).name, target, overwrite=may_replace)
                named.append(target)
                replaced += is_there
        except BaseException as error:
            if replaced:
                # The replaced files are gone, so the next run must finish this one.
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

    def __exit__(self, *_: object) -> None:
        self._remove()


def _state(path: str) -> list[int] | None:
    """Return a file's identity, which renaming does not change; None if it does not exist."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _finish(anchor: str) -> list[dict[str, Any]]:
    """Rename the files of runs that died during that step; return each run's identity and targets."""
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
    """Rename the remaining files; False if a target has been changed since."""
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
    """Remove the files that dead runs with the same destination left, and report it in one line."""
    _finish(target)
    _clear([target])


def check_target(target: str, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Raise `UsageError` if ``target`` exists and must not be replaced, is a folder or an input, or has no folder."""
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


def new_paths(source: str, out: str, num_files: int) -> list[str]:
    """Return the output files for ``source``: ``out``, or the shards of a set and its manifest ``out``.

    Parameters
    ----------
    source, out : str
        ``.beton`` files, or both manifests.
    num_files : int
        Number of shards.

    Raises
    ------
    UsageError
        If only one of the two is a manifest.

    Examples
    --------
    >>> new_paths("a.beton", "b.beton", 1)
    ['b.beton']
    >>> new_paths("a.beton.json", "x/b.beton.json", 2)
    ['x/b-00000-of-00002.beton', 'x/b-00001-of-00002.beton', 'x/b.beton.json']
    """
    if is_manifest(source) and not is_manifest(out):
        raise UsageError(
            f"{source} is a set of shards, and {out} would be one file; name the new set's manifest, NAME.beton.json, "
            "or make one file of the shards with `beton merge`"
        )
    if is_manifest(out) and not is_manifest(source):
        raise UsageError(f"{out} names a set of shards, but {source} is one file; name a .beton file to make")
    if not is_manifest(out):
        return [out]
    stem = out.removesuffix(".json")
    return [*(shard_path(stem, number, num_files) for number in range(num_files)), out]


def shard_entry(path: str, name: str) -> Shard:
    """Return a manifest's entry for the file ``path``, which is or will be called ``name`` beside the manifest."""
    with Reader(path) as reader:
        return Shard.of(reader, name)
