"""Starts a process per loader, interleaves their rounds, and pauses loaders that are not being measured.

If a loader is not installed, crashes or hangs, its result says so, and the others continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dataloading.messages import counted
from train.bench.spec import BenchSpec
from train.summaries import Summary, interleave, summarise

__all__ = ["LoaderProcess", "LoaderProcessError", "Result", "measure", "search_workers"]

ROOT = Path(__file__).resolve().parents[2]
# The checkout's folder comes last on the path, so that packages of another environment take precedence. The current
# directory is not on the path.
START_CODE = (
    f"import runpy, sys; sys.path[:] = [each for each in sys.path if each]; "
    f"runpy.run_path({str(ROOT / 'dataloading' / 'entry.py')!r}, run_name='entry'); "
    f"from train.bench.timing import main; main()"
)
_START_LIMIT_SECONDS = 600.0
_Progress = Callable[[str], None]


@dataclass(kw_only=True)
class Result:
    """The measurements of one loader, or the reason why there are none.

    Parameters
    ----------
    spec : BenchSpec
        Its task.
    status : str
        "ok", "not installed: ..." or "failed: ...".
    rates : list of float
        Images per second, one per round.
    rounds : list of dict
        The child's report of each round.
    start : dict
        Seconds to import, build and deliver the first batch; versions; description of a batch.
    report : dict
        The loader's own report.
    """

    spec: BenchSpec
    status: str = "ok"
    rates: list[float] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> Summary | None:
        """Median, smallest and largest rate, or None if nothing was measured."""
        return summarise(self.rates) if self.rates else None

    @property
    def median(self) -> float:
        """Median rate, or 0 if nothing was measured."""
        return self.summary.median if self.summary is not None else 0.0

    def median_of(self, key: str) -> float | None:
        """Return the median over rounds of a figure in the child's reports."""
        values = [entry[key] for entry in self.rounds if entry.get(key) is not None]
        return summarise(values).median if values else None


class LoaderProcessError(Exception):
    """The child process reported an error, ended, or stopped answering."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class LoaderProcess:
    """One loader in a process group of its own."""

    def __init__(
        self, spec: BenchSpec, *, python: str = sys.executable, environment: dict[str, str] | None = None
    ) -> None:
        self.spec = spec
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        self._frozen = False
        self._process = subprocess.Popen(
            [python, "-c", START_CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The child process, which leads its process group."""
        return self._process.pid

    def start(self) -> dict[str, Any]:
        """Send the spec and wait for the first batch."""
        return self._ask({"spec": self.spec.as_dict(), "spawned_at": time.time()}, _START_LIMIT_SECONDS)

    def round(self, seconds: float) -> dict[str, Any]:
        """Measure one round."""
        self.thaw()
        return self._ask({"do": "round", "seconds": seconds}, 10 * seconds + 120.0)

    def rest_of_epoch(self) -> dict[str, Any]:
        """Measure the rest of the current epoch: images and seconds."""
        return self._ask({"do": "epoch"}, _START_LIMIT_SECONDS)

    def report(self) -> dict[str, Any]:
        """Ask the loader for its own report."""
        self.thaw()
        answer: dict[str, Any] = self._ask({"do": "report"}, 60.0)["report"]
        return answer

    def freeze(self) -> None:
        """Pause all its processes, so that they cannot disturb another loader's round."""
        if self.spec.stop_between and not self._frozen:
            self._signal(signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        """Resume them."""
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    def close(self) -> None:
        """Kill all its processes."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _signal(self, number: int) -> None:
        # Once its leader was waited for, the group's id may be reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _ask(self, message: dict[str, Any], limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LoaderProcessError(f"the process ended: {self._last_line()}") from None
        answer: dict[str, Any] = json.loads(self._read_line(limit))
        if "error" in answer:
            raise LoaderProcessError(str(answer["error"]), missing=bool(answer["missing"]))
        return answer

    def _read_line(self, limit: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise LoaderProcessError(f"no answer within {limit:.0f} s: {self._last_line()}")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise LoaderProcessError(f"the process ended: {self._last_line()}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it left no message"


def _start(spec: BenchSpec, peers_python: str | None) -> tuple[LoaderProcess | None, Result]:
    """Start a loader in this environment, or in the peers' environment if it is missing here."""
    result = Result(spec=spec)
    for python in (sys.executable, peers_python):
        if python is None:
            continue
        child = LoaderProcess(spec, python=python)
        try:
            result.start = child.start()
        except LoaderProcessError as error:
            child.close()
            result.status = f"{'not installed' if error.missing else 'failed'}: {error}"
            if error.missing:
                continue
            return None, result
        except BaseException:
            child.close()
            raise
        result.status = "ok"
        return child, result
    return None, result


def measure(
    specs: Sequence[BenchSpec],
    *,
    num_rounds: int,
    seconds: float,
    peers_python: str | None = None,
    progress: _Progress = lambda text: None,
) -> list[Result]:
    """Benchmark loaders in interleaved rounds.

    Parameters
    ----------
    specs : sequence of BenchSpec
        One per loader; their labels must differ.
    num_rounds : int
        Rounds per loader.
    seconds : float
        Minimum length of a round.
    peers_python : str, optional
        Interpreter for loaders that are missing in this environment.
    progress : callable
        Called with lines of progress.

    Returns
    -------
    list of Result
        One per spec, in order, including those that failed.
    """
    children: dict[str, LoaderProcess] = {}
    results: dict[str, Result] = {}
    try:
        for spec in specs:
            assert spec.label not in results, f"two loaders are called {spec.label}"
            progress(f"starting {spec.label}")
            child, results[spec.label] = _start(spec, peers_python)
            if child is not None:
                children[spec.label] = child
                child.freeze()
            else:
                progress(f"{spec.label}: {results[spec.label].status}")
        for number, label in interleave([spec.label for spec in specs], num_rounds):
            if label in children:
                _one_round(children, results[label], number, num_rounds, seconds, progress)
        for label, child in children.items():
            with contextlib.suppress(LoaderProcessError):
                results[label].report = child.report()
    finally:
        for child in children.values():
            child.close()
    return list(results.values())


def _one_round(
    children: dict[str, LoaderProcess],
    result: Result,
    number: int,
    num_rounds: int,
    seconds: float,
    progress: _Progress,
) -> None:
    label = result.spec.label
    try:
        entry = children[label].round(seconds)
    except LoaderProcessError as error:
        result.status = f"failed: {error}"
        children.pop(label).close()
        progress(f"{label}: {result.status}")
        return
    children[label].freeze()
    result.rounds.append(entry)
    result.rates.append(entry["images"] / entry["seconds"])
    progress(f"round {number + 1}/{num_rounds}  {label}: {result.rates[-1]:,.0f} images/s")


def search_workers(
    spec: BenchSpec,
    candidates: Sequence[int],
    *,
    seconds: float,
    peers_python: str | None = None,
    progress: _Progress = lambda text: None,
) -> tuple[int, dict[int, float]]:
    """Return the number of workers with the highest rate, and the rate of each candidate (one round each).

    Candidates that fail count as 0 images/s; if all fail, `spec`'s own number is returned.
    """
    rates = {}
    for num_workers in candidates:
        one = replace(spec, num_workers=num_workers, label=f"{spec.label}, {counted(num_workers, 'worker')}")
        [result] = measure([one], num_rounds=1, seconds=seconds, peers_python=peers_python, progress=progress)
        rates[num_workers] = result.rates[0] if result.rates else 0.0
    best = max(rates, key=lambda count: rates[count], default=spec.num_workers)
    return (best if rates.get(best) else spec.num_workers), rates
