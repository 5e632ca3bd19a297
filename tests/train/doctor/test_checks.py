"""Checks of a host: silent on a healthy one, and each finds its own trouble."""

from __future__ import annotations

import json
import socket
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from train.doctor.checks import check_all
from train.doctor.cli import doctor
from train.doctor.facts import Device, Facts, Interface, collect, file_system, probe_rendezvous
from train.doctor.findings import PROBLEM

HEALTHY = Facts(
    hostname="node1",
    addresses=("10.0.0.1",),
    world_size=16,
    local_world_size=8,
    environ={"OMP_NUM_THREADS": "8", "TORCH_FR_BUFFER_SIZE": "2000", "NCCL_SOCKET_IFNAME": "eth"},
    interfaces={"lo": Interface(state="unknown"), "eth0": Interface(speed=100_000), "eth1": Interface(state="down")},
    infiniband={"mlx5_0:1": "200 Gb/sec (4X HDR)"},
    rendezvous="ok",
    shm_bytes=64 << 30,
    open_files=65_536,
    cores=64,
    online_cores=64,
    num_workers=8,
    file_system="ext4",
    huge_pages="madvise",
    versions={"torch": "2.9", "cuda": "13.0", "nccl": "2.28"},
    cuda_works=True,
    has_device_files=True,
    devices=(Device(name="H200", pcie="1x16 of 5x16", links={1: "NVLink"}), Device(name="H200", links={0: "NVLink"})),
    clock_offset=0.01,
    clock_error=0.001,
)


def with_environ(**variables: str) -> dict[str, Any]:
    return {"environ": {**HEALTHY.environ, **variables}}


TROUBLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "network file system": ("file-system", {"file_system": "nfs4"}, "local disk"),
    "container's layer": ("file-system", {"file_system": "overlay"}, "docker run -v"),
    "memory as a file system": ("file-system", {"file_system": "tmpfs"}, "page cache|disk"),
    "bound to one core": ("affinity", {"cores": 1, "num_workers": 1, "local_world_size": 1}, "--cpus-per-task"),
    "quota": ("cpu-quota", {"quota": 16.0}, "num_workers=2"),
    "too many workers": ("too-many-workers", {"num_workers": 64}, "num_workers=8"),
    "too many threads": ("threads", with_environ(OMP_NUM_THREADS="64"), "OMP_NUM_THREADS=8"),
    "Docker's shared memory": ("shm", {"shm_bytes": 64 << 20}, "--shm-size"),
    "few open files": ("open-files", {"open_files": 256}, "ulimit -n"),
    "locked memory": ("locked-memory", {"locked_bytes": 65_536}, "ulimit -l unlimited"),
    "no huge pages": ("huge-pages", {"huge_pages": "never"}, "madvise"),
    "an interface that is not there": ("interface", with_environ(NCCL_SOCKET_IFNAME="eno1"), "Unset"),
    "an interface for Gloo that is not there": ("interface", with_environ(GLOO_SOCKET_IFNAME="eth"), "eth0"),
    "an interface that is down": ("interface", with_environ(NCCL_SOCKET_IFNAME="=eth1"), "Unset"),
    "the loopback interface for two hosts": ("interface", with_environ(NCCL_SOCKET_IFNAME="lo"), "Unset"),
    "InfiniBand switched off": ("infiniband", with_environ(NCCL_IB_DISABLE="1"), "unset NCCL_IB_DISABLE"),
    "another InfiniBand device": ("infiniband", with_environ(NCCL_IB_HCA="mlx4_0:1"), "ibstat"),
    "rendezvous": ("rendezvous", {"rendezvous": "the host x is unknown"}, "--standalone"),
    "no address": ("host-name", {"addresses": ()}, "/etc/hosts"),
    "Debian's 127.0.1.1": ("host-name", {"addresses": ("127.0.1.1", "::1")}, "127.0.1.1"),
    "a clock that is wrong": ("clock", {"clock_offset": -3.0}, "chrony"),
    "P2P switched off": ("left-over-variable", with_environ(NCCL_P2P_DISABLE="1"), "unset NCCL_P2P_DISABLE"),
    "checks left on": ("left-over-variable", with_environ(TORCH_DISTRIBUTED_DEBUG="DETAIL"), "unset"),
    "no time-outs": ("time-outs", with_environ(TORCH_NCCL_ASYNC_ERROR_HANDLING="0"), "unset"),
    "no flight recorder": ("flight-recorder", with_environ(TORCH_FR_BUFFER_SIZE="0"), "TORCH_FR_BUFFER_SIZE=2000"),
    "an old driver": ("driver", {"cuda_works": False}, "Update the driver"),
    "half a slot": ("pcie", {"devices": (Device(name="A100", pcie="4x8 of 4x16", slow_link=True),)}, "riser"),
    "the other socket's cores": (
        "numa",
        {"core_numbers": (0, 1, 2, 3), "devices": (Device(name="A", numa_cores="16-31,48-63"),)},
        "closest",
    ),
    "NVLink between some only": (
        "topology",
        {"devices": (Device(name="A", links={1: "NVLink", 2: "between sockets"}),)},
        "topo -m",
    ),
}
NOTES = {
    "network file system", "container's layer", "memory as a file system", "too many workers", "too many threads",
    "no huge pages", "checks left on", "no flight recorder", "NVLink between some only", "the other socket's cores",
}  # fmt: skip


