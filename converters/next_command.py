"""Messages in command-line terms: the source that suits a path, and options as they are typed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

__all__ = ["as_command", "next_command"]

_ENDINGS = {
    ".tar": "webdataset", ".parquet": "huggingface", ".arrow": "huggingface", ".csv": "manifest", ".tsv": "manifest",
    ".jsonl": "manifest", ".ndjson": "manifest", ".npz": "arrays", ".npy": "arrays", ".beton": "beton",
    ".gz": "webdataset", ".zst": "webdataset",
}  # fmt: skip
_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_PARTS = ("train", "val", "valid", "validation", "test")
_LOOKED_AT = 2000


def next_command(words: Sequence[str]) -> str | None:
    """Return the error message for ``beton convert WORDS`` if the first word is a path or URL, else None."""
    path = words[0]
    if not (os.path.exists(path) or "/" in path or "://" in path or "*" in path):
        return None
    if "://" not in path and "*" not in path and not os.path.exists(path):
        return f"{path!r} does not exist; the form is `beton convert SOURCE {path} OUT.beton`"
    source, why, place = _looked_at(path.rstrip("/") or path)
    rest = " ".join(map(shlex.quote, words[1:])) or "OUT.beton"
    if source is None:
        return (
            f"say what {path} is: `beton convert SOURCE {shlex.quote(path)} {rest}`; `beton convert --help` lists them"
        )
    return f"say what {path} is. It {why}: `beton convert {source} {shlex.quote(place)} {rest}`"


def _looked_at(path: str) -> tuple[str | None, str, str]:
    """Return the source that suits a path (or None), the reason, and the path for it."""
    if not os.path.isdir(path):
        name = os.path.basename(path).lower()
        source = next((found for ending, found in _ENDINGS.items() if name.endswith(ending)), None)
        if source == "webdataset" and "ilsvrc2012" in name:
            source = "imagenet"
        return source, f"ends in {os.path.splitext(name)[1]}", path
    folders, files = _listed(path)
    if {"dataset_dict.json", "state.json"} & {*files}:
        return "huggingface", "was saved by save_to_disk", path
    for source, word in (
        ("imagenet", "ILSVRC2012"), ("webdataset", ".tar"), ("huggingface", ".parquet"), ("huggingface", ".arrow"),
        ("beton", ".beton"), ("arrays", ".npz"), ("arrays", ".npy"),
    ):  # fmt: skip
        found = [name for name in files if (name.startswith(word) if source == "imagenet" else name.endswith(word))]
        if found:
            place = os.path.join(path, found[0]) if source == "imagenet" or word == ".npz" else path
            return source, f"holds {found[0]}", place
    for part in _PARTS if {*folders} <= {*_PARTS} else ():
        inner = os.path.join(path, part)
        if part in folders and any(_has_images(os.path.join(inner, name)) for name in _listed(inner)[0][:5]):
            return "imagefolder", f"holds {part}/ with folders of images", inner
    if any(_has_images(os.path.join(path, name)) for name in folders[:5]):
        return "imagefolder", "holds folders of images", path
    table = next((name for name in files if _ENDINGS.get(os.path.splitext(name)[1]) == "manifest"), None)
    if table is not None:
        return "manifest", f"holds the table {table}", os.path.join(path, table)
    return None, "", path


def _listed(path: str) -> tuple[list[str], list[str]]:
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry, _ in zip(entries, range(_LOOKED_AT), strict=False):
                if not entry.name.startswith("."):
                    (folders if entry.is_dir() else files).append(entry.name)
    except OSError:
        pass
    return sorted(folders), sorted(files)


def _has_images(path: str) -> bool:
    folders, files = _listed(path)
    return any(name.lower().endswith(_IMAGES) for name in files) or any(
        name.lower().endswith(_IMAGES) for folder in folders[:3] for name in _listed(os.path.join(path, folder))[1]
    )


def as_command(text: str, names: Sequence[str]) -> str:
    """Return a message with options as they are typed: ``--page-size 16777216`` for ``page_size=16777216``.

    Parameters
    ----------
    text : str
        The message; if it has both spellings, Python's is dropped.
    names : sequence of str
        The options in Python spelling.

    Examples
    --------
    >>> as_command('exists; --overwrite (overwrite=True) replaces it; seed must be 0, got -1', ["overwrite", "seed"])
    'exists; --overwrite replaces it; seed must be 0, got -1'
    >>> as_command("num_shards needs page_size=4", ["num_shards", "page_size"])
    '--num-shards needs --page-size 4'
    """
    import re

    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    long_ones = "|".join(sorted((re.escape(name) for name in names if "_" in name), key=len, reverse=True))

    def typed(match: re.Match[str]) -> str:
        value = match[2].strip("\"'")
        return _option(match[1]) + ("" if value in ("", "True") else f" {value}")

    text = re.sub(rf"(--[\w-]+(?: \w+)?) \((?:{known})=[^()]*\)", r"\1", text)
    text = re.sub(
        rf"(?<![\w/.-])({known})=(\"[^\"]*\"|'[^']*'|[\w.]*\w)?(?!\w)",
        lambda m: typed(m) if m[2] else _option(m[1]),
        text,
    )
    if long_ones:
        text = re.sub(rf"(?<![\w/.'-])({long_ones})(?![\w='])", lambda m: _option(m[1]), text)
    return re.sub(r"(--[\w-]+) \(\1\)", r"\1", text)


def _option(name: str) -> str:
    return "--" + {"shard_bytes": "shard_size", "orient": "orientation"}.get(name, name).replace("_", "-")
