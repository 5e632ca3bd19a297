"""Several processes: the network, clocks and checks of two ranks, a hang that ends, scaling; and the fits."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from train.doctor.cli import doctor
from train.doctor.facts import Device, Interface
from train.doctor.fits import Scalability, fit_messages, fit_scaling
from train.doctor.hang import Entry, explain
from train.doctor.network import OPERATIONS, Exchange, bus_factor, judge_network, link_rate
from train.doctor.scaling import Point, law_of, summary
from train.launch import launch_environment, own_command, run_local_processes

from .test_checks import HEALTHY, with_environ


def written(folder: Path) -> Any:
    """The data of the one result in a folder."""
    [path] = folder.glob("doctor-*.json")
    return json.loads(path.read_text())["data"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``--network`` writes in two processes, and what they print."""
    folder = tmp_path_factory.mktemp("network")
    words = ("--network", "--max-bytes", "4KiB", "--link-rate", "1e-9", "--out", str(folder))
    with (folder / "log").open("w+") as log:
        status = run_local_processes(own_command("doctor", *words), 2, launch_environment(os.environ), log)
        log.seek(0)
        assert status in (0, 1), log.read()  # 1: something is wrong with the machine that tests
    return folder


def test_the_network_is_measured_between_two_ranks(network: Path) -> None:
    data = written(network)
    measured = [(each["operation"], each["num_bytes"]) for each in data["exchanges"]]
    assert measured == [(name, size) for name in OPERATIONS for size in (1_024, 4_096)]
    for each in data["exchanges"]:
        assert each["right"]
        assert each["seconds"] > 0
        assert each["algorithm_bandwidth"] == pytest.approx(each["num_bytes"] / each["seconds"])
        assert each["bus_bandwidth"] == pytest.approx(each["algorithm_bandwidth"] * bus_factor(each["operation"], 2))
    # Faster than a billionth of a GB/s.
    assert "slow-network" not in [finding["name"] for finding in data["findings"]]
    assert next(network.glob("*.png")).stat().st_size > 10_000
    assert (network / "log").read_text().count("2 ranks, Gloo") == 1


def test_two_ranks_report_each_other_and_their_clocks(network: Path) -> None:
    ranks = written(network)["ranks"]
    assert [(facts["rank"], facts["world_size"]) for facts in ranks] == [(0, 2), (1, 2)]
    assert ranks[0]["clock_offset"] == 0.0
    # Both have one clock, so the estimate is off by the error at most.
    assert abs(ranks[1]["clock_offset"]) <= ranks[1]["clock_error"] + 1e-3


def test_the_hang_ends_and_is_explained() -> None:
    result = CliRunner().invoke(doctor, ["--hang", "--hang-seconds", "1", "--json", "-q"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout)
    first, second = cases["skipped"], cases["different"]
    assert [entry["state"] for entry in first["ranks"][0][:2]] == ["done", "done"]
    assert first["ranks"][0][2]["state"] != "done"
    assert [entry["state"] for entry in first["ranks"][1]] == ["done", "done"]
    assert first["explanation"].endswith("rank 0 called all_reduce (4,); rank 1 called nothing.")
    for journal in second["ranks"]:
        assert "mismatch between collectives" in journal[2]["state"]
    assert second["explanation"].startswith("The ranks part at collective 3")


def test_loading_is_measured_with_one_and_two_processes(beton: Path, tmp_path: Path) -> None:
    words = [str(beton), "--scaling", "--processes", "1,2", "--num-workers", "1", "--image-size", "16", "--json", "-q",
             "--batch-size", "4", "--seconds", "0.2", "--payload-bytes", "4KiB", "--out", str(tmp_path)]  # fmt: skip
    result = CliRunner().invoke(doctor, words)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [point["processes"] for point in data["points"]] == [1, 2]
    assert all(point["images_per_second"] > 0 and point["step_seconds"] > 0 for point in data["points"])
    assert data["law"]["rate"] == data["points"][0]["images_per_second"]
    assert written(tmp_path) == data
    assert next(tmp_path.glob("doctor-scaling_*.png")).stat().st_size > 10_000


def test_a_scaling_run_needs_a_file_and_reports_a_broken_one(tmp_path: Path) -> None:
    assert "needs a FILE" in str(CliRunner().invoke(doctor, ["--scaling"]).exception)
    broken = tmp_path / "broken.beton"
    broken.write_bytes(b"no")
    result = CliRunner().invoke(doctor, [str(broken), "--scaling", "--processes", "1", "-q"])
    assert "broken.beton" in str(result.exception)


def test_ranks_part_where_their_journals_differ() -> None:
    def journal(*names: str) -> list[Entry]:
        return [Entry(number=number, collective=name) for number, name in enumerate(names, 1)]

    same = journal("all_reduce (4,)", "barrier")
    assert explain([same, same]) == "All ranks called the same collectives."
    assert explain([same, journal("all_reduce (8,)", "barrier")]).startswith("The ranks part at collective 1")
    assert explain([same, same, journal("all_reduce (4,)")]) == (
        "The ranks part at collective 2: rank 0 called barrier; rank 1 called barrier; rank 2 called nothing."
    )


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in OPERATIONS] == [1.5, 0.75, 0.75, 1.0, 0.75, 1.0]
    assert Exchange(operation="all_reduce", num_bytes=8_000, ranks=8, seconds=1e-3).bus_bandwidth == 14e6


