"""Host arrays to tensors on the device: pinned memory, a side stream, events. The only CUDA file.

The worker that completes a batch starts its copy on a side stream, so that it runs beside the caller's kernels. The
caller's stream waits for it by an event; the host never waits. Knows no fields and no samples.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch

from dataloading.checks import one_of
from dataloading.errors import UsageError

__all__ = ["MemoryFormat", "Sent", "Transfer", "as_tensor"]

MemoryFormat = Literal["contiguous", "channels_last"]

_VIEWS = {"float16": (np.float16, torch.float16), "bfloat16": (np.int16, torch.bfloat16)}


def as_tensor(array: npt.NDArray[Any], dtype: str | None = None) -> torch.Tensor:
    """Make a tensor over `array`'s memory; ``dtype`` "float16" or "bfloat16" reinterprets 16-bit storage.

    Examples
    --------
    >>> as_tensor(np.array([0x3F80], np.uint16), "bfloat16")
    tensor([1.], dtype=torch.bfloat16)
    """
    if dtype in _VIEWS and array.dtype == np.uint16:
        carrier, wanted = _VIEWS[dtype]
        tensor = torch.from_numpy(array.view(carrier))
        return tensor if tensor.dtype == wanted else tensor.view(wanted)
    return torch.from_numpy(array)


class Sent(NamedTuple):
    """A batch on its way; `Transfer.receive` makes it usable."""

    values: Sequence[Any]
    event: torch.cuda.Event | None


class Transfer:
    """Copies batches to one device.

    Parameters
    ----------
    device : str or torch.device
        "cpu" makes every method a no-op; "cuda" without an index is the device that is current now.
    memory_format : {"contiguous", "channels_last"}
        Layout of 4-dimensional tensors on a CUDA device, made there.

    Raises
    ------
    UsageError
        The device is not available, or the memory format unknown.
    """

    def __init__(self, device: str | torch.device = "cpu", memory_format: MemoryFormat = "contiguous") -> None:
        one_of("memory_format", memory_format, get_args(MemoryFormat))
        try:
            if not isinstance(device, (str, int, torch.device)) or isinstance(device, bool):
                raise TypeError("expected a name such as 'cuda:0'")
            chosen = torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"device={device!r} is not a torch device: {error}") from error
        if chosen.type == "cuda":
            if not torch.cuda.is_available():
                raise UsageError(f"device={device!r}, but torch sees no CUDA device here; pass device='cpu'")
            if chosen.index is None:
                chosen = torch.device("cuda", torch.cuda.current_device())
            if chosen.index >= torch.cuda.device_count():
                raise UsageError(f"device={device!r}, but there are {torch.cuda.device_count()} CUDA devices")
        elif chosen.type != "cpu":
            raise UsageError(f"device={device!r} is not supported: use 'cpu' and move the batches yourself, or 'cuda'")
        self.device = chosen
        self.memory_format: MemoryFormat = memory_format
        self._stream: torch.cuda.Stream | None = None
        self._lock = threading.Lock()
        # Host tensors must outlive their copies; dropping them is what lends their memory again.
        self._copying: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()

    @property
    def is_cuda(self) -> bool:
        """Whether batches leave the host."""
        return self.device.type == "cuda"

    def allocate(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocate pinned host memory, uint8 of shape (num_bytes,), in the context of the device."""
        with torch.cuda.device(self.device):
            pinned: npt.NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def send(self, values: Sequence[Any]) -> Sent:
        """Start copying the tensors among `values`; other values stay as they are. Any thread may call it."""
        if not self.is_cuda:
            return Sent(values, None)
        with self._lock, torch.cuda.device(self.device):
            if self._stream is None:
                # One for the loader's life: a stream per epoch would make the allocator's pools grow.
                self._stream = torch.cuda.Stream(self.device)
            self._reap()
            with torch.cuda.stream(self._stream):
                sent = [self._copy(value) if isinstance(value, torch.Tensor) else value for value in values]
                event = torch.cuda.Event()
                event.record(self._stream)
            self._copying.append((event, [value for value in values if isinstance(value, torch.Tensor)]))
        return Sent(sent, event)

    def receive(self, sent: Sent) -> Sequence[Any]:
        """Let the caller's current stream wait for the copy and use the tensors."""
        if sent.event is None:
            return sent.values
        current = torch.cuda.current_stream(self.device)
        current.wait_event(sent.event)
        for value in sent.values:
            if isinstance(value, torch.Tensor):
                # Allocated on the side stream: without this its memory could be reused under the caller's kernels.
                value.record_stream(current)
        with self._lock:
            self._reap()
        return sent.values

    def drain(self) -> None:
        """Wait for all copies and release the host memory they read."""
        with self._lock:
            for event, _ in self._copying:
                event.synchronize()
            self._copying.clear()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(self.device, non_blocking=True)
        if tensor.ndim == 4 and self.memory_format == "channels_last":
            moved = moved.contiguous(memory_format=torch.channels_last)
        return moved

    def _reap(self) -> None:
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
