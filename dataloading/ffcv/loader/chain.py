"""A pipeline of FFCV's as two parts: transforms of ours for the workers, and what is left to do on the batch.

An operation goes to the workers if the engine can do it there, and so did all before it. The rest runs on the finished
batch in the order of the list: the user's own operations, torch modules, and what follows them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataloading import format as stored
from dataloading.errors import TransformError, UsageError
from dataloading.ffcv.fields.base import Decoder
from dataloading.ffcv.fields.basics import FloatDecoder, IntDecoder
from dataloading.ffcv.fields.bytes import BytesDecoder
from dataloading.ffcv.fields.ndarray import NDArrayDecoder
from dataloading.ffcv.fields.rgb_image import SimpleRGBImageDecoder
from dataloading.ffcv.pipeline.allocation_query import allocate
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import BatchContext, EngineOperation, Operation
from dataloading.ffcv.pipeline.state import State
from dataloading.ffcv.reader import Reader
from dataloading.ffcv.transforms.module import ModuleWrapper
from dataloading.ffcv.transforms.ops import ToTensor, ToTorchImage

__all__ = ["Chain"]

_DECODERS: tuple[type[Decoder], ...] = (
    IntDecoder,
    FloatDecoder,
    NDArrayDecoder,
    BytesDecoder,
    SimpleRGBImageDecoder,
)


class Chain:
    """How one output is made.

    Parameters
    ----------
    name : str
        Of the output.
    source : str
        Name of its field.
    reader : Reader
    given : sequence of operations, or None
        The user's list; None is the default, which makes tensors.
    """

    def __init__(self, name: str, source: str, reader: Reader, given: Sequence[Any] | None) -> None:
        self.name, self.source, self._reader = name, source, reader
        self._field = reader.handlers[source]
        # Exactly: kinds of our own derive from these, and hold text, masks or images of other channels.
        default = next((kind for kind in _DECODERS if type(self._field) in kind.stored), None)
        if default is None:
            raise UsageError(
                f"field '{source}' is of kind {type(self._field).__name__}, which FFCV does not have: read it with "
                f"dataloading.Loader, or leave it out with pipelines={{'{source}': None}}"
            )
        operations: list[Any] = [ToTensor()] if given is None else list(given)
        first = operations[0] if operations else None
        self.decoder: Decoder = operations.pop(0) if isinstance(first, Decoder) else default()
        if type(self._field) not in self.decoder.stored:
            raise UsageError(
                f"pipelines['{name}'] begins with {type(self.decoder).__name__}, but '{source}' holds "
                f"{type(self._field).__name__}: begin with {default.__name__}"
            )
        self.operations = [self._checked(place, each) for place, each in enumerate(operations, 1)]
        self._code: dict[int, Any] = {}
        self._widest = 0
        if isinstance(self.decoder, BytesDecoder) and reader.num_samples:
            self._widest = int(reader.column(source)["size"].max())
        self.transforms: list[Any] = []
        self.lower()

    def _checked(self, place: int, given: Any) -> Operation:
        if isinstance(given, Decoder):
            raise UsageError(
                f"pipelines['{self.name}'][{place}] is the decoder {type(given).__name__}: put it first in the list"
            )
        if isinstance(given, type):
            raise UsageError(f"pipelines['{self.name}'][{place}] is a class: write {given.__name__}(...)")
        if isinstance(given, Operation):
            return given
        if callable(given):
            return ModuleWrapper(given)
        raise UsageError(
            f"pipelines['{self.name}'][{place}] must be an Operation or a torch module, got {type(given).__name__}"
        )

    def lower(self) -> list[Any]:
        """Divide the list as its operations are now; return the part for the workers."""
        state = self.decoder.first(self._field)
        ours = self.decoder.transforms()
        if state.shape is None and isinstance(self._field, stored.ImageField):
            state = replace(state, shape=self._stored_size)
        self._image: ToTorchImage | None = None
        self.rest: list[tuple[int, Operation, State]] = []
        self._cut = state
        for place, operation in enumerate(self.operations, 1):
            lowered = operation.lowered(state) if _is_ours(operation) and not self.rest else None  # type: ignore[attr-defined]
            if lowered is not None and (isinstance(self._field, stored.ImageField) or not lowered):
                ours += lowered
                self._image = operation if isinstance(operation, ToTorchImage) else self._image
                state = self._cut = operation.after(state)  # type: ignore[attr-defined]
            else:
                self.rest.append((place, operation, state))
                state = self._state_behind(operation, state)
        self.transforms = ours
        return ours

    @functools.cached_property
    def _stored_size(self) -> tuple[int, int, int]:
        column = self._reader.column(self.source)
        least, most = ([int(end(column[side])) for side in ("height", "width")] for end in (np.min, np.max))
        if least != most:
            raise UsageError(
                f"SimpleRGBImageDecoder takes images of one size, but those of '{self.source}' have heights of "
                f"{least[0]} to {most[0]} and widths of {least[1]} to {most[1]} pixels: begin "
                f"pipelines['{self.name}'] with RandomResizedCropRGBImageDecoder or CenterCropRGBImageDecoder"
            )
        return most[0], most[1], 3

    def _state_behind(self, operation: Operation, state: State) -> State:
        if _is_ours(operation):
            return operation.after(state)  # type: ignore[attr-defined, no-any-return]
        operation.accept_field(self._field)
        operation.accept_globals(self._reader.column(self.source), None)
        after: State = operation.declare_state_and_memory(state)[0]
        return after

    @property
    def device(self) -> torch.device:
        """Where the engine may deliver."""
        return self._cut.device

    @property
    def channels_last(self) -> bool:
        """Whether images are wanted in the order (N, H, W, C) in memory."""
        return isinstance(self._field, stored.ImageField) and (self._image is None or self._image.channels_last)

    def forget_code(self) -> None:
        """Generate the code of the user's operations again."""
        self._code.clear()

    def finish(self, values: Any, context: BatchContext) -> Any:
        """Do the rest on what our Loader delivered."""
        values = self._as_ffcv_has_it(values)
        for place, operation, state in self.rest:
            context.place = place
            try:
                if _is_ours(operation):
                    values = operation.on_batch(values, context)  # type: ignore[attr-defined]
                else:
                    values = self._run(place, operation, state, values, context)
            except Exception as error:
                if isinstance(error, UsageError) and _is_ours(operation):
                    raise
                raise TransformError(
                    f"{type(error).__name__}: {error}",
                    field=self.name,
                    transform=f"pipelines['{self.name}'][{place}] ({type(operation).__name__})",
                ) from error
        return values

    def _as_ffcv_has_it(self, values: Any) -> Any:
        """Turn what our Loader delivered into what the lowered part gives in FFCV."""
        cut = self._cut
        values = self.decoder.delivered(values, self._widest)
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(values)
        if isinstance(self._field, stored.ImageField):
            if self._image is None:
                values = values.permute(0, 2, 3, 1).contiguous()
            elif not self._image.channels_last:
                values = values.contiguous()
        elif cut.shape is not None:
            values = values.reshape(len(values), *cut.shape)
        if cut.jit_mode:
            return values.cpu().numpy()
        return values.to(cut.device)

    def _run(self, place: int, operation: Operation, state: State, values: Any, context: BatchContext) -> Any:
        """Run an operation of the user's own."""
        rows = len(values)
        if place not in self._code:
            operation.accept_field(self._field)
            operation.accept_globals(self._reader.column(self.source), None)
            after, memory = operation.declare_state_and_memory(state)
            shared = operation.declare_shared_memory(state)
            code, fill = operation.generate_code(), operation.generate_code_for_shared_state()
            with_indices = bool(getattr(code, "with_indices", False))
            if after.jit_mode:
                code, fill = Compiler.compile(code), None if fill is None else Compiler.compile(fill)
            self._code[place] = code, fill, memory, shared, with_indices
        code, fill, memory, shared, with_indices = self._code[place]
        arguments = [values, allocate(memory, rows)]
        if with_indices:
            arguments.append(context.indices)
        if fill is not None:
            if id(operation) not in context.shared:
                context.shared[id(operation)] = allocate(shared, rows)
                fill(context.shared[id(operation)])
            arguments.append(context.shared[id(operation)])
        result = code(*arguments)
        if result is None or len(result) != rows:
            raise UsageError(f"it returned {type(result).__name__}, expected values for the {rows} rows of the batch")
        return result


def _is_ours(operation: Operation) -> bool:
    """Whether the engine does the work: not where a class of the user's own has code for it."""
    return isinstance(operation, EngineOperation) and type(operation).generate_code is EngineOperation.generate_code
