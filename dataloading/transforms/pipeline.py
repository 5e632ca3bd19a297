"""A list of transforms, checked and compiled: geometry into the decoder's requests, pixels into the runner's program.

It owns the order of operations and the buffers between them. It knows no file, no sampler and no thread: its
three entry points are pure functions of their arguments, and any number of threads may call them at once.

The list is cut into three parts::

    geometry at the front  -> plan()             columns of the decoder's requests: costs no pass over pixels
    our pixel transforms   -> run()              one call for many samples: all operations of a sample in a row
    from the first torch   -> batch_transforms   applied to the batched tensors by the Loader
    module or batch-level
    transform on

Flips that stand behind transforms to which left and right are the same (``PixelOp.mirrors``) move to the front.
Each transform draws from its own random stream, keyed by (sample key, position in the list), so moving it, or
grouping samples differently, changes no number.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import AugmentProgram, BoxesOfSamples, Draws, RequestPlanner
from dataloading.errors import UsageError
from dataloading.transforms.base import (
    ROW_LENGTH,
    STORAGE_DTYPES,
    BatchOp,
    FieldOp,
    Geometry,
    ImageState,
    PixelOp,
    Placeholder,
)
from dataloading.transforms.compose import Compose, written_out
from dataloading.transforms.custom import Collation
from dataloading.transforms.device import BatchProgram, leaf_without_form
from dataloading.transforms.foreign import check_callable, name_of
from dataloading.transforms.geometry import (
    CENTER_CROP,
    CORNER_CROP,
    CROP_AROUND_BOX,
    HORIZONTAL_FLIP,
    IOU_CROP,
    RANDOM_RESIZED_CROP,
    RESIZE,
    RESIZE_LONG,
    RESIZE_SHORT,
    SCALE_JITTER,
    SHORTEST_SIZE,
    VERTICAL_FLIP,
)
from dataloading.transforms.matrices import Move, check_movable, moves_of_requests, moves_of_tapes
from dataloading.transforms.operation import Node
from dataloading.transforms.program import DoesNotCompile, Program

__all__ = ["Pipeline", "PipelineFault"]

MAX_CHANNELS = 16
_EXAMPLE_SIDE = 1024  # images of any size are tried out with this one
_MOST_SIZES = 1024  # pipelines of one size to keep
_WHITE = {"uint8": 255.0, "uint16": 65535.0, "float32": 1.0}


class PipelineFault(Exception):  # noqa: N818 (a report between two layers; the Loader raises SampleError)
    """One sample of a group failed; the ones before it are done.

    Parameters
    ----------
    position : int
        Its row in the arrays that were passed.
    cause : BaseException
        What was raised.
    transform : str
        Name and place of the transform that failed.
    """

    def __init__(self, position: int, cause: BaseException, transform: str) -> None:
        self.position = position
        self.cause = cause
        self.transform = transform
        super().__init__(f"{transform}: {cause}")


class Pipeline:
    """Transforms of one image field, ready to run.

    Parameters
    ----------
    transforms : sequence
        Transforms of ``dataloading.transforms``, then torch modules, other callables or batch-level transforms.
    channels : int
        Of the decoded images, 1 to 16.
    source_size : (int, int), optional
        (height, width), where all images of the field have one size.
    dtype : {"uint8", "uint16", "int64", "float32"}
        Of the decoded images: int64 are label maps, float32 has values from 0 to 1.
    decodes : bool
        Whether geometry at the front becomes part of decoding. False: images come as they are, of ``source_size``.
    on_device : bool
        Whether to leave the end of the list, as far as that is possible, to ``on_batch``: not for images of any size.

    Attributes
    ----------
    decode_shape : (int, int, int)
        Channels, height and width of the image that the decoder writes.
    decode_dtype : numpy.dtype
        Of that image.
    out_shape : (int, int, int)
        Of the image that comes out of ``run``.
    out_dtype : str
        "uint8", "float32", "float16" or "bfloat16"; or the dtype that came in.
    storage_dtype : numpy.dtype
        Of the output array: uint16 holds the bits of float16 and bfloat16.
    in_place : bool
        True: ``run`` changes pixels in place or not at all, so the decoder may write straight to the output slot.
    operations : tuple of str
        Names of the operations on pixels that can happen, in the order of the list.
    reads_boxes : bool
        ``plan`` needs the boxes of the samples.
    on_batch : BatchProgram or None
        What is left to do on the batch that ``run`` gives, wherever it is, before ``batch_transforms``.
    collation : AsList, PadBatch or None
        The last of the list, where images may have sizes of their own.
    varies : bool
        They do: pixels are the work of ``of_size(height, width)``, the pipeline for decoded images of one size.
    batch_transforms : tuple
        What is left to be applied to the batch, in order.

    Raises
    ------
    UsageError
        For a list that cannot work, naming the transform, its position and the fix.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> pipeline = Pipeline([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25)])
    >>> pipeline.decode_shape, pipeline.out_dtype, pipeline.in_place
    ((3, 224, 224), 'float32', False)
    """

    def __init__(
        self,
        transforms: Sequence[object],
        *,
        channels: int = 3,
        source_size: tuple[int, int] | None = None,
        dtype: str = "uint8",
        decodes: bool = True,
        on_device: bool = False,
    ) -> None:
        transforms = transforms.transforms if isinstance(transforms, Compose) else transforms
        if isinstance(transforms, (str, bytes)) or not isinstance(transforms, Sequence):
            raise UsageError(f"transforms must be a list, got {type(transforms).__name__}. Write [transform, ...]")
        if not 1 <= channels <= MAX_CHANNELS:
            raise UsageError(f"channels must be 1 to {MAX_CHANNELS}, got {channels}")
        self.transforms = tuple(written_out(transforms))
        self._on_device = on_device
        ours = self._split()
        self.decode_dtype = np.dtype(STORAGE_DTYPES[dtype])
        state = ImageState(channels, dtype=dtype, bound=_WHITE.get(dtype))
        for position, transform in ours:
            self._check_images(position, transform, state)
        if source_size is not None:
            height, width = source_size
            state = state.replace(height=height, width=width, min_side=min(height, width))
        state = self._lower(ours, state, decodes=decodes)
        self._build(ours, state)

    def __repr__(self) -> str:
        return f"Pipeline({list(self.transforms)!r})"

    def _where(self, position: int) -> str:
        return f"transform {position} ({name_of(self.transforms[position])})"

    def _split(self) -> list[tuple[int, Geometry | PixelOp]]:
        """Return our transforms with their positions; set ``batch_transforms`` to the rest."""
        ours: list[tuple[int, Geometry | PixelOp]] = []
        first_other: int | None = None
        self.collation: Collation | None = None
        for position, transform in enumerate(self.transforms):
            if isinstance(transform, Placeholder):
                continue
            if isinstance(transform, Collation):
                if position != len(self.transforms) - 1 or first_other is not None:
                    raise UsageError(
                        f"{self._where(position)} must be the last of the list, with no torch module or batch-level "
                        f"transform before it"
                    )
                self.collation = transform
                continue
            if isinstance(transform, (Geometry, PixelOp)):
                if first_other is not None:
                    raise UsageError(
                        f"{self._where(position)} works on single images, but stands behind "
                        f"{self._where(first_other)}, which works on the batch. Move it before that"
                    )
                ours.append((position, transform))
            else:
                if isinstance(transform, FieldOp):
                    raise UsageError(
                        f"{self._where(position)} works on labels and other values, not on images. Put it into the "
                        f"list of another field"
                    )
                if not isinstance(transform, BatchOp):
                    check_callable(transform, position)
                first_other = position if first_other is None else first_other
        self.batch_transforms: tuple[object, ...] = () if first_other is None else self.transforms[first_other:]
        return ours

    def _check_images(self, position: int, transform: Geometry | PixelOp, state: ImageState) -> None:
        """Refuse what the decoded images are too deep, or have too many channels, for."""
        if isinstance(transform, Geometry):
            fill = getattr(transform, "fill", 0)
            if state.channels != 3 and not isinstance(fill, (int, float)) and len(set(fill)) > 1:
                raise UsageError(
                    f"{self._where(position)} fills with {fill}, but the images do not have 3 channels: they have "
                    f"{state.channels}. Give it one number"
                )
        else:
            self._checked(position, transform.check_images, state)

    def _lower(self, ours: list[tuple[int, Geometry | PixelOp]], state: ImageState, *, decodes: bool) -> ImageState:
        """Move geometry that can be part of decoding from ``ours`` to the plan."""
        codes: list[int] = []
        positions: list[int] = []
        rows: list[list[float]] = []
        pixels: list[tuple[int, Geometry | PixelOp]] = []
        for position, transform in ours:
            if decodes and isinstance(transform, Geometry):
                # A flip changes nothing a transform that mirrors could notice: same pixels, whichever comes first.
                is_flip = transform.name in ("RandomHorizontalFlip", "RandomVerticalFlip")
                movable = is_flip and all(isinstance(op, PixelOp) and op.mirrors for _, op in pixels)
                if not pixels or movable:
                    code, row, state = self._checked(position, transform.lower, state)
                    codes.append(code)
                    positions.append(position)
                    rows.append(row)
                    continue
            pixels.append((position, transform))
        self.varies = self.collation is not None and (state.height is None or state.width is None)
        if self.varies:
            if self._on_device:
                raise UsageError('place="device" needs images of one size, and these have sizes that differ')
            self._pixels, self._before = tuple(pixels), state
            self._sizes: dict[tuple[int, int], Pipeline] = {}
            side = max(state.min_side, _EXAMPLE_SIDE)
            state = state.replace(height=side, width=side)
        if state.height is None or state.width is None:
            raise UsageError(
                f"the images of a batch must have one size, but after "
                f"{self._where(positions[-1]) if positions else 'decoding'} they have {state.size_text}. Start the "
                f"list with RandomResizedCrop(size), or Resize(size) and CenterCrop(size), of dataloading.transforms "
                f"(a torch module works on the finished batch, too late for this); or end it with AsList() or "
                f"PadBatch(), for images of any size"
            )
        ours[:] = pixels
        self._codes = np.array(codes, dtype=np.int64)
        self.reads_boxes = IOU_CROP in codes or CROP_AROUND_BOX in codes
        self._positions = np.array(positions, dtype=np.int64)
        self._rows = np.array(rows, dtype=np.float64).reshape(len(codes), ROW_LENGTH)
        self._planner = RequestPlanner(self._codes, self._positions, self._rows)
        self.decode_shape = (state.channels, state.height, state.width)
        return state

    def _checked(self, position: int, method: Callable[[ImageState], Any], state: ImageState) -> Any:
        try:
            return method(state)
        except UsageError as error:
            raise UsageError(f"transform {position}: {error}") from None

    def _build(self, ours: list[tuple[int, Geometry | PixelOp]], state: ImageState) -> None:
        """Turn the pixel transforms into a program, and set what is known of the output."""
        before = state
        nodes: list[Node] = []
        for position, transform in ours:
            node: Node = self._checked(position, functools.partial(transform.node, place=position), state)
            nodes.append(node)
            state = node.after
        cut = self._cut(nodes) if self._on_device and self.collation is None else len(nodes)
        last = nodes[cut - 1].after if cut else before
        self._program = Program(Node("sequence", "", before, last, children=tuple(nodes[:cut])))
        self._drawn, self.on_batch = self._program, None
        if cut < len(nodes):
            whole = Node("sequence", "", before, state, children=tuple(nodes))
            self._drawn = Program(whole, draws_only=True)
            self.on_batch = BatchProgram(self._drawn, len(self._program.leaves))
        assert last.height is not None and last.width is not None
        self.operations = tuple(leaf.name for leaf in self._program.leaves)
        self.out_shape = (last.channels, last.height, last.width)
        self.out_dtype = last.dtype
        self.storage_dtype: np.dtype[Any] = np.dtype(STORAGE_DTYPES[last.dtype])
        self._dtypes = self.decode_dtype, np.dtype(np.uint64), self.storage_dtype
        self.in_place = self._program.in_place
        if self.batch_transforms and isinstance(self.batch_transforms[0], BatchOp):
            # Behind a torch module nobody knows what the images are.
            self._checked(self.transforms.index(self.batch_transforms[0]), self.batch_transforms[0].check, state)

    def _cut(self, nodes: Sequence[Node]) -> int:
        """Return how many transforms of pixels the workers do, where the rest is done on the device."""
        cut = len(nodes)
        while cut and leaf_without_form(nodes[cut - 1]) is None:
            cut -= 1
        if nodes and cut == len(nodes):
            leaf = leaf_without_form(nodes[-1])
            assert leaf is not None
            node, inside = nodes[-1], "" if leaf is nodes[-1] else f" (in it {leaf.name})"
            raise UsageError(
                f'place="device" does the end of the list on the device, but its last transform there, '
                f"{self._where(int(node.place or 0))}{inside}, has no form for batches of {leaf.before.dtype}. Move it "
                f'further to the front, or leave out place="device"'
            )
        return cut

    def of_size(self, height: int, width: int) -> Pipeline:
        """Return the pipeline for decoded images of this size, where ``varies``. Any number of threads may call it.

        Raises
        ------
        UsageError
            Where a transform cannot work on images of this size.
        """
        found = self._sizes.get((height, width))
        if found is None:
            found = copy.copy(self)
            found.varies = False
            found.decode_shape = (self.decode_shape[0], height, width)
            found._build(list(self._pixels), self._before.replace(height=height, width=width))
            if len(self._sizes) >= _MOST_SIZES:
                self._sizes.clear()
            self._sizes[height, width] = found
        return found

    # -- hop 3: what to decode ----------------------------------------------------------------------------------

    def plan(
        self,
        keys: npt.NDArray[np.uint64],
        requests: npt.NDArray[Any],
        start: int = 0,
        boxes: BoxesOfSamples | None = None,
    ) -> None:
        """Draw the geometry of each sample and write it to the decoder's requests.

        Parameters
        ----------
        keys : ndarray of uint64, shape (n,)
            From ``sample_keys``.
        requests : ndarray of the decoder's REQUEST, shape (n,), contiguous
            With the sizes of the stored images, src_width and src_height. The columns box, scaled, window, out,
            pad_mode, fill, flip, interpolation and antialias are written.
        start : int
            First row to plan.
        boxes : BoxesOfSamples, optional
            Where ``reads_boxes``: those of each sample.

        Raises
        ------
        PipelineFault
            For the first sample whose image does not suit the transforms, say one smaller than a RandomCrop.
        """
        failure = self._planner.plan(keys, requests, start, boxes)
        if failure is not None:
            raise PipelineFault(failure.sample, ValueError(failure.reason), self._where(failure.position))

    # -- hop 4: pixels ------------------------------------------------------------------------------------------

    def run(
        self,
        decoded_NCHW: npt.NDArray[np.uint8],
        keys: npt.NDArray[np.uint64],
        out_NCHW: npt.NDArray[Any],
        start: int = 0,
        *,
        draws: Draws | None = None,
        indices: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Apply the pixel transforms to each sample.

        Parameters
        ----------
        decoded_NCHW : ndarray of decode_dtype, shape (n, *decode_shape), contiguous
            What the decoder wrote. Scratch: its contents are undefined afterwards.
        keys : ndarray of uint64, shape (n,)
            From ``sample_keys``.
        out_NCHW : ndarray of storage_dtype, shape (n, *out_shape), contiguous
            Written. May be ``decoded_NCHW`` itself where ``in_place``.
        start : int
            First row to work on: pass ``fault.position + 1`` to go on behind a sample that failed.
        draws : Draws, optional
            What to do, as ``draw`` returns it; by default it is drawn from ``keys``.
        indices : ndarray of int64, shape (n,), optional
            Numbers of the samples, where ``picks``.

        Raises
        ------
        PipelineFault
            For the first sample on which a transform raised; the rows before it are done.
        """
        self._check_arrays(decoded_NCHW, keys, out_NCHW)
        if not self.operations:
            if decoded_NCHW.ctypes.data != out_NCHW.ctypes.data:
                out_NCHW[start:] = decoded_NCHW[start:]
            return
        if self.on_batch is not None:
            draws = None  # they are of the whole list
        if draws is None and self._program.picks:
            draws = self._draw(self._program, keys, indices)
        failure = self._compiled().run(keys, decoded_NCHW, out_NCHW, start, draws)
        if failure is not None:
            leaf, error = self._program.failure_of(failure)
            raise PipelineFault(failure.sample, error, self._where_is(leaf)) from error

    def draw(self, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64] | None = None) -> Draws:
        """Return what samples with these keys draw for the pixel transforms, without touching a pixel.

        ``run`` draws the same, and takes the same ``indices``. `params_of` tells what the numbers mean.
        """
        return self._draw(self._drawn, keys, indices)

    def _draw(self, program: Program, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64] | None) -> Draws:
        draws = self._compiled(program).draw(keys)
        if not program.picks:
            return draws
        if indices is None:
            raise ValueError("the transforms depend on the numbers of the samples: indices are needed")
        return program.picked(draws, indices)

    def params_of(self, draws: Draws) -> dict[str, npt.NDArray[np.float64]]:
        """Return drawn params by name.

        Returns
        -------
        dict of str to ndarray of float64, shape (n,)
            "place.transform.param", such as "2.RandomErasing.top"; NaN for samples to which it did not happen. A
            transform that draws nothing but whether it happens has no param in its name, and bool.
        """
        program = self._drawn
        starts = program.params_at()
        result = {}
        for number, (leaf, names) in enumerate(zip(program.leaves, program.names(), strict=True)):
            assert leaf.operation is not None
            happened = (draws.tapes == number).any(axis=1)
            certain = leaf.p is None and leaf.operation.only is None and len(program.path_of(leaf)) <= 2
            if not names and not certain:
                result[".".join(program.path_of(leaf))] = happened
            for k, name in enumerate(names):
                path = program.path_of(leaf)
                place = ".".join(path if path[-1] == name else (*path, name))
                result[place] = np.where(happened, draws.params[:, starts[number] + k], np.nan)
        return result

    def drawn(
        self,
        requests: npt.NDArray[np.void],
        keys: npt.NDArray[np.uint64],
        boxes: BoxesOfSamples | None = None,
        indices: npt.NDArray[np.int64] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return all that samples with these planned requests and keys draw, by name and in the order of the list.

        Returns
        -------
        dict of str to ndarray, length n
            Of flips "place.transform", bool. Of crops the same, int64 of shape (n, 4): top, left, height and width of
            the part that is shown, in pixels of the stored image, or of the resized one behind a resize. Of random
            resizes int64 of shape (n, 2): height and width. Of pixel transforms as `params_of`.
        """
        result = self._drawn_geometry(requests, keys, boxes)
        if self.varies:
            sizes = np.stack([requests["out_h"], requests["out_w"]], axis=1)
            for size in np.unique(sizes, axis=0):
                rows = (sizes == size).all(axis=1)
                some = None if indices is None else indices[rows]
                try:
                    # Rows that failed have no size.
                    part = self.of_size(*size.tolist())._drawn_pixels(keys[rows], some) if size.min() > 0 else {}
                except UsageError:  # on such images a transform cannot work: these rows will fail
                    continue
                for name, values in part.items():
                    empty = np.zeros(len(keys), values.dtype) if values.dtype == bool else np.full(len(keys), np.nan)
                    result.setdefault(name, empty)[rows] = values
        else:
            result |= self._drawn_pixels(keys, indices)
        return dict(sorted(result.items(), key=lambda item: int(item[0].partition(".")[0])))

    def _drawn_pixels(
        self, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64] | None
    ) -> dict[str, npt.NDArray[Any]]:
        return self.params_of(self.draw(keys, indices)) if self._drawn.leaves else {}

    def _drawn_geometry(
        self, requests: npt.NDArray[np.void], keys: npt.NDArray[np.uint64], boxes: BoxesOfSamples | None
    ) -> dict[str, npt.NDArray[Any]]:
        """Plan with the first operation, the first two and so on, and look what each has added."""
        result: dict[str, npt.NDArray[Any]] = {}
        flips = np.zeros(len(requests), requests["flip"].dtype)
        for k, code in enumerate(self._codes.tolist()):
            if code == CORNER_CROP:
                flips ^= int(self._rows[k, 4])
            if code in (RESIZE, RESIZE_SHORT, RESIZE_LONG, CENTER_CROP, CORNER_CROP):
                continue
            planned, part = requests.copy(), slice(k + 1)
            planner = RequestPlanner(self._codes[part], self._positions[part], self._rows[part])
            given = None if boxes is None else boxes._replace(kept=np.ones_like(boxes.kept))
            start = 0
            while True:
                failure = planner.plan(keys, planned, start, given)
                if failure is None:
                    break
                start = failure.sample + 1
            position = int(self._positions[k])
            name = f"{position}.{name_of(self.transforms[position])}"
            if code in (HORIZONTAL_FLIP, VERTICAL_FLIP):
                result[name] = (planned["flip"] ^ flips) != 0
                flips = planned["flip"]
            elif code in (SCALE_JITTER, SHORTEST_SIZE):
                result[name] = _columns(planned, "scaled_h", "scaled_w")
            elif code in (RANDOM_RESIZED_CROP, CROP_AROUND_BOX):
                result[name] = _columns(planned, "box_y", "box_x", "box_h", "box_w")
            else:
                result[name] = _columns(planned, "window_y", "window_x", "out_h", "out_w")
                unscaled = (planned["scaled_h"] == planned["box_h"]) & (planned["scaled_w"] == planned["box_w"])
                result[name][unscaled, :2] += _columns(planned, "box_y", "box_x")[unscaled]
        return result

    # -- where places go ----------------------------------------------------------------------------------------

    def moves_places(self, what: str) -> bool:
        """Return whether the transforms move any place of the image.

        Raises
        ------
        UsageError
            Where ``what``, such as "the boxes of 'boxes'", cannot follow.
        """
        moves = check_movable(self._drawn.leaves, what)
        return moves or len(self._codes) > 0

    def moves_in(self, transform: object) -> bool:
        """Return whether a transform of the list moves places after decoding."""
        places = [str(n) for n, each in enumerate(self.transforms) if each is transform]
        leaves = [leaf for leaf in self._drawn.leaves if self._drawn.path_of(leaf)[0] in places]
        return check_movable(leaves, "boxes")

    def moves(
        self,
        requests: npt.NDArray[np.void],
        keys: npt.NDArray[np.uint64],
        indices: npt.NDArray[np.int64] | None = None,
    ) -> list[Move]:
        """Return the steps of the geometry of samples with these planned requests, keys and numbers."""
        steps = moves_of_requests(requests)
        if check_movable(self._drawn.leaves, "boxes"):
            steps += moves_of_tapes(self._drawn.leaves, self._drawn.params_at(), self.draw(keys, indices))
        return steps

    def _check_arrays(self, decoded: npt.NDArray[Any], keys: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        n = len(decoded)
        if (
            decoded.shape[1:] == self.decode_shape
            and out.shape[1:] == self.out_shape
            and len(out) == len(keys) == n
            and keys.ndim == 1
            and (decoded.dtype, keys.dtype, out.dtype) == self._dtypes
            and decoded.flags.c_contiguous
            and keys.flags.c_contiguous
            and out.flags.c_contiguous
        ):
            return
        for what, array, shape, dtype in (
            ("decoded_NCHW", decoded, (n, *self.decode_shape), self.decode_dtype),
            ("keys", keys, (n,), np.dtype(np.uint64)),
            ("out_NCHW", out, (n, *self.out_shape), self.storage_dtype),
        ):
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise UsageError(
                    f"{what} must be a contiguous {dtype} array of shape {shape}, "
                    f"got {array.dtype} {array.shape}{'' if array.flags.c_contiguous else ', not contiguous'}"
                )

    def warm_up(self) -> None:
        """Compile now, rather than on the first samples. Any number of threads may call this at once.

        Raises
        ------
        UsageError
            Where a user's own transform does not compile.
        """
        if self.operations:
            self._compiled()
        if self.on_batch is not None:
            self._compiled(self._drawn)

    def _compiled(self, program: Program | None = None) -> AugmentProgram:
        try:
            return (program or self._program).compiled()
        except DoesNotCompile as error:
            raise UsageError(
                f"{self._where_is(error.node)} does not compile. Numba says: {error}\n"
                f"Use plain loops, NumPy operations and T.uniform, T.randint or T.normal in it"
            ) from None

    def _where_is(self, leaf: Node) -> str:
        """Return the place and name of the transform that a leaf belongs to."""
        position, _, *inside = self._program.path_of(leaf)
        where = self._where(int(position))
        return f"{where}, in it {'.'.join(inside)}" if inside else where


def _columns(requests: npt.NDArray[np.void], *names: str) -> npt.NDArray[np.int64]:
    return np.stack([requests[name].astype(np.int64) for name in names], axis=1)
