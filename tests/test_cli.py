"""The command: what it imports, how it fails, and the words and codes it fails with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import dataloading
from converters import cli as converters_cli
from dataloading import cli
from dataloading.errors import ConvertError, FormatError, UsageError
from dataloading.messages import counted

from .converters.making import class_folders, encoded, photo

ROOT = Path(__file__).resolve().parent.parent


def beton(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dataloading.cli", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def exit_code(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_help_imports_no_heavy_package() -> None:
    heavy = {"torch", "numba", "numpy", "PIL", "ffcv", "torchvision"}
    for words in (["--help"], ["--version"], ["convert", "--help"], ["convert", "imagefolder", "--help"],
                  ["info", "--help"], ["verify", "--help"]):  # fmt: skip
        code = (
            f"import sys; from dataloading.cli import main\ntry:\n    main({words!r})\nexcept SystemExit as left:\n"
            f"    assert left.code == 0, left.code\n    print('HEAVY', sorted({heavy!r} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.rstrip().endswith("HEAVY []"), (words, done.stdout[-200:])


def test_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(cli.beton)
    verbs = cli.beton.list_commands(context)
    assert all(isinstance(cli.beton.get_command(context, name), click.Command) for name in verbs)
    assert {"convert", "info", "train"} < set(verbs)
    assert exit_code("--help") == 0
    text = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
    lines = re.findall(r"^  ([\w-]+) +(\S.*)", text, re.MULTILINE)
    assert sorted(name for name, _ in lines) == sorted(verbs)
    assert not any(line.startswith("Added by") for _, line in lines)


def test_another_package_adds_a_command_as_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "shout-1.0.dist-info").mkdir()
    (tmp_path / "shout-1.0.dist-info" / "METADATA").write_text("Name: shout\nVersion: 1.0\n")
    (tmp_path / "shout-1.0.dist-info" / "entry_points.txt").write_text("[beton.commands]\nshout = shouting:shout\n")
    (tmp_path / "shouting.py").write_text("import click\n@click.command()\ndef shout(): click.echo('HELLO')\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    assert re.search("  shout +Added by shouting.", beton("--help", PYTHONPATH=path).stdout)
    assert beton("shout", PYTHONPATH=path).stdout == "HELLO\n"
    assert "Did you mean 'shout'?" in beton("shuot", PYTHONPATH=path).stderr


def test_the_version_is_the_one_in_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"beton {dataloading.__version__}\n"
    assert f'\nversion = "{dataloading.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convrt"], "Did you mean 'convert'?"),
        (["Verify", "x"], "Did you mean 'verify'?"),
        (["zzz"], "There are: convert, "),
        (["convert", "imagefoldr", "a", "b"], "Did you mean 'imagefolder'?"),
        (["convert", "imagefolder", "a", "b", "--max-resolutoin", "3"], "--max-resolution"),
        (["convert", "imagefolder", ".", "o.beton", "--quality", "0"], "1<=x<=100"),
        (["convert", "imagefolder", ".", "o.beton", "--mode", "jpeg"], "'jpg'"),
        (["convert", "imagefolder", ".", "o.beton", "--page-size", "8 parsecs"], "8MiB (x 2^20), 8MB (x 10^6)"),
        (["convert", "imagefolder", ".", "o.beton", "--background", "no-colour"], "is not a colour"),
        (["convert", "imagefolder", "no-such-folder", "o.beton"], "does not exist"),
        (["info", "no-such-file"], "does not exist"),
        (["info"], "Missing argument"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_to_do(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    assert message in capsys.readouterr().err


@click.command()
@click.argument("how")
def probe(how: str) -> None:
    errors: dict[str, Any] = {
        "usage": UsageError("page_size is odd"),
        "data": ConvertError("sample 3 (a.jpg): bad"),
        "format": FormatError("x.beton: not one"),
        "system": PermissionError(13, "Permission denied", "x"),
        "memory": MemoryError(),
        "interrupt": KeyboardInterrupt(),
        "pipe": BrokenPipeError(),
        "bug": ZeroDivisionError("a bug"),
    }
    if how == "exit":
        raise click.exceptions.Exit(1)
    if how != "fine":
        raise errors[how]


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.beton, "verbs", {"probe": cli.Verb("tests.test_cli:probe", "For this test.")})
    monkeypatch.delenv("BETON_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("fine", 0, ""),
        ("exit", 1, ""),
        ("usage", 2, "beton: error: page_size is odd\n"),
        ("data", 1, "beton: error: sample 3 (a.jpg): bad\n"),
        ("format", 1, "beton: error: x.beton: not one\n"),
        ("system", 1, "beton: error: [Errno 13] Permission denied: 'x'\n"),
        ("memory", 1, "beton: error: MemoryError\n"),
        ("interrupt", 130, "interrupted"),
    ],
)
@pytest.mark.usefixtures("probing")
def test_errors_become_one_message_and_an_exit_code(
    how: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("probe", how) == code
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.usefixtures("probing")
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--debug", "probe", "data") == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("BETON_DEBUG", "1")
    assert exit_code("probe", "data") == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("BETON_DEBUG", "0")
    assert exit_code("probe", "data") == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("probing")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.main(["probe", "bug"])


def test_a_command_that_cannot_be_imported_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.beton, "verbs", {"odd": cli.Verb("no_such_module:x", "Missing.")})
    assert exit_code("odd") == 1
    assert "no_such_module" in capsys.readouterr().err
    assert exit_code("--help") == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("123", 123), ("5B", 5), ("0", 0), ("64K", 64 << 10), ("64KiB", 64 << 10), ("64kB", 64_000), ("2m", 2 << 20),
        ("8MiB", 8 << 20), ("8 MiB", 8 << 20), ("3MB", 3_000_000), ("3mb", 3_000_000), ("1G", 1 << 30),
        ("1GiB", 1 << 30), ("1GB", 10**9), ("2TiB", 2 << 40), ("2TB", 2 * 10**12),
    ],
)  # fmt: skip
def test_sizes_are_read_as_by_gnu_tools(text: str, number: int) -> None:
    assert cli.Size().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "MiB", "-1M", "1.5M", "8MM", "8BM", "8MiBB", "1PiB", "8i", "8iB", "\u0663MiB"])
def test_an_invalid_size_is_refused_with_the_list_of_units(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"8MiB \(x 2\^20\), 8MB \(x 10\^6\)"):
        cli.Size().convert(text, None, None)


def every_command() -> Iterator[click.Command]:
    """The commands of `beton`, those of its groups, and those that a command finds by itself."""
    context = click.Context(cli.beton)
    for name in cli.beton.list_commands(context):
        command = cli.beton.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield found


def test_every_choice_option_suggests_the_nearest_word() -> None:
    found = set()
    for command in every_command():
        for parameter in command.params:
            if not isinstance(parameter.type, click.Choice):
                continue
            assert isinstance(parameter.type, cli.Choice), f"{command.name} --{parameter.name} is a bare click.Choice"
            found.add((command.name, parameter.name))
            for word in parameter.type.choices:
                with pytest.raises(click.BadParameter) as refused:
                    parameter.type.convert(f"{word}_", parameter, None)
                assert "is not one of" in refused.value.message and f"Did you mean {word!r}" in refused.value.message
    some = {
        ("imagefolder", "mode"),
        ("imagenet", "split"),
        ("diff", "level"),
        ("train", "strategy"),
        ("bench", "pipeline"),
    }
    assert some <= found and len(found) > 60


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "imagefolder", ".", "o.beton", "--mode", "rww"], "'png'. Did you mean 'raw'?"),
        (["convert", "imagefolder", ".", "o.beton", "--mode", "hologram"], "'smart', 'png'.\n"),
        (["diff", "pyproject.toml", "pyproject.toml", "--level", "pixel"], "Did you mean 'pixels'?"),
        (["bench", "pyproject.toml", "--loaders", "tirch"], "no loader is called 'tirch'. Did you mean 'torch'"),
        (["compare", "--loaders", "btoen,torch"], "Did you mean 'beton'?"),
        (["train", "--strategy", "fdsp"], "Did you mean 'fsdp'"),
    ],
)
def test_a_misspelt_word_gets_the_nearest_right_word(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert exit_code(*words) == 2
    assert message in capsys.readouterr().err


def test_help_of_convert_explains_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("convert", "--help") == 0
    assert "into a .beton file, or into a set of shards" in " ".join(capsys.readouterr().out.split())
    for name in converters_cli._SOURCES:
        assert exit_code("convert", name, "--help") == 0
        assert "the file OUT or a set of shards" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "sample", "1 sample"), (0, "sample", "0 samples"), (2, "class", "2 classes"), (12345, "batch",
        "12,345 batches"), (3, "entry", "3 entries"), (2, "key", "2 keys"), (2, "class folder", "2 class folders"),
        (1, "more pair", "1 more pair"), (2, "box", "2 boxes"), (2, "process", "2 processes"),
    ],
)  # fmt: skip
def test_counts_agree_with_their_noun_in_number(count: int, noun: str, words: str) -> None:
    assert counted(count, noun) == words


def test_messages_about_one_thing_use_the_singular(tmp_path: Path) -> None:
    """A dataset of one image, through every verb that tells how many: nowhere '1 samples'."""
    source = class_folders(tmp_path / "src", {"ant": 1})
    one, many, twin = tmp_path / "o.beton", tmp_path / "s.beton", tmp_path / "t.beton"
    commands: list[list[object]] = [
        ["convert", "imagefolder", source, one, "--num-workers", 0, "--dry-run"],
        ["convert", "imagefolder", source, one, "--num-workers", 0],
        ["convert", "imagefolder", source, many, "--num-workers", 0, "--num-shards", 1],
        ["info", one],
        ["verify", f"{many}.json"],
        ["diff", one, f"{many}.json", "-q"],
        ["merge", twin, one, "-q"],
        ["repair", one, tmp_path / "r.beton", "-q"],
        ["upgrade", one, tmp_path / "u.beton", "-q", "--num-workers", 0],
        ["export", one, tmp_path / "folder", "-q"],
        ["export", one, tmp_path / "tars", "-q", "--format", "webdataset"],
    ]
    for words in commands:
        done = CliRunner().invoke(cli.beton, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == 0, (words, done.output)
        wrong = re.search(
            r"\b1 (more )?[a-z ]*(samples|shards|images|JPEGs|classes|files|pairs|folders)\b", done.output
        )
        assert wrong is None, (words, done.output)
        assert "(s)" not in done.output and "(es)" not in done.output


def test_public_names_exist_and_unknown_ones_are_an_error() -> None:
    assert set(dataloading.__all__) <= set(dir(dataloading))
    with pytest.raises(AttributeError, match="no attribute 'Lodaer'"):
        dataloading.Lodaer  # noqa: B018
    assert dataloading.UsageError is UsageError


def test_convert_info_and_verify_work_from_the_shell(tmp_path: Path) -> None:
    """The whole way, with one bad image: JSON on stdout, people's words on stderr."""
    source = class_folders(tmp_path / "src", {"ant": 4, "bee": 3})
    (source / "bee" / "bad.jpg").write_bytes(encoded(photo(40, 30), "JPEG")[:300])
    (source / "bee" / "notes.txt").write_text("not an image")
    target = tmp_path / "o.beton"
    words = ["convert", "imagefolder", source, target, "--num-workers", 0]
    stopped = beton(*words)
    assert stopped.returncode == 1
    assert "bee/bad.jpg" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not target.exists()
    dry = beton(*words, "--dry-run", "--json")
    assert json.loads(dry.stdout)["num_samples"] == 8
    assert not target.exists()
    done = beton(*words, "--num-workers", 2, "--on-error", "skip", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["num_samples"], facts["images"], facts["num_skipped"]) == (7, {"transcoded": 7}, 1)
    assert facts["skipped"][0]["name"] == "bee/bad.jpg"
    assert facts["ignored"] == ["bee/notes.txt"]
    assert "skipped bee/bad.jpg: JPEG" in done.stderr
    again = beton(*words, "--on-error", "skip")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert beton("verify", target).returncode == 0
    assert json.loads(beton("info", target, "--json").stdout)["num_samples"] == 7


def test_a_dry_run_describes_the_result_in_words(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "src", {"ant": 3})
    done = CliRunner().invoke(cli.beton, ["convert", "imagefolder", str(source), "o.beton", "--dry-run"])
    assert done.exit_code == 0
    assert "would write o.beton: 3 samples" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_conversion_with_their_code_and_no_file(tmp_path: Path, number: int, code: int) -> None:
    source = tmp_path / "src" / "a"
    source.mkdir(parents=True)
    (source / "0.png").write_bytes(encoded(photo(700, 700), "PNG"))
    for copy in range(1, 3000):
        (source / f"{copy}.png").hardlink_to(source / "0.png")
    command = ["convert", "imagefolder", str(tmp_path / "src"), str(tmp_path / "o.beton"), "--num-workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dataloading.cli", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not [name for name in os.listdir(tmp_path) if "part" in name]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert os.listdir(tmp_path) == ["src"]


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "src", {f"class{number:03}": 1 for number in range(60)}, size=(8, 8))
    beton("convert", "imagefolder", source, tmp_path / "o.beton", "--num-workers", 0)
    line = f"{sys.executable} -m dataloading.cli info {tmp_path}/o.beton --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["{", "0"]
    assert done.stderr == ""
