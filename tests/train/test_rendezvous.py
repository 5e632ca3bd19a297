"""How ranks find one another: node lists, who is missing, and errors that name what is wrong."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dataloading import UsageError
from train import rendezvous
from train.launch import free_ports
from train.options import make_options
from train.rendezvous import first_node, rendezvous_address, wait_for_ranks
from train.trainer import run_training

from .conftest import SMALL


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("one", "one"),
        ("alpha,beta", "alpha"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[7,9]", "gpu7"),
        ("rack[1-2]node[03-04]", "rack1node03"),
        ("a[1-2]b[3-4],c", "a1b3"),
        ("rack1node[01-03,07]", "rack1node01"),
        ("cn[01-04]-ib", "cn01-ib"),
        ("cn01-ib,cn02-ib", "cn01-ib"),
        ("[1-3]x", "1x"),
        ("1x", "1x"),
        ("n1-[3,5]", "n1-3"),
        ("node-01.cluster.example,node-02.cluster.example", "node-01.cluster.example"),
        ("[0001-0128]", "0001"),
    ],
)
def test_the_first_host_is_what_scontrol_shows(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize("nodes", ["", "a[1-2", "a[1-2]b]", "a[]", ",a", "a[x-y]"])
def test_what_is_no_node_list_asks_for_the_master_address(nodes: str) -> None:
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        first_node(nodes)


def test_a_batch_script_without_srun_is_told_at_once(beton: Path) -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "localhost"}
    with pytest.raises(UsageError, match=r"job has 2 tasks, but srun did not start .*`srun beton train"):
        run_training(make_options(**{**SMALL, "data": str(beton)}), environ)


def test_the_place_comes_from_the_environment_unless_torchruns_agent_keeps_the_store() -> None:
    assert rendezvous_address({}, "gpu07:20123") == ("gpu07", 20123)
    assert rendezvous_address({"MASTER_ADDR": "h", "MASTER_PORT": "7"}, "") == ("h", 7)
    assert rendezvous_address({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "") is None
    with pytest.raises(UsageError, match="MASTER_PORT is not"):
        rendezvous_address({"MASTER_ADDR": "h"}, "")
    with pytest.raises(UsageError, match="MASTER_PORT is 'x'"):
        rendezvous_address({"MASTER_ADDR": "h", "MASTER_PORT": "x"}, "")


def test_the_first_rank_says_who_is_missing_until_all_are_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendezvous, "FIRST_REPORT_SECONDS", 0.2)
    [port], reports, met = free_ports(1), threading.Event(), []
    real = sys.stderr.write

    def heard(text: str) -> int:
        if "not connected yet" in text:
            reports.set()
        return real(text)

    monkeypatch.setattr(sys.stderr, "write", heard)

    def come(rank: int, **options: Any) -> None:
        met.append(wait_for_ranks("127.0.0.1", port, rank=rank, world_size=4, speaks=False, **options))

    threads = [
        threading.Thread(target=come, args=(0,), kwargs={"at_once": True}),
        threading.Thread(target=come, args=(2,)),
    ]
    for thread in threads:
        thread.start()
    assert reports.wait(120)
    threads += [threading.Thread(target=come, args=(rank,)) for rank in (1, 3)]
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join(120)
    said = capfd.readouterr().err
    assert said.startswith(f"beton: rank 0 waits for 3 more processes at 127.0.0.1:{port}\n")
    assert f"beton: 2 processes of 4 not connected yet to 127.0.0.1:{port}: rank 1, 3\n" in said
    assert len(met) == 4


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of here is in use.*set MASTER_PORT"):
            wait_for_ranks("here", port, rank=0, world_size=2, speaks=True)


def test_a_host_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from datetime import timedelta

    monkeypatch.setattr(rendezvous, "FIRST_REPORT_SECONDS", 0.1)
    monkeypatch.setattr(rendezvous, "LIMIT", timedelta(seconds=1))
    with pytest.raises(UsageError, match=r"rank 1 cannot reach rank 0 at MASTER_ADDR no.such.host.invalid:1 .*gave up"):
        wait_for_ranks("no.such.host.invalid", 1, rank=1, world_size=2, speaks=True)
    assert "rank 1 cannot reach rank 0" in capfd.readouterr().err


def test_ports_for_runs_are_none_that_the_system_gives_away() -> None:
    lowest, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < lowest
    with socket.socket() as taken:
        taken.bind(("", ports[0]))
