"""Checks of a host and of all ranks: each looks at one thing and returns findings. Pure functions on `Facts`.

`CHECKS` look at one process, `COMPARISONS` at all of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence

from dataloading.messages import counted, did_you_mean

from .facts import Facts
from .findings import NOTE, PROBLEM, Finding

__all__ = ["CHECKS", "COMPARISONS", "check_all", "matching"]

Found = Iterator[Finding]

_SHARED_FILE_SYSTEMS = re.compile(r"nfs\d?|cifs|smb\d?|lustre|gpfs|beegfs|ceph|9p|virtiofs|fuse(\..*)?|glusterfs|afs")
_GIB = 1 << 30


# ---- the dataset's place


def check_file_system(facts: Facts) -> Found:
    """Find network and container file systems."""
    kind = facts.file_system
    if _SHARED_FILE_SYSTEMS.fullmatch(kind):
        yield Finding(
            name="file-system",
            what=f"The file is on {kind}: the first epoch, and files larger than memory, come over the network.",
            measured=kind,
            expected="a local disk, where the file fits on one",
            advice="Copy the file to a local disk before training, or use cache_dir=.",
            level=NOTE,
        )
    elif kind == "overlay":
        yield Finding(
            name="file-system",
            what="The file is in the container's own layer, which is slower than a volume and goes with the container.",
            measured=kind,
            expected="a mounted volume",
            advice="Mount the folder (docker run -v) and read the file from there.",
            level=NOTE,
        )
    elif kind in ("tmpfs", "ramfs"):
        yield Finding(
            name="file-system",
            what="The file is in memory (tmpfs): it counts against the memory limit of the job.",
            measured=kind,
            expected="a disk; the page cache keeps in memory what is read",
            advice="Nothing, if memory is plentiful; else move the file to a disk.",
            level=NOTE,
        )


# ---- limits of the process


def check_affinity(facts: Facts) -> Found:
    """Find processes that are bound to one core."""
    if facts.online_cores >= 4 and facts.cores < 2:
        yield Finding(
            name="affinity",
            what="This process is bound to one core of the host: its workers and its training loop share it.",
            measured=f"{counted(facts.cores, 'core')} of {facts.online_cores}",
            expected="the host's cores divided by its processes",
            advice="srun --cpus-per-task=N (or --cpu-bind=none), taskset, docker run --cpuset-cpus.",
        )


def check_quota(facts: Facts) -> Found:
    """Find CPU time that the control group withholds."""
    if facts.quota is not None and facts.quota < facts.cores:
        yield Finding(
            name="cpu-quota",
            what="The control group grants less CPU time than there are cores: threads are stopped in each period.",
            measured=f"quota {facts.quota:g} cores, {counted(facts.cores, 'core')} visible",
            expected="a quota of all visible cores, or as many workers as the quota has cores",
            advice=(
                "Raise the limit (docker run --cpus, Kubernetes limits.cpu, cores per task), or keep to "
                f"num_workers={max(1, int(facts.quota) // facts.local_world_size)}."
            ),
        )


def check_workers(facts: Facts) -> Found:
    """Find more workers than cores."""
    most = max(1, facts.cores // facts.local_world_size)
    if facts.num_workers > most:
        yield Finding(
            name="too-many-workers",
            what="There are more workers than cores: they wait for each other.",
            measured=f"{facts.num_workers} workers in each of {counted(facts.local_world_size, 'process')}",
            expected=f"at most {most} per process",
            advice=f"Set num_workers={most}, or leave it out.",
            level=NOTE,
        )


def check_threads(facts: Facts) -> Found:
    """Find OpenMP threads of several processes that together exceed the cores."""
    text = facts.environ.get("OMP_NUM_THREADS", "")
    threads = int(text) if text.isdigit() else facts.cores
    if facts.local_world_size > 1 and threads * facts.local_world_size > 2 * facts.cores:
        yield Finding(
            name="threads",
            what="torch's own threads of all processes of this host exceed its cores.",
            measured=f"{threads} threads x {facts.local_world_size} processes on {counted(facts.cores, 'core')}",
            expected="OMP_NUM_THREADS of the cores divided by the processes, at most",
            advice=f"export OMP_NUM_THREADS={max(1, facts.cores // facts.local_world_size)}",
            level=NOTE,
        )


def check_shared_memory(facts: Facts) -> Found:
    """Find a small /dev/shm, such as Docker's 64 MB."""
    if facts.shm_bytes < _GIB:
        yield Finding(
            name="shm",
            what=(
                "/dev/shm is small: NCCL between processes of a host, and torch's DataLoader with worker processes, "
                "fail there (our Loader's workers are threads and do not need it)."
            ),
            measured=f"{facts.shm_bytes / 2**20:,.0f} MiB",
            expected="at least 1 GiB",
            advice="docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm.",
            level=PROBLEM if facts.shm_bytes <= 64 << 20 else NOTE,
        )


