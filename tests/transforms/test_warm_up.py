"""Operations compiled ahead of their use: all of them, and found by the processes that come after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.warm_up import programs, warm_up

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "dataloading" / "transforms"


def beton(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    code = "from dataloading.cli import main; main()"
    environment = {**os.environ, "BETON_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_examples_have_every_kernel_that_a_transform_names():
    kernels = {
        f"{path.stem}.{name}"
        for path in (SOURCES / "kernels").glob("*.py")
        for name in re.findall(r"^@kernel\ndef (\w+)", path.read_text(), re.MULTILINE)
    }
    text = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    named = {each for each in kernels if f'"{each}"' in text}
    operations = [leaf.operation for program in programs() for leaf in program.leaves]
    assert named > {"erase.erase", "move.crop", "color.one_gray"}
    assert named - {each.kernel for each in operations} - {each.draw for each in operations} == set()


def test_a_list_is_compiled_once_and_found_by_the_next_process(tmp_path):
    code = (
        "from dataloading import transforms as T; from dataloading.transforms.warm_up import warm_up; "
        "done = warm_up({'image': [T.CenterCrop(8), T.RandomInvert()], 'label': [len]}); "
        "print(done.num_compiled, done.num_found, done.num_not_stored, done.folder)"
    )
    environment = {**os.environ, "BETON_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert said[0].stdout.split() == ["1", "0", "0", str(tmp_path / "cache")]
    assert said[1].stdout.split() == ["0", "1", "0", str(tmp_path / "cache")]
    assert [path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir()] == ["color.invert"]


def test_a_function_of_ones_own_counts_as_not_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("BETON_CACHE_DIR", str(tmp_path))

    def brighter(image, key):
        image[0, 0, 0] = 255

    done = warm_up({"image": [T.CenterCrop(8), T.Custom(brighter)]})
    assert (done.num_compiled, done.num_not_stored) == (1, 1)


def test_without_a_folder_it_says_which_variable_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("BETON_CACHE_DIR", "")
    with pytest.raises(UsageError, match=r"BETON_CACHE_DIR is empty.*Set the environment variable to a folder"):
        warm_up({})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BETON_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        warm_up({})


def test_the_command_warms_up_a_recipe_and_prints_operations_seconds_and_folder(tmp_path):
    recipe = tmp_path / "one.yaml"
    recipe.write_text("image:\n- CenterCrop: {size: 8}\n- RandomInvert: {}\n")
    done = beton("warm-up", "--recipe", str(recipe), cache=tmp_path / "cache")
    assert re.fullmatch(rf"compiled 1 operation in \d+\.\d s, found 0 more in {tmp_path}/cache\n", done.stdout), done
    done = beton("warm-up", "--recipe", str(recipe), "--json", cache=tmp_path / "cache")
    values = json.loads(done.stdout)
    assert (values["num_compiled"], values["num_found"], values["folder"]) == (0, 1, f"{tmp_path}/cache")
    done = beton("warm-up", "--recipe", "diet", cache=tmp_path / "cache")
    assert done.returncode == 2
    assert "'diet'" in done.stderr
