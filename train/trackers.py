"""Where a run's figures go besides its log: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dataloading import UsageError

__all__ = ["TRACKERS", "Tracker", "make_trackers", "tracker_names"]

TRACKERS = ("tensorboard", "wandb")


class Tracker(Protocol):
    """A service that draws figures by step."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the figures of a step."""

    def close(self) -> None:
        """Write what is left."""


def tracker_names(text: str) -> list[str]:
    """Return the trackers that an option names.

    Raises
    ------
    UsageError
        There is none of that name.

    Examples
    --------
    >>> tracker_names("tensorboard,wandb"), tracker_names("")
    (['tensorboard', 'wandb'], [])
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"--track is {text!r}; expected names of {', '.join(TRACKERS)}, separated by commas")
    return names


def make_trackers(text: str, output: Path | None, config: Mapping[str, Any]) -> list[Tracker]:
    """Return the trackers of a run.

    Parameters
    ----------
    text : str
        Value of ``--track``.
    output : Path or None
        Folder of the run.
    config : mapping
        The run's options, for its page.

    Raises
    ------
    UsageError
        A tracker is not installed, or there is no folder for it.
    """
    made: list[Tracker] = []
    for name in tracker_names(text):
        if output is None:
            raise UsageError(f"--track {name} writes to --output, which is missing")
        try:
            made.append(_TensorBoard(output) if name == "tensorboard" else _WandB(output, config))
        except ImportError as error:
            raise UsageError(f"--track {name} needs {name} ({error}); pip install {name}") from error
    return made


class _TensorBoard:
    def __init__(self, output: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(output / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, output: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(project="beton", dir=str(output), config=dict(config))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
