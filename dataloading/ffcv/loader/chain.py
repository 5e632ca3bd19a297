"""A pipeline of FFCV's as two parts: transforms of ours for the workers, and what is left to do on the batch.

An operation goes to the workers if the engine can do it there, and so did all before it. The rest runs on the finished
batch in the order of the list: the user's own operations, torch modules, and what follows them. So do a decoder of the
user's own, for which the engine gives the samples only, and a pipeline that begins behind an operation of another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
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
from dataloading.ffcv.fields.rgb_image import DifferentSizes, SimpleRGBImageDecoder
from dataloading.ffcv.memory_managers import MemoryManager
from dataloading.ffcv.pipeline.allocation_query import allocate
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import BatchContext, Operation, engine_does
from dataloading.ffcv.pipeline.pipeline_spec import PipelineSpec
from dataloading.ffcv.pipeline.state import INITIAL_STATE, State
from dataloading.ffcv.transforms.module import ModuleWrapper
from dataloading.ffcv.transforms.ops import ToTensor, ToTorchImage
from dataloading.transforms.rng import child

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
    memory : MemoryManager
    spec : PipelineSpec
        The user's operations.
    parent : Chain, optional
        The one that has the operation ``spec.source``, behind which this one begins.
    branches : collection of int
        Ids of the operations behind which others begin.
    """

    def __init__(
        self,
        name: str,
        source: str,
        memory: MemoryManager,
        spec: PipelineSpec,
        *,
        parent: Chain | None = None,
        branches: Collection[int] = (),
    ) -> None:
        self.name, self.source, self.spec = name, source, spec
        self._memory, self._parent, self._branches = memory, parent, branches
        self._reader = memory.reader
        self.field, self._handler = self._reader.stored[source], self._reader.handlers[source]
        operations: list[Any] = [ToTensor()] if spec.default_pipeline else list(spec.transforms)
        self.decoder: Any = None if parent else self._decoder(operations)
        self.operations = [self._checked(place, each) for place, each in enumerate(operations, 1)]
        self._widest = 0
        if isinstance(self.decoder, BytesDecoder) and self._reader.num_samples and self.is_engines:
            self._widest = int(self._reader.column(source)["size"].max())
        self.transforms: list[Any] = []
        self.code: dict[int, Any] = {}
        self._lower()
        self.generate_code()

    def _decoder(self, operations: list[Any]) -> Any:
        """Take the decoder out of the list, or make the field's own."""
        # Exactly: kinds of our own derive from these, and hold text, masks or images of other channels.
        default: Any = next((kind for kind in _DECODERS if type(self.field) in kind.stored), None)
        if isinstance(self.field, stored.CustomField) or self.source in self._reader.custom_records:
            default = self._handler.get_decoder_class()
        if default is None:
            raise UsageError(
                f"field '{self.source}' is of kind {type(self.field).__name__}, which FFCV does not have: read it with "
                f"dataloading.Loader, or leave it out with pipelines={{'{self.source}': None}}"
            )
        decoder = self.spec.decoder
        if decoder is None and operations and isinstance(operations[0], (Decoder, default)):
            decoder = operations.pop(0)
        try:
            decoder = default() if decoder is None else decoder
        except TypeError as error:
            raise UsageError(
                f"pipelines['{self.name}'] must begin with a decoder: {default.__name__}() cannot be made ({error})"
            ) from error
        fits = isinstance(decoder, Decoder) and type(self.field) in decoder.stored
        if isinstance(decoder, Decoder) and not fits and not isinstance(self.field, stored.CustomField):
            raise UsageError(
                f"pipelines['{self.name}'] begins with {type(decoder).__name__}, but '{self.source}' holds "
                f"{type(self.field).__name__}: begin with {default.__name__}"
            )
        self.is_engines = fits and engine_does(decoder)
        return decoder

    is_engines = False
    """Whether the engine delivers values. Otherwise it gives the samples, and the rest is done here."""

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

    def has_changed(self) -> bool:
        """Divide the list again; return whether the user has changed an operation such that it differs."""
        before = self.transforms, self._states
        self._lower()
        return before != (self.transforms, self._states)

    def _lower(self) -> None:
        """Divide the list as its operations are now."""
        self._image: ToTorchImage | None = None
        self.rest: list[tuple[int, Operation, State]] = []
        self._states: dict[int, State] = {}
        self.transforms, state, lowering = self._begin()
        self._cut, self._last = state, self.decoder
        self._states[id(self.decoder)] = state
        lowering = lowering and id(self.decoder) not in self._branches
        for place, operation in enumerate(self.operations, 1):
            together = self._with(operation, state) if lowering and engine_does(operation) else None
            if together is not None:
                self.transforms = together
                self._image = operation if isinstance(operation, ToTorchImage) else self._image
                state = self._cut = operation.after(state)  # type: ignore[attr-defined]
                self._last = operation
                lowering = id(operation) not in self._branches
            else:
                lowering = False
                self.rest.append((place, operation, state))
                state = self._state_behind(operation, state)
            self._states[id(operation)] = state

    def _with(self, operation: Any, state: State) -> list[Any] | None:
        """Return the workers' transforms with those of one more operation, or None if they cannot do it."""
        if self.holds_images and self._image is not None and isinstance(operation, ModuleWrapper):
            return operation.merged(self.transforms)
        lowered = operation.lowered(state)
        return self.transforms + lowered if lowered is not None and (self.holds_images or not lowered) else None

    def _begin(self) -> tuple[list[Any], State, bool]:
        """Return the engine's part of decoding, what comes out, and whether the workers can go on with it."""
        if self._parent is not None:
            return [], self._parent.state_behind(self.spec.source), False
        if not self.is_engines:
            return [], self._state_behind(self.decoder, INITIAL_STATE), False
        state = self.decoder.first(self.field)
        if state.shape is None and self.holds_images:
            state = replace(state, shape=self._stored_size)
        return self.decoder.transforms(), state, True

    @functools.cached_property
    def _stored_size(self) -> tuple[int, int, int]:
        column = self._reader.column(self.source)
        least, most = ([int(end(column[side])) for side in ("height", "width")] for end in (np.min, np.max))
        if least != most:
            raise DifferentSizes(
                f"SimpleRGBImageDecoder takes images of one size, but those of '{self.source}' have heights of "
                f"{least[0]} to {most[0]} and widths of {least[1]} to {most[1]} pixels: begin "
                f"pipelines['{self.name}'] with RandomResizedCropRGBImageDecoder or CenterCropRGBImageDecoder"
            )
        return most[0], most[1], 3

    def _state_behind(self, operation: Any, state: State) -> State:
        if engine_does(operation) and not isinstance(operation, Decoder):
            return operation.after(state)  # type: ignore[no-any-return]
        self._introduce(operation)
        return operation.declare_state_and_memory(state)[0]  # type: ignore[no-any-return]

    def state_behind(self, operation: Any) -> State:
        """Return what comes out of an operation of this pipeline."""
        return self._states[id(operation)]

    @property
    def seed(self) -> int | None:
        """The seed that FFCV-SSL's operations have on the workers; None: the loader's."""
        operations = [self.decoder, *self.operations[: len(self.operations) - len(self.rest)]]
        seeds = [seed for seed in (getattr(each, "seed", None) for each in operations) if seed is not None]
        if len(set(seeds)) < 2:
            return seeds[0] if seeds else None
        return int(functools.reduce(child, seeds))

    @property
    def holds_images(self) -> bool:
        """Whether the engine makes images for it."""
        return self.is_engines and isinstance(self.field, stored.ImageField)

    @property
    def device(self) -> torch.device:
        """Where the engine may deliver."""
        return self._cut.device

    @property
    def channels_last(self) -> bool:
        """Whether images are wanted in the order (N, H, W, C) in memory."""
        return self.holds_images and (self._image is None or self._image.channels_last)

    def generate_code(self) -> None:
        """Generate and compile the code of the user's own operations."""
        self.code = {}
        if self.decoder is not None and not self.is_engines:
            self.code[0] = self._generated(self.decoder, INITIAL_STATE)
        for place, operation, state in self.rest:
            if not engine_does(operation):
                self.code[place] = self._generated(operation, state)

    def _introduce(self, operation: Operation) -> None:
        """Tell an operation its field; several pipelines may hold one operation."""
        operation.accept_field(self._handler)
        operation.accept_globals(self._reader.column(self.source), self._memory.read)

    def _generated(self, operation: Operation, state: State) -> Any:
        self._introduce(operation)
        after, memory = operation.declare_state_and_memory(state)
        shared = operation.declare_shared_memory(state)
        code, fill = operation.generate_code(), operation.generate_code_for_shared_state()
        with_indices, with_counter = (bool(getattr(code, name, False)) for name in ("with_indices", "with_counter"))
        if after.jit_mode:
            code, fill = Compiler.compile(code), None if fill is None else Compiler.compile(fill)
        return code, fill, memory, shared, with_indices, with_counter

    def finish(self, delivered: Mapping[str, Any], context: BatchContext) -> Any:
        """Make the output of what our Loader delivered; a pipeline that this one begins in must be done before."""
        if self._parent is not None:
            values = context.behind[id(self.spec.source)]
        elif self.is_engines:
            values = self._as_ffcv_has_it(delivered[self.name if self.holds_images else self.source])
        else:
            values = self._guarded(0, self.decoder, lambda: self._decode(context))
        if id(self._last) in self._branches:
            context.behind[id(self._last)] = values
        for place, operation, _ in self.rest:
            context.place = place
            values = self._guarded(place, operation, functools.partial(self._do, place, operation, values, context))
            if id(operation) in self._branches:
                context.behind[id(operation)] = values
        return values

    def _do(self, place: int, operation: Any, values: Any, context: BatchContext) -> Any:
        if place in self.code:
            return self._run(place, operation, values, context)
        return operation.on_batch(values, context)

    def _guarded(self, place: int, operation: Operation, do: Callable[[], Any]) -> Any:
        """Do something; errors say where."""
        try:
            return do()
        except Exception as error:
            if isinstance(error, UsageError) and place not in self.code:
                raise
            raise TransformError(
                f"{type(error).__name__}: {error}",
                field=self.name,
                transform=f"pipelines['{self.name}'][{place}] ({type(operation).__name__})",
            ) from error

    def _as_ffcv_has_it(self, values: Any) -> Any:
        """Turn what our Loader delivered into what the lowered part gives in FFCV."""
        cut = self._cut
        values = self.decoder.delivered(values, self._widest)
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(values)
        if self.holds_images:
            if self._image is None:
                values = values.permute(0, 2, 3, 1).contiguous()
            elif not self._image.channels_last:
                values = values.contiguous()
        elif cut.shape is not None:
            values = values.reshape(len(values), *cut.shape)
        if cut.jit_mode:
            return values.cpu().numpy()
        return values.to(cut.device)

    def _decode(self, context: BatchContext) -> Any:
        """Run a decoder of the user's own."""
        code, fill, memory, shared, _, with_counter = self.code[0]
        state = self._memory.schedule_epoch([context.indices]).state
        arguments = [context.indices, allocate(memory, len(context.indices)), self._reader.column(self.source), state]
        if with_counter:
            arguments.append(context.step)
        arguments += self._shared(self.decoder, fill, shared, context)
        return _checked_rows(code(*arguments), len(context.indices))

    def _run(self, place: int, operation: Operation, values: Any, context: BatchContext) -> Any:
        """Run an operation of the user's own."""
        code, fill, memory, shared, with_indices, with_counter = self.code[place]
        arguments = [values, allocate(memory, len(values))]
        if with_indices:
            arguments.append(context.indices)
        if with_counter:
            arguments.append(context.step)
        arguments += self._shared(operation, fill, shared, context)
        return _checked_rows(code(*arguments), len(values))

    @staticmethod
    def _shared(operation: Operation, fill: Any, query: Any, context: BatchContext) -> list[Any]:
        """Return the memory that the pipelines share which hold an operation, filled once a batch."""
        if fill is None:
            return []
        if id(operation) not in context.shared:
            context.shared[id(operation)] = allocate(query, len(context.indices))
            fill(context.shared[id(operation)])
        return [context.shared[id(operation)]]


def _checked_rows(values: Any, rows: int) -> Any:
    if values is None or len(values) != rows:
        raise UsageError(f"it returned {type(values).__name__}, expected values for the {rows} rows of the batch")
    return values
