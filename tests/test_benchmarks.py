"""The topics of `benchmarks/gate.py`, on a few small images."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from dataloading._native.library import library_path

from .support.files import write_images

ROOT = Path(__file__).resolve().parent.parent


def test_each_topic_of_the_gate_runs(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.beton" for name in ("jpegs", "raw", "small")]
    images = write_images(files[0], 6)
    write_images(files[1], 6, mode="raw")
    write_images(files[2], 9, mode="raw", sizes=(32, 33), same_size=True)
    photos = tmp_path / "photos"
    for number, image in enumerate(images):
        folder = photos / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.jpg")

    # A checkout as gate.py leaves it: with the native library in it.
    checkout = tmp_path / "checkout"
    for package in ("dataloading", "converters"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(library_path(), checkout / "dataloading" / "_native")
    script = ROOT / "benchmarks" / "gate_topics.py"
    command = [sys.executable, *map(str, [script, checkout, *files, photos])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        topics = json.loads(process.stdout.readline())
        answers = {}
        for topic in topics:
            process.stdin.write(f"{topic}\n{topic}\n")
            process.stdin.flush()
            answers[topic] = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
    assert len(topics) > 10
    assert {topic: sorted(first) + sorted(second) for topic, (first, second) in answers.items()} == {
        topic: ["checksum", "cpu", "wall"] for topic in topics
    }