def check_open_files(facts: Facts) -> Found:
    """Find a low limit of open files and sockets."""
    needed = max(1024, 16 * facts.world_size)
    if 0 <= facts.open_files < needed:
        yield Finding(
            name="open-files",
            what="The limit of open files is low: shards, sockets to other ranks and shared tensors all count.",
            measured=f"ulimit -n {facts.open_files}",
            expected=f"at least {needed}",
            advice="ulimit -n 65536 before training (LimitNOFILE= of the service, or limits.conf).",
        )


def check_locked_memory(facts: Facts) -> Found:
    """Find a limit of locked memory, which RDMA needs."""
    if facts.infiniband and facts.locked_bytes >= 0:
        yield Finding(
            name="locked-memory",
            what="Locked memory is limited, but InfiniBand registers buffers by locking them: NCCL fails or uses TCP.",
            measured=f"ulimit -l {facts.locked_bytes // 1024} kB",
            expected="unlimited",
            advice="ulimit -l unlimited; docker run --ulimit memlock=-1; PropagateResourceLimits of SLURM.",
        )


def check_huge_pages(facts: Facts) -> Found:
    """Find transparent huge pages that are switched off."""
    if facts.huge_pages == "never":
        yield Finding(
            name="huge-pages",
            what="Transparent huge pages are off: batches and parameters of many GiB need more page table look-ups.",
            measured="never",
            expected="madvise or always",
            advice="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root).",
            level=NOTE,
        )


# ---- how ranks find and reach each other


def matching(value: str, names: Sequence[str]) -> list[str]:
    """Return the names that a list of NCCL's means: ``eth,ib`` prefixes, ``=eth0`` exact names, ``^docker`` all others.

    Examples
    --------
    >>> matching("eth", ["eth0", "lo"]), matching("^lo,docker", ["eth0", "lo"]), matching("=eth", ["eth0"])
    (['eth0'], ['eth0'], [])
    """
    mark, words = re.fullmatch(r"(\^?=?)(.*)", value).groups()  # type: ignore[union-attr]
    wanted = [word for word in words.split(",") if word]
    hits = [name for name in names if any(name == word if "=" in mark else name.startswith(word) for word in wanted)]
    return [name for name in names if name not in hits] if "^" in mark else hits


