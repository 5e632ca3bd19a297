"""Loss and accuracy, unbiased by padding and uneven batches; and the log of a run.

The sums are one small float64 tensor, reduced over ranks once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn import functional

from .distributed import sum_over_ranks
from .trackers import Tracker


class Tally:
    """Sums over this rank's images; means are computed after the reduction over ranks."""

    def __init__(self, device: torch.device) -> None:
        # count, loss, top-1 hits, top-5 hits
        dtype = torch.float64
        self.sums = torch.zeros(4, dtype=dtype, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor, num_valid: int, losses: torch.Tensor) -> None:
        """Count the first `num_valid` rows of a batch: logits (N, C), labels (N,), the loss of each row (N,)."""
        logits, labels = logits[:num_valid].float(), labels[:num_valid]
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        count = self.sums.new_tensor(num_valid)
        self.sums += torch.stack(
            [count, losses[:num_valid].detach().double().sum(), best[:, :1].sum().double(), best.sum().double()]
        )

    def result(self) -> dict[str, float]:
        """Return ``num_images, loss, top1, top5`` over all ranks; accuracies in percent."""
        count, loss, top1, top5 = sum_over_ranks(self.sums).tolist()
        divisor = max(count, 1.0)
        return {
            "num_images": int(count),
            "loss": loss / divisor,
            "top1": 100.0 * top1 / divisor,
            "top5": 100.0 * top5 / divisor,
        }


def row_losses(logits: torch.Tensor, targets: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Return the cross entropy of each row in float32, for labels or for target probabilities."""
    return functional.cross_entropy(logits.float(), targets, label_smoothing=label_smoothing, reduction="none")


class RunLog:
    """The log of rank 0: JSON lines in a file, short readable lines on stderr; other ranks log nothing.

    Parameters
    ----------
    path : Path or None
        The file; lines are appended, each with its ``event``.
    active : bool
        False on all ranks but the first.
    stream : TextIO, optional
        Destination of the readable lines.
    """

    def __init__(self, path: Path | None, *, active: bool, stream: TextIO | None = None) -> None:
        self._active = active
        self._stream = stream if stream is not None else sys.stderr
        self.trackers: Sequence[Tracker] = ()
        self._file: TextIO | None = None
        if active and path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def record(self, event: str, **values: Any) -> None:
        """Write one JSON line, and send its figures to the trackers."""
        step = values.get("step")
        if self.trackers and step is not None and event in _TRACKED:
            figures = _figures(event, values)
            for tracker in self.trackers:
                tracker.log(figures, int(step))
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()

    def say(self, text: str) -> None:
        """Write one readable line."""
        if self._active:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


_TRACKED = ("step", "meters", "epoch", "eval")


def _figures(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record by their path, as ``step/parts_s/forward``."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _figures(f"{prefix}/{name}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
            found[f"{prefix}/{name}"] = float(value)
    return found


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log; an incomplete last line (the writer was killed) is dropped."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.endswith("\n")]
