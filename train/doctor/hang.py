"""``beton doctor --hang``: shows on two processes what a desynchronised collective looks like, and how to find it.

First one rank skips a collective: the other waits until its time-out. Then, with what TORCH_DISTRIBUTED_DEBUG=DETAIL
does, the ranks call different collectives, and torch names both. Each rank keeps a journal of its collectives, as
torch's flight recorder does, and the first place where two journals differ is the fault.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # not in __all__, but documented
    DebugLevel,
    get_debug_level,
    set_debug_level,
)

from dataloading import BetonError
from train.distributed import World, process_group
from train.launch import launch_environment, own_command, run_local_processes

__all__ = ["Entry", "demonstrate", "explain", "run_rank", "text"]

# Public since torch 2.10 or so.
_SET_TIMEOUT: Any = getattr(dist, "set_timeout", None) or getattr(dist.distributed_c10d, "_set_pg_timeout", None)
_RANKS = 2
_LIMIT = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One collective of one rank.

    Parameters
    ----------
    number : int
        Counted from 1 in the order of calls.
    collective : str
        Its name and the shape of its data.
    state : str
        ``done``, or why it failed.
    """

    number: int
    collective: str
    state: str = "done"


def explain(journals: Sequence[Sequence[Entry]]) -> str:
    """Return where ranks part: the first collective that not all of them have in the same way.

    Parameters
    ----------
    journals : sequence of sequence of Entry
        One per rank, in order.
    """
    for number in range(1, max(map(len, journals), default=0) + 1):
        calls = [journal[number - 1].collective if len(journal) >= number else "nothing" for journal in journals]
        if len(set(calls)) > 1:
            who = "; ".join(f"rank {rank} called {call}" for rank, call in enumerate(calls))
            return f"The ranks part at collective {number}: {who}."
    return "All ranks called the same collectives."


class _Journal:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def call(self, name: str, run: Callable[[], Any]) -> None:
        """Run a collective; an error becomes its state."""
        state = "done"
        try:
            run()
        except RuntimeError as error:
            # Without the place in the backend's source.
            state = re.sub(r"^\[[^\]]*\] ", "", str(error).splitlines()[0])
        self.entries.append(Entry(number=len(self.entries) + 1, collective=name, state=state))


def run_rank(world: World, folder: Path, seconds: float) -> None:
    """Be one of the two processes.

    Parameters
    ----------
    world : World
        This process among the two.
    folder : Path
        Takes the journals.
    seconds : float
        Time-out of the collective that hangs.
    """
    data = torch.ones(4)
    with process_group(world, torch.device("cpu")):
        store = dist.distributed_c10d._get_default_store()
        journals = {kind: _Journal() for kind in FAULTS}
        for journal in journals.values():
            for _ in range(2):
                journal.call("all_reduce (4,)", lambda: dist.all_reduce(data))

        # The usual fault: a collective under `if rank == 0`, as in logging or in evaluation.
        short: Any = dist.new_group(timeout=_LIMIT)
        if world.rank == 0:
            _SET_TIMEOUT(timedelta(seconds=seconds), short)  # after both have joined the group, however slow they are
            journals["skipped"].call("all_reduce (4,)", lambda: dist.all_reduce(data, group=short))
            store.set("given up", "")
        else:
            store.wait(["given up"], _LIMIT)

        before = get_debug_level()
        set_debug_level(DebugLevel.DETAIL)  # what the variable does for the whole run
        checked: Any = dist.new_group(timeout=_LIMIT)
        set_debug_level(before)
        if world.rank == 0:
            journals["different"].call("all_reduce (4,)", lambda: dist.all_reduce(data, group=checked))
        else:
            journals["different"].call("broadcast (4,)", lambda: dist.broadcast(data, 0, group=checked))

        every = {kind: [asdict(entry) for entry in journal.entries] for kind, journal in journals.items()}
        (folder / f"rank-{world.rank}.json").write_text(json.dumps(every))
        # Nobody leaves while the other may still need the store.
        store.set(f"left/{world.rank}", "")
        store.wait([f"left/{rank}" for rank in range(_RANKS)], _LIMIT)


def demonstrate(seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Show the faults in two processes and return their journals and explanations.

    Parameters
    ----------
    seconds : float
        Time-out of the collective that hangs.
    say : callable
        Called with a line of text now and then.

    Raises
    ------
    BetonError
        A process ended by itself.
    """
    say(f"starting {_RANKS} processes; one will wait {seconds:g} s for the other")
    with tempfile.TemporaryDirectory(prefix="beton-hang-") as name, tempfile.TemporaryFile("w+") as log:
        command = own_command("doctor", "--hang", "--hang-folder", name, "--hang-seconds", str(seconds))
        status = run_local_processes(command, _RANKS, launch_environment(os.environ), log)
        if status:
            log.seek(0)
            raise BetonError(f"a process of the demonstration ended with {status}: {log.read()[-500:].strip()}")
        ranks = [json.loads((Path(name) / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
    return {
        kind: {
            "title": title,
            "ranks": [journals[kind] for journals in ranks],
            "explanation": explain([[Entry(**entry) for entry in journals[kind]] for journals in ranks]),
            "lesson": lesson,
        }
        for kind, (title, lesson) in FAULTS.items()
    }


FAULTS = {
    "skipped": (
        "one rank skips a collective",
        "A collective ends only when every rank has called it, so rank 0 waits until the time-out of the process group "
        "(10 minutes with NCCL and 30 with Gloo by default; here a few seconds). The cause is not where it waits but "
        "where the other rank went: usually a collective, a DDP forward pass, a checkpoint or a metric under "
        '`if rank == 0`, or ranks with different numbers of batches (tail="even" gives all ranks the same number). '
        "To find it in a real run: `py-spy dump --pid PID` on both ranks; with NCCL the flight recorder "
        "(TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1) writes each rank's last collectives on a time-out, "
        "and `torchfrtrace` compares them as is done here.",
    ),
    "different": (
        "ranks call different collectives, with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "Without this variable such ranks hang, or even exchange data that does not belong together. With it every "
        "collective is compared among all ranks first, and the error names both calls. It costs an extra exchange per "
        "collective: use it to find a fault, not in production.",
    ),
}
"""The faults shown: a title, and what there is to learn."""


def text(cases: dict[str, Any]) -> str:
    """Return the demonstration for people."""
    parts = []
    for case in cases.values():
        parts.append(f"== {case['title']} ==")
        for rank, entries in enumerate(case["ranks"]):
            parts += [
                textwrap.fill(
                    f"rank {rank}  {entry['number']}  {entry['collective']:<16} {entry['state']}",
                    100,
                    subsequent_indent=" " * 28,
                )
                for entry in entries
            ]
        parts += [case["explanation"], textwrap.fill(case["lesson"], 100), ""]
    return "\n".join(parts).rstrip()
