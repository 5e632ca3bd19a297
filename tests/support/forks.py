"""A Python that has imported large packages once, and forks for each script that is run with it.

Importing torch and a framework takes most of a short script's time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["preloaded"]

_ROOT = Path(__file__).parents[2]
_LENGTH = 16  # of a number in text


@contextlib.contextmanager
def preloaded(modules: Sequence[str], environ: Mapping[str, str]) -> Iterator[list[str]]:
    """Give the beginning of a command that stands for `python`, with `modules` imported: then come a script and words.

    Each script is a process of its own, with the environment, the folder and the streams that its command is given.
    `environ` is what the packages see when they are imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/server"
        command = [sys.executable, "-m", __name__, place, *modules]
        server = subprocess.Popen(command, env=dict(environ), cwd=_ROOT, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n", f"{modules} cannot be imported"
            # Without site-packages and this package's own imports: the client starts in 20 ms.
            yield [sys.executable, "-IS", __file__, place]
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # what it forked, too
            server.communicate()


def _serve(place: str, modules: Sequence[str]) -> None:
    """Fork for each request; in the forked process, return when its script has ended."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # or each process would walk, and so copy, all that was imported
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, *running.values()], [], [], 0.02 if running else None)
        for process, client in list(running.items()):
            if client in ready:  # it says no more: it was ended
                os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                with contextlib.suppress(BrokenPipeError):
                    client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                running.pop(process).close()
        if listener in ready:
            client, _ = listener.accept()
            streams, request = _received(client)
            process = os.fork()
            if process == 0:
                for each in (listener, client, *running.values()):
                    each.close()
                _run_script(streams, **request)
                return
            running[process] = client
            for stream in streams:
                os.close(stream)


def _received(client: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Return the three streams of a script, and what else is said about it."""
    length, streams, _, _ = socket.recv_fds(client, _LENGTH, 3)
    with client.makefile("rb") as text:
        return streams, json.loads(text.read(int(length)))


def _run_script(streams: list[int], words: list[str], environ: dict[str, str], folder: str) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(words[0])

    import runpy

    runpy.run_path(sys.argv[0], run_name="__main__")


def _ask(place: str, words: Sequence[str]) -> int:
    """Have a script run, and return its exit status."""
    request = json.dumps({"words": words, "environ": dict(os.environ), "folder": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [f"{len(request):{_LENGTH}}".encode()], [0, 1, 2])
        server.sendall(request)
        status = server.recv(16)
    return abs(int(status)) if status else 1


if __name__ == "__main__":
    if __package__:
        _serve(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
