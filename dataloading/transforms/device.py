"""The end of a list of transforms as torch operations on a batch, on whatever device it is.

What each sample draws comes from the same program as on the workers (``Program.draw``), so there is one law of random
numbers; here it is only executed, for all samples of a batch that do the same at a time. Formulas, their order and
their rounding are those of ``kernels/color.py`` and the native core, so that bytes are equal.

Torch is imported when a batch comes, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import Draws
from dataloading.transforms.operation import Node
from dataloading.transforms.program import Program
from dataloading.transforms.state import FLOAT_DTYPES, STORAGE_DTYPES

__all__ = ["BatchProgram", "leaf_without_form"]

_GRAY = (0.2989, 0.587, 0.114)


class BatchProgram:
    """Transforms at the end of a list, for batches.

    Parameters
    ----------
    program : Program
        Of the whole list; its draws are what `apply` takes.
    first_leaf : int
        The first that is not done on the workers. ``leaf_without_form`` of those from there on is None.
    """

    def __init__(self, program: Program, first_leaf: int) -> None:
        self._leaves = program.leaves
        self._starts = program.params_at()
        places = [program.path_of(leaf)[0] for leaf in self._leaves]
        # The leaves of a transform have consecutive numbers.
        firsts = [n for n in range(first_leaf, len(places)) if n == first_leaf or places[n] != places[n - 1]]
        self._spans = list(zip(firsts, [*firsts[1:], len(places)], strict=True))

    def apply(self, images: Any, draws: Draws) -> Any:
        """Return the transformed batch.

        Parameters
        ----------
        images : Tensor, shape (n, channels, height, width)
            What the workers made; may be changed.
        draws : Draws
            Of its samples.
        """
        import torch

        memory_format = torch.contiguous_format
        if not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last):
            memory_format = torch.channels_last
        params = torch.from_numpy(draws.params).to(images.device, non_blocking=True)
        for number, rows in self._steps(draws.tapes):
            leaf = self._leaves[number]
            assert leaf.operation is not None
            form = _to_floats if leaf.operation.kind == "lookup" else _FORMS[str(leaf.operation.kernel)]
            first, last = self._starts[number : number + 2]
            if len(rows) == len(images):
                images = form(images, params[:, first:last], leaf)
            else:  # others do something else, or nothing
                some = torch.from_numpy(rows).to(images.device, non_blocking=True)
                images[some] = form(images[some], params[some, first:last], leaf)
        return images.contiguous(memory_format=memory_format)

    def _steps(self, tapes: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Return which leaf to execute for which rows, in an order that is right for each row."""
        for first, last in self._spans:
            mine = (tapes >= first) & (tapes < last)
            # What a sample does of this transform, from the left; transforms before it do not matter.
            order = np.argsort(~mine, axis=1, kind="stable")
            steps = np.where(np.take_along_axis(mine, order, 1), np.take_along_axis(tapes, order, 1), -1)
            for column in steps.T:
                for number in np.unique(column[column >= 0]).tolist():
                    yield number, np.flatnonzero(column == number)


def leaf_without_form(node: Node) -> Node | None:
    """Return the first leaf in a node that cannot be done on a batch."""
    for child in node.children:
        if child.p != 0:
            found = leaf_without_form(child)
            if found is not None:
                return found
    operation = node.operation
    if operation is None or operation.kind == "lookup":
        return None
    moves = operation.kernel in _ANY_DTYPE
    fits = node.before.dtype == "uint8" or (moves and node.before.dtype in FLOAT_DTYPES)
    return None if operation.kernel in _FORMS and fits else node


# -- operations: (images, params of each, leaf) -> images -------------------------------------------------------------


def _column(params: Any, number: int = 0) -> Any:
    """Return one param of each sample, to be multiplied with images."""
    return params[:, number, None, None, None]


def _bytes(values: Any) -> Any:
    """Return float32 values as bytes: within 0 and 255, cut off."""
    import torch

    return values.clamp_(0, 255).to(torch.uint8)


def _grey(images: Any) -> Any:
    """Return the grey image, cut off to integers, as float32 of one channel."""
    if images.shape[1] != 3:
        return images.float()
    red, green, blue = (images[:, c : c + 1].float() for c in range(3))
    return (red * _GRAY[0]).add_(green * _GRAY[1]).add_(blue * _GRAY[2]).floor_()


def _brightness(images: Any, params: Any, leaf: Node) -> Any:
    return _bytes(images.float().mul_(_column(params).float()))


def _contrast(images: Any, params: Any, leaf: Node) -> Any:
    mean = _grey(images).double().sum((1, 2, 3)).div_(images[0, 0].numel()).float()
    rest = mean[:, None, None, None] * (1.0 - _column(params)).float()
    return _bytes(images.float().mul_(_column(params).float()).add_(rest))


def _saturation(images: Any, params: Any, leaf: Node) -> Any:
    rest = _grey(images).mul_((1.0 - _column(params)).float())
    return _bytes(images.float().mul_(_column(params).float()).add_(rest))