def test_a_healthy_host_gives_no_findings() -> None:
    assert check_all([HEALTHY, replace(HEALTHY, rank=1)]) == []


def test_a_process_near_its_device_or_with_chosen_devices_is_not_reported() -> None:
    devices = (Device(name="A", numa_cores="0-3"), Device(name="B", numa_cores="4-7,9"))
    near = replace(HEALTHY, rank=9, devices=devices, core_numbers=(9,))
    assert check_all([near]) == []
    far = replace(near, core_numbers=(0,))
    assert [finding.name for finding in check_all([far])] == ["numa"]
    assert check_all([replace(far, **with_environ(CUDA_VISIBLE_DEVICES="1,0"))]) == []


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_check_finds_its_trouble_and_no_other_does(trouble: str) -> None:
    name, changes, advice = TROUBLE[trouble]
    [finding] = check_all([replace(HEALTHY, **changes)])
    assert finding.name == name
    assert any(word in finding.advice + finding.expected for word in advice.split("|"))
    assert (finding.level == PROBLEM) == (trouble not in NOTES)


def test_ranks_with_other_versions_and_settings_are_found() -> None:
    other = replace(HEALTHY, rank=1, versions={**HEALTHY.versions, "nccl": "2.21"}, **with_environ(NCCL_ALGO="Ring"))
    names = {finding.name: finding for finding in check_all([HEALTHY, other])}
    assert set(names) == {"versions", "settings"}
    assert names["versions"].measured == "2.28: rank 0; 2.21: rank 1"
    assert names["settings"].measured == "Ring, not set"


def test_what_ranks_have_alike_is_reported_once() -> None:
    bad = replace(HEALTHY, huge_pages="never")
    assert len(check_all([bad, replace(bad, rank=1), replace(bad, rank=2)])) == 1


@pytest.mark.parametrize(
    ("path", "kind"), [("/data/train.beton", "nfs4"), ("/data/fast/train.beton", "xfs"), ("/dataset", "overlay"),
                       ("/with space/x", "ext4")]
)  # fmt: skip
def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sdb /data/fast xfs rw 0 0\n"
        "/dev/sdc /with\\040space ext4 rw 0 0\n"
    )
    assert file_system(path, tmp_path) == kind