def check_interfaces(facts: Facts) -> Found:
    """Compare NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with the interfaces that there are."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = facts.environ.get(variable, "")
        if not value or not facts.interfaces:
            continue
        # Gloo takes a list of exact names.
        exact = value if variable.startswith("NCCL") else f"={value}"
        found = matching(exact, list(facts.interfaces))
        down = [name for name in found if facts.interfaces[name].state == "down"]
        trouble = ""
        if not found:
            trouble = f"{variable} names no interface of {facts.hostname}"
        elif len(down) == len(found):
            trouble = f"all interfaces that {variable} names are down"
        elif facts.num_nodes > 1 and all(name == "lo" for name in found):
            trouble = f"{variable} names the loopback interface, which reaches no other host"
        if trouble:
            known = ", ".join(name for name in facts.interfaces if name != "lo")
            yield Finding(
                name="interface",
                what=f"{trouble}: ranks cannot connect.",
                measured=f"{variable}={value}",
                expected=f"one of {known or 'lo'}",
                advice=f"{did_you_mean(value, facts.interfaces)} Unset it, or name what each host has.".strip(),
            )


def check_infiniband(facts: Facts) -> Found:
    """Find settings that keep NCCL from using InfiniBand."""
    if not facts.infiniband:
        return
    rates = ", ".join(f"{name} {rate}" for name, rate in facts.infiniband.items())
    if facts.environ.get("NCCL_IB_DISABLE") == "1" or facts.environ.get("NCCL_NET", "").lower() == "socket":
        yield Finding(
            name="infiniband",
            what="InfiniBand is there, but NCCL is told not to use it: all traffic between hosts goes over TCP.",
            measured=", ".join(
                f"{name}={facts.environ[name]}" for name in ("NCCL_IB_DISABLE", "NCCL_NET") if name in facts.environ
            ),
            expected=rates,
            advice="unset NCCL_IB_DISABLE NCCL_NET",
        )
    chosen = facts.environ.get("NCCL_IB_HCA", "")
    names = sorted({name.partition(":")[0] for name in facts.infiniband})
    words = re.sub(r":\d+", "", chosen)  # ports
    if chosen and not matching(words, names):
        yield Finding(
            name="infiniband",
            what="NCCL_IB_HCA names no active device of this host: NCCL falls back to TCP.",
            measured=f"NCCL_IB_HCA={chosen}",
            expected=f"one of {', '.join(names)}",
            advice="Unset it, or name the devices that `ibstat` shows as active.",
        )


def check_rendezvous(facts: Facts) -> Found:
    """Report a MASTER_ADDR:MASTER_PORT that cannot be reached."""
    if facts.rendezvous not in ("ok", "not set"):
        yield Finding(
            name="rendezvous",
            what=f"Ranks cannot meet: {facts.rendezvous}.",
            measured=(
                f"MASTER_ADDR={facts.environ.get('MASTER_ADDR', '')} MASTER_PORT={facts.environ.get('MASTER_PORT', '')}"
            ),
            expected="the first host's name or address, and a port that is open between all hosts",
            advice="Check name, firewall and port; on one host use torchrun --standalone.",
        )


def check_host_name(facts: Facts) -> Found:
    """Find a host name that does not resolve, or only to the loopback interface."""
    if not facts.addresses:
        yield Finding(
            name="host-name",
            what=f"The host's own name {facts.hostname} does not resolve: Gloo and torchrun look it up.",
            measured="no address",
            expected="the address by which other hosts reach it",
            advice="Add it to /etc/hosts or DNS, or set GLOO_SOCKET_IFNAME and torchrun's --local-addr.",
            level=PROBLEM if facts.world_size > 1 else NOTE,
        )
    elif facts.num_nodes > 1 and all(
        ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in facts.addresses
    ):
        yield Finding(
            name="host-name",
            what=f"The host's own name {facts.hostname} resolves to itself only: Gloo tells other hosts that address.",
            measured=", ".join(facts.addresses),
            expected="the address by which other hosts reach it",
            advice="Remove the line with 127.0.1.1 from /etc/hosts, or set GLOO_SOCKET_IFNAME.",
        )


def check_clock(facts: Facts) -> Found:
    """Find clocks of hosts that differ."""
    if facts.clock_offset is None or abs(facts.clock_offset) <= max(0.5, 2 * (facts.clock_error or 0.0)):
        return
    yield Finding(
        name="clock",
        what="Clocks differ between ranks: logs, traces and time-outs of different hosts cannot be compared.",
        measured=f"rank {facts.rank} is {facts.clock_offset:+.2f} s from rank 0, within {facts.clock_error or 0:.3f} s",
        expected="less than 0.5 s",
        advice="Run chrony or systemd-timesyncd on all hosts.",
    )


# ---- NCCL and devices


def check_slow_switches(facts: Facts) -> Found:
    """Find variables for debugging that were left set, and that cost speed."""
    costly = {
        "NCCL_P2P_DISABLE": "devices exchange data through host memory",
        "NCCL_SHM_DISABLE": "processes of a host exchange data over the network",
        "CUDA_LAUNCH_BLOCKING": "every kernel waits for the one before",
    }
    for name, effect in costly.items():
        if facts.environ.get(name, "0") not in ("", "0"):
            yield Finding(
                name="left-over-variable",
                what=f"{name} is set: {effect}.",
                measured=f"{name}={facts.environ[name]}",
                expected="not set",
                advice=f"unset {name}, unless you work around a fault.",
            )
    if facts.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield Finding(
            name="left-over-variable",
            what="TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective among all ranks first: for debugging only.",
            measured="DETAIL",
            expected="not set",
            advice="unset TORCH_DISTRIBUTED_DEBUG",
            level=NOTE,
        )


def check_hang_settings(facts: Facts) -> Found:
    """Find settings without which a hang cannot be explained afterwards."""
    if facts.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        yield Finding(
            name="time-outs",
            what="TORCH_NCCL_ASYNC_ERROR_HANDLING=0: a collective that one rank does not reach hangs for ever.",
            measured="0",
            expected="not set (torch's default is 3)",
            advice="unset TORCH_NCCL_ASYNC_ERROR_HANDLING",
        )
    sizes = [facts.environ.get(name, "") for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    if facts.cuda_works and facts.world_size > 1 and not any(size not in ("", "0") for size in sizes):
        off = "0" in sizes
        yield Finding(
            name="flight-recorder",
            what=(
                f"The flight recorder {'is off' if off else 'is not set, and some versions of torch leave it off'}: "
                f"after a hang nobody can tell which rank was in which collective."
            ),
            measured=f"TORCH_FR_BUFFER_SIZE={sizes[0]} TORCH_NCCL_TRACE_BUFFER_SIZE={sizes[1]}",
            expected="2000 collectives",
            advice=(
                "export TORCH_FR_BUFFER_SIZE=2000 (older torch: TORCH_NCCL_TRACE_BUFFER_SIZE) "
                "TORCH_NCCL_DUMP_ON_TIMEOUT=1; `beton doctor --hang` shows what it is for."
            ),
            level=NOTE,
        )


def check_driver(facts: Facts) -> Found:
    """Find a device that torch cannot use."""
    if not facts.has_device_files or facts.cuda_works:
        return
    built = facts.versions.get("cuda")
    what = f"The host has an NVIDIA device, but torch {facts.versions.get('torch', '')} cannot use it: " + (
        f"the driver may be too old for CUDA {built}." if built else "it was built without CUDA."
    )
    yield Finding(
        name="driver",
        what=what,
        measured=f"driver {facts.versions.get('driver', 'unknown')}",
        expected=f"a driver for CUDA {built}" if built else "torch for CUDA",
        advice="Update the driver, or install torch for the CUDA version of `nvidia-smi`; check --gpus.",
    )


def check_links(facts: Facts) -> Found:
    """Find devices that are connected badly."""
    for number, device in enumerate(facts.devices):
        if device.slow_link:
            yield Finding(
                name="pcie",
                what=f"GPU {number} ({device.name}) uses fewer PCIe lanes than it has.",
                measured=device.pcie,
                expected="all lanes (an idle link may lower its generation, but not its lanes)",
                advice="Check the slot, the riser and the BIOS's division of lanes.",
            )
    ways = [way for device in facts.devices for way in device.links.values()]
    if "NVLink" in ways and any(way != "NVLink" for way in ways):
        yield Finding(
            name="topology",
            what="Some pairs of GPUs have NVLink and others have not: collectives run at the pace of the slowest pair.",
            measured="; ".join(f"GPU {k}: {_ways(device.links)}" for k, device in enumerate(facts.devices)),
            expected="NVLink between all GPUs of a process group",
            advice="Choose connected ones (nvidia-smi topo -m, CUDA_VISIBLE_DEVICES), or split meshes along them.",
            level=NOTE,
        )


def check_numa(facts: Facts) -> Found:
    """Find a process that runs far from its GPU."""
    device = facts.own_device
    near = _cores(device.numa_cores) if device is not None else frozenset()
    if device is not None and near and facts.core_numbers and near.isdisjoint(facts.core_numbers):
        yield Finding(
            name="numa",
            what="This process runs on another socket than its GPU: copies to it cross the link between sockets.",
            measured=f"rank {facts.rank} on cores {min(facts.core_numbers)} to {max(facts.core_numbers)}",
            expected=f"cores {device.numa_cores}, near {device.name}",
            advice="srun --gpu-bind=closest, numactl --cpunodebind, or torchrun with a binding of cores.",
            level=NOTE,
        )


def _cores(text: str) -> frozenset[int]:
    """Return the numbers of a kernel's list, such as ``0-3,8``."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return frozenset(core for low, _, high in ends for core in range(int(low), int(high or low) + 1))