def _hue(images: Any, params: Any, leaf: Node) -> Any:
    import torch

    white, levels = leaf.constants().tolist()
    turn = 6.0 * (params[:, 0, None, None] - params[:, 0, None, None].floor())
    whole = turn.floor().clamp_(max=5)
    short = (1.0 - (turn - whole)).float()  # what the turn lacks to the next sector
    red, green, blue = (images[:, c].float() for c in range(3))
    top, low = images.amax(1).float(), images.amin(1).float()
    middle = red + green + blue - top - low
    of_green = torch.where(red <= blue, 2, 1)
    of_blue = torch.where(green <= red, 4, 3)
    sector = torch.where(top == red, torch.where(blue <= green, 0, 5), torch.where(top == green, of_green, of_blue))
    place = torch.where(sector % 2 == 1, top - middle, middle - low)
    sector = (sector + whole) % 6
    beyond = place - short * (top - low)  # by how much the next sector is reached
    third = torch.where(sector % 2 == 1, low + beyond.abs(), top - beyond.abs())
    sector = (sector + (beyond >= 0)) % 6
    third, top, low = (each * float(np.float32(levels / white)) for each in (third, top, low))
    is_1, is_2, is_3, is_4, is_5 = (sector == number for number in range(1, 6))
    red = torch.where(is_1 | is_4, third, torch.where(is_2 | is_3, low, top))
    green = torch.where(is_1 | is_2, top, torch.where(is_4 | is_5, low, third))
    blue = torch.where(is_2 | is_5, third, torch.where(is_3 | is_4, top, low))
    return torch.stack([red, green, blue], 1).to(torch.uint8)


def _gray(images: Any, params: Any, leaf: Node) -> Any:
    return _one_gray(images, params, leaf).expand_as(images)


def _one_gray(images: Any, params: Any, leaf: Node) -> Any:
    return _bytes(_grey(images))


def _invert(images: Any, params: Any, leaf: Node) -> Any:
    return 255 - images


def _solarize(images: Any, params: Any, leaf: Node) -> Any:
    return images.where(images.float() < _column(params).ceil().float(), 255 - images)


def _solarize_add(images: Any, params: Any, leaf: Node) -> Any:
    added = _bytes(images.float().add_(_column(params).trunc().float()))
    return added.where(images.float() < leaf.constants()[0], images)


def _posterize(images: Any, params: Any, leaf: Node) -> Any:
    import torch

    bits = _column(params).long()
    return images & (((1 << bits) - 1) << (8 - bits)).to(torch.uint8)


def _autocontrast(images: Any, params: Any, leaf: Node) -> Any:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    least = low.float()
    scale = (high.float() - least) * float(np.float32(1.0 / 255.0))
    return images.where(low == high, _bytes((images.float() - least) / scale))


def _flip_horizontal(images: Any, params: Any, leaf: Node) -> Any:
    return images.flip(3)


def _flip_vertical(images: Any, params: Any, leaf: Node) -> Any:
    return images.flip(2)


def _permute_channels(images: Any, params: Any, leaf: Node) -> Any:
    import torch

    return images[torch.arange(len(images), device=images.device)[:, None], params.long()]


def _crop(images: Any, params: Any, leaf: Node) -> Any:
    import torch

    assert leaf.after.height is not None and leaf.after.width is not None
    places = params.long()
    ys = places[:, 0, None] + torch.arange(leaf.after.height, device=images.device)
    xs = places[:, 1, None] + torch.arange(leaf.after.width, device=images.device)
    images = images.gather(2, ys[:, None, :, None].expand(-1, images.shape[1], -1, images.shape[3]))
    return images.gather(3, xs[:, None, None, :].expand(-1, images.shape[1], images.shape[2], -1))


def _erase(images: Any, params: Any, leaf: Node) -> Any:
    import torch

    top, left, height, width = (params[:, k, None] for k in range(4))
    ys, xs = (torch.arange(side, device=images.device)[None] for side in images.shape[2:])
    rows, columns = (ys >= top) & (ys < top + height), (xs >= left) & (xs < left + width)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    channels = images.shape[1]
    values = _as_stored(leaf.constants()[-channels:], leaf.before.dtype).to(images.device, non_blocking=True)
    return torch.where(inside, values[None, :, None, None], images)


def _to_floats(images: Any, params: Any, leaf: Node) -> Any:
    """Look up, or for float32 compute, what ``Normalize`` and ``ToDtype`` give."""
    import torch

    line = leaf.constants()
    if len(line):
        columns = torch.from_numpy(line.reshape(-1, 5).T.astype(np.float32)).to(images.device, non_blocking=True)
        zero, a, b, c, d = columns[:, :, None, None]
        values = images.float().sub_(zero)
        return (values * a).add_(b).add_(values.mul_(c).add_(d))
    assert leaf.operation is not None and leaf.operation.lookup is not None
    table = _as_stored(leaf.operation.lookup, leaf.after.dtype).to(images.device, non_blocking=True)
    channels = [table[c].index_select(0, images[:, c].flatten().int()) for c in range(images.shape[1])]
    return torch.stack([each.view_as(images[:, 0]) for each in channels], 1)


def _as_stored(values: npt.NDArray[Any], dtype: str) -> Any:
    """Make a tensor of values that a kernel would store in an image of this dtype."""
    import torch

    stored = np.ascontiguousarray(values.astype(STORAGE_DTYPES[dtype]))
    if dtype in ("float16", "bfloat16"):
        return torch.from_numpy(stored.view(np.int16)).view(getattr(torch, dtype))
    return torch.from_numpy(stored)


# By the name of the kernel on the workers.
_FORMS: dict[str, Callable[[Any, Any, Node], Any]] = {
    "color.autocontrast": _autocontrast,
    "color.invert": _invert,
    "color.one_gray": _one_gray,
    "color.posterize": _posterize,
    "erase.erase": _erase,
    "frame.permute_channels": _permute_channels,
    "histograms.solarize_add": _solarize_add,
    "move.crop": _crop,
    "move.flip_horizontal": _flip_horizontal,
    "move.flip_vertical": _flip_vertical,
    "native.brightness": _brightness,
    "native.contrast": _contrast,
    "native.gray": _gray,
    "native.hue": _hue,
    "native.saturation": _saturation,
    "native.solarize": _solarize,
}
_ANY_DTYPE = ("erase.erase", "frame.permute_channels", "move.crop", "move.flip_horizontal", "move.flip_vertical")
