"""The command lines: made from the options, with exit codes that tell usage from data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from train import cli
from train.launch import launch_environment, run_local_processes, torchrun_command, training_arguments
from train.options import make_options, option_fields


def test_every_option_is_a_flag_of_train() -> None:
    flags = {flag for parameter in cli.train.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for item in option_fields():
        name = item.name.replace("_", "-")
        assert f"--{name}" in flags
        assert (f"--no-{name}" in flags) == isinstance(item.default, bool)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from train import cli\n"
        "for command in (cli.train, cli.compare):\n"
        "    command.main(['--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numba', 'numpy', 'matplotlib'} & set(sys.modules), 'imported too much'"
    )
    subprocess.run([sys.executable, "-c", code], env=launch_environment({}), check=True, capture_output=True)


def test_the_command_line_becomes_the_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from train import trainer

    seen: list[Any] = []
    monkeypatch.setattr(trainer, "run_training", lambda options: seen.append(options) or 0)
    words = ["--data", str(tmp_path), "--loader", "torch", "-b", "7", "--no-nesterov", "--amp=bf16", "--lr=0.25"]
    result = CliRunner().invoke(cli.train, words)
    assert result.exit_code == 0, result.output
    expected = make_options(data=str(tmp_path), loader="torch", batch_size=7, nesterov=False, amp="bf16", lr=0.25)
    assert seen == [expected]


def test_training_arguments_speak_the_same_language(tmp_path: Path) -> None:
    words = training_arguments({"data": str(tmp_path), "scale_lr": False, "channels_last": True, "lr": 0.5})
    assert words == [f"--data={tmp_path}", "--no-scale-lr", "--channels-last", "--lr=0.5"]


def test_local_processes_know_their_place_and_end_when_one_fails(tmp_path: Path) -> None:
    """Rank 1 of 3 fails at once while the others would sleep for a minute."""
    code = (
        "import os, sys, time\n"
        "print('place', os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_PORT'], flush=True)\n"
        "sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    )
    with (tmp_path / "output.txt").open("w") as stream:
        status = run_local_processes([sys.executable, "-c", code], 3, launch_environment(os.environ), stream)
    lines = (tmp_path / "output.txt").read_text().split("\n")
    assert status == 7 and "place 1 3" in "".join(lines)
    assert len({line.split()[-1] for line in lines if line}) == 1


def test_launching_passes_the_other_words_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            assert env["PYTHONPATH"]
            started.append(command)

        def wait(self) -> int:
            return 3

    monkeypatch.setattr(cli.subprocess, "Popen", Child)
    monkeypatch.delenv("RANK", raising=False)
    words = ["--data", str(tmp_path), "--nproc-per-node", "2", "--loader=torch"]
    for prefix in (["beton", "train"], ["train"]):
        monkeypatch.setattr(sys, "argv", [*prefix, *words])
        assert CliRunner().invoke(cli.train, words).exit_code == 3
    expected = torchrun_command(2, ["--data", str(tmp_path), "--loader=torch"])
    assert started == [expected, expected]
    words += ["--max-restarts=2"]
    assert "needs --nproc-per-node" in str(CliRunner().invoke(cli.train, words).exception)  # and --output
    words += ["--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["train", *words])
    assert CliRunner().invoke(cli.train, words).exit_code == 3
    assert "--max-restarts=2" in started[2][: started[2].index("train")]
    assert "--max-restarts=2" not in started[2][started[2].index("train") :]
    monkeypatch.setenv("RANK", "0")
    assert "already runs under it" in str(CliRunner().invoke(cli.train, words).exception)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "/no/such/place"], 2, "there is no such file"),
        (["--bacth-size", "3"], 2, "--batch-size"),
        (["--loader", "grain"], 2, "grain"),
        (["--data", "README.txt"], 1, "README.txt"),
    ],
)
def test_exit_codes_tell_usage_from_data(
    words: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    (tmp_path / "README.txt").write_text("not a .beton file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert message in capfd.readouterr().err


def test_the_help_of_compare_shows_what_a_comparison_does_by_default() -> None:
    text = " ".join(CliRunner().invoke(cli.compare, ["--help"]).output.split())
    assert "[default: (50, unless --epochs is given)]" in text
    assert "[default: (drop)]" in text and "[default: 0.1]" in text
    assert "[default: (auto)]" not in text and "[default: 90]" not in text


def test_compare_refuses_unknown_loaders() -> None:
    result = CliRunner().invoke(cli.compare, ["--loaders", "torch,grain", "--data", "."])
    assert result.exit_code == 2 and "grain" in result.output


def test_compare_passes_only_what_was_typed(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    from train.compare import report
    from train.compare import runs as compare

    seen: list[Any] = []

    class Result:
        def to_json(self) -> str:
            return '{"kind": "beton-compare"}'

    monkeypatch.setattr(compare, "run_comparison", lambda options, progress: seen.append(options) or Result())
    monkeypatch.setattr(report, "write_reports", lambda comparison, out: [])
    words = ["--data", str(folder), "--loaders", "torch,torch-fast", "-b", "9", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(cli.compare, words)
    assert result.exit_code == 0, result.output
    assert seen[0].training == {"data": str(folder), "batch_size": 9, "steps": 50}
    assert result.stdout.strip() == '{"kind": "beton-compare"}'