def test_facts_are_read_below_a_root(tmp_path: Path) -> None:
    files = {
        "sys/class/net/eth0/operstate": "up", "sys/class/net/eth0/speed": "25000",
        "sys/class/net/lo/operstate": "unknown", "sys/class/net/bonding_masters": "",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5",
        "proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000", "dev/nvidia0": "", "dev/nvidiactl": "",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = collect({"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "RANK": "0"}, root=tmp_path, num_workers=3)
    assert facts.interfaces == {"eth0": Interface(speed=25_000), "lo": Interface(state="unknown")}
    assert facts.infiniband == {"mlx5_0:1": "200 Gb/sec (4X HDR)"}
    assert facts.huge_pages == "madvise"
    assert facts.versions["driver"] == "550.54.15"
    assert facts.quota == 1.5
    assert facts.has_device_files
    assert facts.environ == {"NCCL_DEBUG": "INFO", "RANK": "0"}
    assert facts.rendezvous == "not set"
    assert facts.num_workers == 3


class FakeNvml(types.ModuleType):
    """Two GPUs with NVLink; the first one in half a slot. The second does not say how it is plugged in."""

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVMLError = RuntimeError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"gpu{number}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: str) -> int:
        if handle == "gpu1":
            raise RuntimeError("not supported")
        return 4

    def nvmlDeviceGetCurrPcieLinkWidth(self, _handle: str) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkGeneration(self, _handle: str) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        return 16 if handle == "gpu0" else 8

    def nvmlDeviceGetPciInfo(self, _handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(busId=b"00000000:3B:00.0")

    def nvmlDeviceGetP2PStatus(self, _one: str, _other: str, _index: int) -> int:
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, _one: str, _other: str) -> int:
        return 10


def test_devices_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    cores = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/local_cpulist"
    cores.parent.mkdir(parents=True)
    cores.write_text("0-15\n")
    assert collect({}, root=tmp_path).devices == (
        Device(name="gpu0", pcie="4x8 of 5x16", slow_link=True, numa_cores="0-15", links={1: "NVLink"}),
        Device(name="gpu1", pcie="", slow_link=False, numa_cores="0-15", links={0: "NVLink"}),
    )


def test_a_rendezvous_that_listens_is_fine_and_one_that_does_not_is_reported() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
        server.listen()
        assert probe_rendezvous("127.0.0.1", port, listening=True) == "ok"
        assert probe_rendezvous("127.0.0.1", port, listening=None) == "ok"
        assert "in use by another program" in probe_rendezvous("127.0.0.1", port, listening=False)


@pytest.mark.parametrize(
    ("error", "listening", "said"),
    [
        (ConnectionRefusedError(), True, "nobody listens at node1:29500"),
        (ConnectionRefusedError(), False, "ok"),
        (socket.gaierror(-2, "Name or service not known"), True, "the host node1 is unknown"),
        (TimeoutError("timed out"), None, "node1:29500 cannot be reached: timed out"),
    ],
)
def test_what_goes_wrong_at_the_rendezvous_is_named(error: OSError, listening: bool | None, said: str) -> None:
    def connect(_place: tuple[str, int], timeout: float) -> socket.socket:
        assert timeout == 5
        raise error

    assert probe_rendezvous("node1", "29500", listening=listening, connect=connect).startswith(said)


def test_a_port_that_is_no_number_is_reported_before_anybody_is_asked() -> None:
    assert "'29500a'" in probe_rendezvous("node1", "29500a", listening=True)


def test_without_a_file_the_command_checks_the_host() -> None:
    result = CliRunner().invoke(doctor, ["--json"], env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert "time-outs" in [finding["name"] for finding in data["findings"]]
    assert data["ranks"][0]["environ"]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "cause" not in data


def test_two_measurements_at_once_are_refused() -> None:
    result = CliRunner().invoke(doctor, ["--network", "--hang"])
    assert "--network and --hang" in str(result.exception)


def test_what_starts_processes_itself_is_refused_under_torchrun() -> None:
    result = CliRunner().invoke(doctor, ["--hang"], env={"RANK": "0", "WORLD_SIZE": "2"})
    assert "without torchrun" in str(result.exception)
