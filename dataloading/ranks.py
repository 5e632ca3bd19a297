"""Which rank this process is, and how many there are: from arguments, torch.distributed or the launcher.

torch is only looked at if the process has imported it already. Knows no data.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from dataloading.errors import UsageError

__all__ = ["Ranks", "find_ranks"]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The place of a process among its peers.

    Parameters
    ----------
    rank, world_size : int
    source : str
        Where the two numbers come from, in words.
    local_world_size : int
        Ranks on this machine.
    """

    rank: int
    world_size: int
    source: str
    local_world_size: int

    @property
    def num_local_cores(self) -> int:
        """Cores the process may use, shared among the ranks of this machine, at least 1."""
        return max(1, len(os.sched_getaffinity(0)) // self.local_world_size)

    def check_unchanged(self) -> None:
        """Refuse to go on with ranks that torch.distributed contradicts: ranks would read each other's samples.

        Raises
        ------
        UsageError
            The process group was initialised after the loader was made, with other numbers.
        """
        group = _process_group()
        if self.source != "arguments" and group is not None and group != (self.rank, self.world_size):
            raise UsageError(
                f"the loader was made for rank {self.rank} of {self.world_size} ({self.source}), but "
                f"torch.distributed now says rank {group[0]} of {group[1]}: "
                f"call init_process_group before making the loader, or pass rank= and world_size="
            )


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Find this process's rank: arguments, else torch.distributed, else torchrun's variables, else 0 of 1.

    Raises
    ------
    UsageError
        Only one of the two is given, or they do not fit each other.
    """
    local = _environment("LOCAL_WORLD_SIZE") or 1
    if (rank is None) != (world_size is None):
        raise UsageError(f"pass rank= and world_size= together, got rank={rank} and world_size={world_size}")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank={rank} must be in 0..{world_size - 1}, as world_size is {world_size}")
        return Ranks(rank=rank, world_size=world_size, source="arguments", local_world_size=local)
    group = _process_group()
    if group is not None:
        return Ranks(rank=group[0], world_size=group[1], source="torch.distributed", local_world_size=local)
    environment = _environment("RANK"), _environment("WORLD_SIZE")
    if environment[0] is not None and environment[1] is not None:
        # A launcher started several processes: reading everything on each of them would go unnoticed.
        return Ranks(rank=environment[0], world_size=environment[1], source="RANK, WORLD_SIZE", local_world_size=local)
    return Ranks(rank=0, world_size=1, source="a single process", local_world_size=local)


def _process_group() -> tuple[int, int] | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _environment(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"the environment variable {name}={value!r} is not a number") from None
