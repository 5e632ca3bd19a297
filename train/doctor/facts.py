"""What is set on this host: network, limits, versions, devices. Collects and judges nothing (`checks` does).

Files are read below a root folder that tests can replace. What needs a package or a driver is left out without it.
"""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataloading.tools import cpu_quota, read_text, visible_cores

from .limits import ROOT

__all__ = ["Device", "Facts", "Interface", "collect", "file_system", "probe_rendezvous"]

# Variables that explain a run; no others are reported, as they may hold secrets.
_VARIABLES = re.compile(
    r"(NCCL|GLOO|TORCH_NCCL|TORCH_FR|TORCH_DISTRIBUTED|OMP|KMP|CUDA)_[A-Z0-9_]*"
    r"|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|TORCHELASTIC_USE_AGENT_STORE"
    r"|SLURM_(PROCID|NTASKS|JOB_NODELIST|CPUS_PER_TASK|CPU_BIND)"
)


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface: its state, such as ``up``, and its speed in Mbit/s where the driver says."""

    state: str = "up"
    speed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU.

    Parameters
    ----------
    name : str
    pcie : str
        Generation and lanes in use and at most: ``4x16 of 5x16``.
    slow_link : bool
        Fewer lanes than device and slot have.
    numa_cores : str
        Cores of its NUMA node, as the kernel lists them: ``0-15,32-47``.
    links : dict of int to str
        How it reaches each other device.
    """

    name: str
    pcie: str = ""
    slow_link: bool = False
    numa_cores: str = ""
    links: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One process and its host.

    Parameters
    ----------
    hostname : str
    addresses : tuple of str
        What the host's own name resolves to.
    rank, world_size, local_world_size : int
    environ : dict of str to str
        Variables of the launcher, NCCL, Gloo, OpenMP and CUDA.
    interfaces : dict of str to Interface
    infiniband : dict of str to str
        Rate of each InfiniBand or RoCE device's port, such as ``200 Gb/sec (4X HDR)``.
    rendezvous : str
        ``ok``, ``not set``, or what goes wrong at MASTER_ADDR:MASTER_PORT.
    shm_bytes : int
        Size of /dev/shm; 0: there is none.
    open_files, locked_bytes : int
        Soft limits; -1: none.
    cores, online_cores : int
        That this process may run on, and of the host.
    core_numbers : tuple of int
        Which cores this process may run on; empty: not known.
    quota : float or None
        CPU time in cores that the control group grants.
    num_workers : int
        Workers of each process; 0: not known.
    file_system : str
        Kind of the file system of the dataset.
    huge_pages : str
        Policy for transparent huge pages; empty: not known.
    versions : dict of str to str
        torch, CUDA that it was built for, NCCL, driver.
    cuda_works, has_device_files : bool
        Whether torch can use a CUDA device, and whether the system has one.
    devices : tuple of Device
    clock_offset, clock_error : float or None
        Seconds that this rank's clock is ahead of rank 0's, and how exact that is.
    """

    hostname: str = "localhost"
    addresses: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    environ: dict[str, str] = field(default_factory=dict)
    interfaces: dict[str, Interface] = field(default_factory=dict)
    infiniband: dict[str, str] = field(default_factory=dict)
    rendezvous: str = "not set"
    shm_bytes: int = 0
    open_files: int = -1
    locked_bytes: int = -1
    cores: int = 1
    online_cores: int = 1
    core_numbers: tuple[int, ...] = ()
    quota: float | None = None
    num_workers: int = 0
    file_system: str = ""
    huge_pages: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    cuda_works: bool = False
    has_device_files: bool = False
    devices: tuple[Device, ...] = ()
    clock_offset: float | None = None
    clock_error: float | None = None

    @property
    def own_device(self) -> Device | None:
        """The GPU of this rank, counted as launchers do; None where variables choose among them."""
        local = self.rank % max(1, self.local_world_size)
        chosen = "CUDA_VISIBLE_DEVICES" in self.environ
        return self.devices[local] if not chosen and local < len(self.devices) else None

    @property
    def num_nodes(self) -> int:
        """Hosts of the run, as far as the launcher says."""
        return -(-self.world_size // max(1, self.local_world_size))


def collect(
    environ: Mapping[str, str],
    *,
    path: str | None = None,
    num_workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    local_world_size: int = 1,
    master: str = "",
    root: Path = ROOT,
) -> Facts:
    """Collect what is set here.

    Parameters
    ----------
    environ : Mapping
        Variables.
    path : str, optional
        The dataset, whose file system is looked up.
    num_workers : int
        Workers of each process.
    rank, world_size, local_world_size : int
        This process among all, and processes of this host.
    master : str
        ``host:port`` of the rendezvous, where MASTER_ADDR and MASTER_PORT do not say.
    root : Path
        Where ``proc``, ``sys`` and ``dev`` are.
    """
    hostname = socket.gethostname()
    works, versions = _torch_versions(root)
    return Facts(
        hostname=hostname,
        addresses=_resolve(hostname),
        rank=rank,
        world_size=world_size,
        local_world_size=local_world_size,
        environ={name: value for name, value in sorted(environ.items()) if _VARIABLES.fullmatch(name)},
        interfaces=_interfaces(root),
        infiniband=_infiniband(root),
        rendezvous=_rendezvous(environ, rank, master),
        shm_bytes=_size(root / "dev/shm"),
        open_files=_soft(resource.RLIMIT_NOFILE),
        locked_bytes=_soft(resource.RLIMIT_MEMLOCK),
        cores=visible_cores(),
        online_cores=os.cpu_count() or 1,
        core_numbers=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (),
        quota=cpu_quota(root),
        num_workers=num_workers,
        file_system="" if path is None else file_system(path, root),
        huge_pages=(re.findall(r"\[(\w+)\]", read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")) or [""])[
            0
        ],
        versions=versions,
        cuda_works=works,
        has_device_files=any(re.fullmatch(r"nvidia\d+", path.name) for path in (root / "dev").glob("nvidia*")),
        devices=_devices(root),
    )


def _soft(limit: int) -> int:
    soft = resource.getrlimit(limit)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def _size(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_blocks * status.f_frsize


def _resolve(hostname: str) -> tuple[str, ...]:
    try:
        return tuple(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(hostname, None)}))
    except OSError:
        return ()


def _interfaces(root: Path) -> dict[str, Interface]:
    found = {}
    for folder in sorted((root / "sys/class/net").glob("*")):
        speed = read_text(folder / "speed")
        if (folder / "operstate").exists():  # bonding adds files that are no interfaces
            known = int(speed) if speed.isdigit() and int(speed) > 0 else None
            found[folder.name] = Interface(state=read_text(folder / "operstate"), speed=known)
    return found


def _infiniband(root: Path) -> dict[str, str]:
    return {
        f"{port.parent.parent.name}:{port.name}": read_text(port / "rate")
        for port in sorted((root / "sys/class/infiniband").glob("*/ports/*"))
        if "ACTIVE" in read_text(port / "state")
    }


def file_system(path: str, root: Path = ROOT) -> str:
    """Return the kind of the file system that a path lies on, such as ``ext4`` or ``nfs4``; empty: not known."""
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in read_text(root / "proc/self/mounts").splitlines():
        _, mount, name, *_ = line.split(" ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):  # a later mount covers an earlier one
            best, kind = mount, name
    return kind


def _rendezvous(environ: Mapping[str, str], rank: int, master: str) -> str:
    host, _, port = master.rpartition(":")
    host, port = host or environ.get("MASTER_ADDR", ""), port or environ.get("MASTER_PORT", "")
    if not host:
        return "not set"
    # torchrun's agent listens already. Else rank 0 will, and others may find it there or not yet.
    by_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return probe_rendezvous(host, port, listening=True if by_agent else False if rank == 0 else None)


def probe_rendezvous(
    host: str, port: str, *, listening: bool | None, connect: Callable[..., socket.socket] = socket.create_connection
) -> str:
    """Try to reach the place where ranks meet: ``ok``, or what goes wrong.

    Parameters
    ----------
    host, port : str
        MASTER_ADDR and MASTER_PORT.
    listening : bool or None
        Whether somebody should listen there already; None: perhaps.
    connect : callable
        As `socket.create_connection`.
    """
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return f"MASTER_PORT is {port!r}, not a number from 1 to 65535"
    try:
        connect((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return f"nobody listens at {host}:{port}" if listening else "ok"
    except socket.gaierror as error:
        return f"the host {host} is unknown: {error}"
    except OSError as error:
        return f"{host}:{port} cannot be reached: {error}"
    return f"port {port} of {host} is in use by another program" if listening is False else "ok"


def _torch_versions(root: Path) -> tuple[bool, dict[str, str]]:
    """Return whether CUDA works, and versions."""
    import torch

    works = torch.cuda.is_available()
    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if works:
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    driver = re.search(r"Kernel Module[^0-9]*([0-9.]+)", read_text(root / "proc/driver/nvidia/version"))
    if driver:
        versions["driver"] = driver[1]
    return works, versions


# NVML's levels of a common ancestor, and what passes between two devices there.
_PATHS = {0: "same board", 10: "one PCIe switch", 20: "PCIe switches", 30: "PCIe host bridge", 40: "one NUMA node"}


def _devices(root: Path) -> tuple[Device, ...]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return ()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    return tuple(_device(pynvml, handle, handles, root) for handle in handles)


def _device(nvml: Any, handle: Any, handles: list[Any], root: Path) -> Device:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError:
            return None  # not every device answers every question

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    now = ask("nvmlDeviceGetCurrPcieLinkGeneration", handle), ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    most = ask("nvmlDeviceGetMaxPcieLinkGeneration", handle), ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
    place = ask("nvmlDeviceGetPciInfo", handle)
    # NVML writes eight digits of the domain, the kernel four.
    bus = text(place.busId).lower()[-12:] if place is not None else ""
    links: dict[int, str] = {}
    for number, other in enumerate(handles):
        if other is not handle:
            by_nvlink = ask("nvmlDeviceGetP2PStatus", handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            level = ask("nvmlDeviceGetTopologyCommonAncestor", handle, other)
            links[number] = "NVLink" if by_nvlink == nvml.NVML_P2P_STATUS_OK else _PATHS.get(level, "between sockets")
    return Device(
        name=text(ask("nvmlDeviceGetName", handle)),
        pcie="" if None in (*now, *most) else f"{now[0]}x{now[1]} of {most[0]}x{most[1]}",
        slow_link=None not in (now[1], most[1]) and now[1] < most[1],
        numa_cores=read_text(root / "sys/bus/pci/devices" / bus / "local_cpulist") if bus else "",
        links=links,
    )
