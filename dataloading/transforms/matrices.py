"""Where the places of a sample's image go: its geometry as matrices, for boxes and points.

A matrix is 3x3, takes homogeneous places (x, y, 1) to places, and counts continuously: an image of W pixels covers 0 to
W. Numbers come from the decoder's request and from the tape that the sample has drawn, so they are those of its pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataloading._native import FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM, Draws
from dataloading.errors import UsageError
from dataloading.transforms.operation import Node

__all__ = ["Move", "check_movable", "joined", "moved_boxes", "moved_points", "moves_of_requests", "moves_of_tapes"]

Floats = npt.NDArray[np.float64]


class Move(NamedTuple):
    """One step of the geometry of n samples.

    Parameters
    ----------
    matrices : float64 array, shape (n, 3, 3)
    sizes : float64 array, shape (n, 2)
        Width and height of the images afterwards.
    happens : bool array, shape (n,)
        Which samples it happens to; the matrices of the others are the identity.
    """

    matrices: Floats
    sizes: Floats
    happens: npt.NDArray[np.bool_]


def moves_of_requests(requests: npt.NDArray[np.void]) -> list[Move]:
    """Return the two steps of decoding: cutting out a box; resizing, padding and mirroring it."""
    n = len(requests)
    cut, rest = _identities(n), _identities(n)
    for axis, (place, side, bit) in enumerate((("x", "w", FLIP_LEFT_RIGHT), ("y", "h", FLIP_TOP_BOTTOM))):
        cut[:, axis, 2] = -requests[f"box_{place}"].astype(np.float64)
        scale = requests[f"scaled_{side}"] / np.maximum(requests[f"box_{side}"], 1)
        offset = -requests[f"window_{place}"].astype(np.float64)
        flipped = (requests["flip"] & bit) != 0
        rest[:, axis, axis] = np.where(flipped, -scale, scale)
        rest[:, axis, 2] = np.where(flipped, requests[f"out_{side}"] - offset, offset)
    everywhere = np.ones(n, bool)
    return [
        Move(cut, np.stack([requests["box_w"], requests["box_h"]], axis=1).astype(np.float64), everywhere),
        Move(rest, np.stack([requests["out_w"], requests["out_h"]], axis=1).astype(np.float64), everywhere),
    ]


def moves_of_tapes(leaves: Sequence[Node], starts: Sequence[int], draws: Draws) -> list[Move]:
    """Return the steps that the tapes of n samples hold.

    Parameters
    ----------
    leaves : sequence of Node
        By their numbers on a tape.
    starts : sequence of int
        Where the params of each begin in a row of ``draws.params``, and the end.
    draws : Draws
    """
    moving = {number: function for number, leaf in enumerate(leaves) if (function := _function_of(leaf)) is not None}
    moves = []
    for slot in draws.tapes.T:
        happens = np.isin(slot, list(moving))
        if not happens.any():
            continue
        matrices, sizes = _identities(len(slot)), np.zeros((len(slot), 2))
        for number in np.unique(slot[happens]).tolist():
            rows, leaf = slot == number, leaves[number]
            matrices[rows] = moving[number](leaf, draws.params[rows, starts[number] : starts[number + 1]])
            sizes[rows] = leaf.after.width, leaf.after.height
        moves.append(Move(matrices, sizes, happens))
    return moves


def check_movable(leaves: Iterable[Node], what: str) -> bool:
    """Return whether any of these leaves moves pixels.

    Raises
    ------
    UsageError
        Where ``what``, such as "the boxes of 'boxes'", cannot follow one.
    """
    moves = False
    for leaf in leaves:
        assert leaf.operation is not None
        kernel = leaf.operation.kernel
        resized = (leaf.before.height, leaf.before.width) != (leaf.after.height, leaf.after.width)
        known = _function_of(leaf) is not None
        if not known and (resized or (isinstance(kernel, str) and kernel.startswith(("warp.", "move.")))):
            raise UsageError(
                f"{leaf.name} moves pixels in a way that {what} cannot follow. Take RandomAffine or RandomPerspective, "
                f"leave the field out with fields=[...], or give it an empty list of its own to get it as it is stored"
            )
        moves = moves or known
    return moves


def joined(moves: Sequence[Move], n: int) -> Floats:
    """Return the matrix of each sample's whole geometry, shape (n, 3, 3)."""
    result = _identities(n)
    for move in moves:
        result = move.matrices @ result
    return result