def test_the_link_is_the_one_that_the_ranks_use() -> None:
    assert link_rate(HEALTHY) == (25e9, "InfiniBand, 1 x 200 Gbit/s")
    assert link_rate(replace(HEALTHY, **with_environ(NCCL_IB_DISABLE="1"))) == (12.5e9, "eth0, 100,000 Mbit/s")
    assert link_rate(replace(HEALTHY, world_size=8)) is None  # NVLink: its speed is not known
    cards = (Device(name="A", pcie="4x16 of 4x16", links={1: "one PCIe switch"}), Device(name="A"))
    rate = link_rate(replace(HEALTHY, world_size=8, devices=cards))
    assert rate == (pytest.approx(31.5e9, rel=1e-3), "PCIe 4x16")
    unknown = replace(HEALTHY, infiniband={}, interfaces={"eth0": Interface()})
    assert link_rate(unknown) is None


def test_a_network_at_a_tenth_of_its_link_and_wrong_sums_are_problems() -> None:
    exchanges = [Exchange(operation="all_reduce", num_bytes=10**8, ranks=2, seconds=0.1)]
    assert judge_network(exchanges, None) == []
    assert judge_network(exchanges, (1e9, "a link")) == []
    [slow] = judge_network(exchanges, (1e10, "a link"))
    assert (slow.name, slow.gain) == ("slow-network", pytest.approx(10))
    [wrong] = judge_network([replace(exchanges[0], right=False)], None)
    assert wrong.name == "wrong-result"


def test_the_cost_of_messages_is_recovered() -> None:
    sizes = [2.0**power for power in range(10, 27, 2)]
    cost = fit_messages(sizes, [50e-6 + size / 2e9 for size in sizes])
    assert cost.latency_seconds == pytest.approx(50e-6)
    assert cost.bytes_per_second == pytest.approx(2e9)


@pytest.mark.parametrize(("serial", "crosstalk"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.01), (0.03, 0.002)])
def test_the_law_of_scaling_is_recovered(serial: float, crosstalk: float) -> None:
    law = Scalability(rate=1_000.0, serial=serial, crosstalk=crosstalk)
    found = fit_scaling({count: law.predict(count) for count in (1, 2, 4, 8, 16)})
    assert found.serial == pytest.approx(serial, abs=1e-9)
    assert found.crosstalk == pytest.approx(crosstalk, abs=1e-9)


def test_the_law_never_has_negative_shares() -> None:
    found = fit_scaling({1: 100.0, 2: 220.0, 4: 500.0})  # better than ideal
    assert (found.serial, found.crosstalk) == (0.0, 0.0)
    assert found.limit == float("inf")
    assert fit_scaling({1: 100.0, 2: 100.0}).serial == pytest.approx(1.0)


def points(rates: Sequence[float]) -> list[Any]:
    return [Point(processes=1 << power, images_per_second=rate, step_seconds=0.1) for power, rate in enumerate(rates)]


def test_the_summary_states_efficiency_and_limit() -> None:
    text = summary(points([100.0, 100.0 * 2 / 1.1, 100.0 * 4 / 1.3]))
    assert "91%" in text
    assert "77%" in text
    assert "10.0% of the work is serial" in text
    assert "at most 1,000 images/s" in text
    assert law_of(points([100.0])) is None