def _ways(links: dict[int, str]) -> str:
    return ", ".join(f"{other} by {way}" for other, way in links.items())


# ---- ranks beside each other


def compare_versions(ranks: Sequence[Facts]) -> Found:
    """Find versions that differ between ranks."""
    for package in sorted({name for facts in ranks for name in facts.versions}):
        seen: dict[str, list[int]] = {}
        for facts in ranks:
            seen.setdefault(facts.versions.get(package, "none"), []).append(facts.rank)
        if len(seen) > 1:
            yield Finding(
                name="versions",
                what=f"Ranks have different versions of {package}: collectives may hang or fail.",
                measured="; ".join(f"{version}: rank {', '.join(map(str, who))}" for version, who in seen.items()),
                expected="one version",
                advice="Use one container image or environment on all hosts.",
            )


def compare_settings(ranks: Sequence[Facts]) -> Found:
    """Find variables of NCCL that differ between ranks."""
    names = {name for facts in ranks for name in facts.environ if name.startswith(("NCCL_", "TORCH_NCCL_"))}
    for name in sorted(names - {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG_FILE"}):  # names of each host
        values = {facts.environ.get(name, "not set") for facts in ranks}
        if len(values) > 1:
            yield Finding(
                name="settings",
                what=f"{name} differs between ranks: NCCL may choose other algorithms or transports on each and hang.",
                measured=", ".join(sorted(values)),
                expected="one value",
                advice="Export it for all hosts (srun --export, torchrun's environment, mpirun -x).",
            )


CHECKS: tuple[Callable[[Facts], Found], ...] = (
    check_file_system,
    check_affinity,
    check_quota,
    check_workers,
    check_threads,
    check_shared_memory,
    check_open_files,
    check_locked_memory,
    check_huge_pages,
    check_interfaces,
    check_infiniband,
    check_rendezvous,
    check_host_name,
    check_clock,
    check_slow_switches,
    check_hang_settings,
    check_driver,
    check_links,
    check_numa,
)
COMPARISONS: tuple[Callable[[Sequence[Facts]], Found], ...] = (compare_versions, compare_settings)


def check_all(ranks: Sequence[Facts]) -> list[Finding]:
    """Run all checks; what several ranks have alike is reported once."""
    found = [finding for facts in ranks for check in CHECKS for finding in check(facts)]
    found += [finding for compare in COMPARISONS for finding in compare(ranks)]
    return list(dict.fromkeys(found))
