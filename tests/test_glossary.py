"""One word for a concept: docs/glossary.md says which, and which words are not used for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
BANNED = sorted({word.strip() for row in ROWS[1:] for word in row[2].split(",") if word.strip()})
# Phrases that readers of the field would stumble over, and what to write instead.
PHRASES = {
    "interpreter lock": "the GIL",
    "without a word": "silently",
    "lets go of": "releases",
    "mend": "fix",
    "afresh": "again",
    "at fault": "faulty",
    "anew": "again",
    "kind_of": "a name that says what it returns",
    "place_of": "a name that says what it returns",
    "is_ours": "a name that says whose",
}
FILES = [
    path
    for folder in ("dataloading", "converters", "train", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md") and path.name != "glossary.md"
] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_glossary_bans_some_words():
    assert {"datum", "minibatch", "rival"} <= set(BANNED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_use_the_terms_of_the_glossary(path):
    text = path.read_text()
    for word in (*BANNED, *PHRASES):
        found = re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE)
        line = text[: found.start()].count("\n") + 1 if found else 0
        instead = PHRASES.get(word, "the word of docs/glossary.md")
        assert not found, f"{path}:{line} says {word!r}: write {instead}"