def moved_points(places: Floats, matrices: Floats) -> Floats:
    """Return where places (n, 2) are after matrices (n, 3, 3)."""
    x, y = places[:, 0], places[:, 1]
    rows = matrices[:, :, 0] * x[:, None] + matrices[:, :, 1] * y[:, None] + matrices[:, :, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(rows[:, :2] / rows[:, 2:], dtype=np.float64)


def moved_boxes(corners: Floats, moves: Sequence[Move], sample: npt.NDArray[np.int64]) -> Floats:
    """Return boxes after each step: upright again, around their four corners, and clipped to the image.

    Parameters
    ----------
    corners : float64 array, shape (m, 4)
        Left, top, right, bottom.
    moves : sequence of Move
    sample : int64 array, shape (m,)
        Which sample each box belongs to.
    """
    for matrices, sizes, happens in moves:
        ends = [moved_points(corners[:, pair], matrices[sample]) for pair in ([0, 1], [2, 1], [2, 3], [0, 3])]
        places = np.stack(ends, axis=1)
        limits = sizes[sample]
        low = np.minimum(np.maximum(places.min(axis=1), 0), limits)
        high = np.minimum(np.maximum(places.max(axis=1), 0), limits)
        corners = np.where(happens[sample, None], np.hstack([low, high]), corners)
    return corners


# -- what operations do --------------------------------------------------------------------------------------------


def _identities(n: int) -> Floats:
    return np.tile(np.eye(3), (n, 1, 1))


def _shifts(x: Any, y: Any, n: int) -> Floats:
    result = _identities(n)
    result[:, 0, 2], result[:, 1, 2] = x, y
    return result


def _crop(leaf: Node, params: Floats) -> Floats:
    return _shifts(-params[:, 1], -params[:, 0], len(params))


def _translate(leaf: Node, params: Floats) -> Floats:
    reach = leaf.constants()[0]
    return _shifts(reach - params[:, 1], reach - params[:, 0], len(params))


def _pad(leaf: Node, params: Floats) -> Floats:
    left, top = leaf.constants()[:2]
    return _shifts(left, top, len(params))


def _flip_horizontal(leaf: Node, params: Floats) -> Floats:
    result = _shifts(leaf.before.width, 0, len(params))
    result[:, 0, 0] = -1
    return result


def _flip_vertical(leaf: Node, params: Floats) -> Floats:
    result = _shifts(0, leaf.before.height, len(params))
    result[:, 1, 1] = -1
    return result


def _affine(leaf: Node, params: Floats) -> Floats:
    """See ``kernels/warp.py``, ``_affine_matrix``: angle, translation, scale and shear about a fixed point."""
    assert leaf.before.width is not None and leaf.before.height is not None
    assert leaf.after.width is not None and leaf.after.height is not None
    turn_sign, x, y = leaf.constants()[1 + leaf.before.channels : 4 + leaf.before.channels]
    turn = np.radians(params[:, 0]) * turn_sign
    shear_x, shear_y = np.radians(params[:, 4]), np.radians(params[:, 5])
    a = np.cos(turn - shear_y) / np.cos(shear_y)
    c = np.sin(turn - shear_y) / np.cos(shear_y)
    n = len(params)
    result = _identities(n)
    result[:, 0, 0] = a * params[:, 3]
    result[:, 0, 1] = (-a * np.tan(shear_x) - np.sin(turn)) * params[:, 3]
    result[:, 1, 0] = c * params[:, 3]
    result[:, 1, 1] = (np.cos(turn) - c * np.tan(shear_x)) * params[:, 3]
    here = _shifts(-x - leaf.before.width / 2, -y - leaf.before.height / 2, n)
    there = _shifts(x + leaf.after.width / 2 + params[:, 1], y + leaf.after.height / 2 + params[:, 2], n)
    return np.asarray(there @ result @ here)


def _perspective(leaf: Node, params: Floats) -> Floats:
    """Coefficients take places of the result to those of the source."""
    inverse = np.concatenate([params, np.ones((len(params), 1))], axis=1).reshape(-1, 3, 3)
    return np.linalg.inv(inverse)


_Function = Callable[[Node, Floats], Floats]
_FUNCTIONS: dict[str, _Function] = {
    "move.crop": _crop,
    "move.translate": _translate,
    "move.flip_horizontal": _flip_horizontal,
    "move.flip_vertical": _flip_vertical,
    "frame.pad": _pad,
    "warp.affine": _affine,
    "warp.perspective": _perspective,
}


def _function_of(leaf: Node) -> _Function | None:
    """Return what makes the matrices of a leaf's params; None where it leaves places as they are, or moves freely."""
    assert leaf.operation is not None
    kernel = leaf.operation.kernel
    if not isinstance(kernel, str):
        return None
    for ending in ("_deep", "_nearest", "_bilinear", "_shift"):
        kernel = kernel.removesuffix(ending)
    return _FUNCTIONS.get(kernel)
