"""Command lines and environments of training processes. Imports neither torch nor NumPy."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent
_PARENT_SPEAKS = "BETON_LAUNCHED"


def own_command(*words: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs ``beton`` with these arguments, by path: no other module shadows ours."""
    return [python, str(_ROOT / "dataloading" / "entry.py"), *words]


def free_ports(count: int) -> list[int]:
    """Find ports of this machine for the first ranks of `count` runs.

    They lie below those that the system gives to connections, and to servers that ask for any: nobody is likely to take
    one before its run begins.
    """
    end = 32_768
    with contextlib.suppress(OSError, ValueError):
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    ports = range(10_000, end) or range(10_000, 1 << 16)
    candidates = random.SystemRandom().sample(ports, min(1_000, len(ports)))
    return list(itertools.islice(filter(_is_free, candidates), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def find_peers_python(given: str | None = None) -> str | None:
    """Return the Python interpreter of the environment with the other loaders, or None.

    It is `given`, else ``$BETON_PEERS_PYTHON``, else ``.venv-peers`` in the working directory or beside the package.
    """
    places = [given, os.environ.get("BETON_PEERS_PYTHON")]
    places += [str(folder / ".venv-peers" / "bin" / "python") for folder in (Path.cwd(), _ROOT)]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def option_flag(name: str) -> str:
    """Return the command-line spelling of an option.

    Examples
    --------
    >>> option_flag("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def torchrun_command(nproc_per_node: int, arguments: list[str], *, max_restarts: int = 0) -> list[str]:
    """Return the command that runs ``beton train`` in several processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc_per_node}"]
    if max_restarts:
        launcher.append(f"--max-restarts={max_restarts}")
    return [*launcher, *own_command("train", *arguments)[1:]]


def training_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the command-line arguments for option values.

    Examples
    --------
    >>> training_arguments({"batch_size": 8, "scale_lr": False})
    ['--batch-size=8', '--no-scale-lr']
    """
    arguments = []
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(option_flag(name if value else f"no_{name}"))
        else:
            arguments.append(f"{option_flag(name)}={value}")
    return arguments


def run_local_processes(command: list[str], num_processes: int, environ: Mapping[str, str], stream: IO[str]) -> int:
    """Run a command as every rank of a small job on this machine, and wait for it.

    Like torchrun, but without restarts and without importing torch itself, which takes longer than some of the compared
    runs. When a rank fails, the others are terminated.

    Parameters
    ----------
    command : list of str
        The same for all ranks; the variable RANK differs.
    num_processes : int
        With 1, RANK is not set: the process is not distributed.
    environ : Mapping
        Environment of all ranks.
    stream : file
        Receives the output of all ranks.

    Returns
    -------
    int
        0, or the status of the first that failed.
    """
    places: list[dict[str, str]] = [{}]
    if num_processes > 1:
        [port] = free_ports(1)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_processes)}
        common |= {"LOCAL_WORLD_SIZE": str(num_processes), "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1")}
        places = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for place in places:
            environment = {**environ, **place}
            children.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
                )
            )
        while True:
            statuses = [child.poll() for child in children]
            failed = [status for status in statuses if status]
            if failed:
                return failed[0]
            if None not in statuses:
                return 0
            time.sleep(0.05)
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                kill_descendants(child.pid)
                child.kill()
                child.wait()


@contextlib.contextmanager
def leaving_on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """In this context, make Ctrl-C end this process and all its descendants at once, with status 130 and one line.

    KeyboardInterrupt is not enough: collectives and C++ code delay it, libraries turn it into other errors, and
    torchrun may take half a minute to end. Files on disk are complete or absent either way.

    Parameters
    ----------
    message : callable
        Returns the line to print.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        # The C handler writes a byte per signal, whatever the main thread is doing.
        while number := os.read(reader, 1):
            if number[0] == signal.SIGINT:
                kill_descendants(os.getpid())
                if not os.environ.get(_PARENT_SPEAKS):
                    os.write(2, f"beton: {message()}\n".encode(errors="replace"))
                os._exit(130)
        os.close(reader)

    threading.Thread(target=watch, name="beton-interrupt", daemon=True).start()
    handler = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(writer)


def kill_descendants(ancestor: int) -> None:
    """Kill all descendants of a process, including those in sessions of their own."""
    parents, family = process_parents(), [ancestor]
    for pid in family:  # grows during the loop
        family += [child for child, parent in parents.items() if parent == pid]
    for pid in family[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def process_parents() -> dict[int, int]:
    """Return the parent of every process; empty on systems without /proc."""
    parents = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb", buffering=0) as status:
                # The name, in parentheses, may contain any character.
                parents[int(name)] = int(status.read(4096).rpartition(b")")[2].split()[1])
    return parents


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with this copy of the project on the import path, even if it is not installed."""
    paths = [*filter(None, [environ.get("PYTHONPATH")]), str(_ROOT)]
    return {**environ, "PYTHONPATH": ":".join(paths)}


def launched_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `launch_environment` for processes whose parent reports a Ctrl-C."""
    return {**launch_environment(environ), _PARENT_SPEAKS: "1"}
