"""A tree of operations as a program for the runner, and the compiled kernels it calls.

It knows no transform: nodes and operations (``operation.py``) go in, tables of numbers (``_native/src/augment.h``) come
out. Kernels are compiled, or loaded from disk, when the program is first needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import AugmentFailure, AugmentProgram, Draws
from dataloading._native.augment import LAW, LEAF, NODE
from dataloading.transforms.callback import Callback
from dataloading.transforms.operation import Law, Node, Operation
from dataloading.transforms.state import STORAGE_DTYPES, ImageState

__all__ = ["DoesNotCompile", "Program"]

# Codes of _native/src/augment.h.
_NODES = {"leaf": 0, "sequence": 1, "choice": 2, "permutation": 3}
_OPERATIONS = {"apply": 0, "in_place": 1, "table": 2, "lookup": 3, "custom": 4, "custom_writes": 5, "statistics": 6,
               "jpeg": 7, "blur": 8, "mix_begin": 9, "mix_add": 10, "mix_end": 11}  # fmt: skip
_NATIVE = {"native.brightness": 1, "native.contrast": 2, "native.saturation": 3, "native.hue": 4, "native.gray": 5,
           "native.solarize": 6}  # fmt: skip
_NO_KERNEL = ("lookup", "jpeg", "blur", "mix_begin", "mix_add", "mix_end")
_TAKES_NO_NUMBER, _PICKS, _PICKS_SIGNED = 0, 7, 8  # laws
_IN_PLACE = ("in_place", "table", "statistics", "custom", "mix_begin", "mix_add", "mix_end")


class DoesNotCompile(Exception):  # noqa: N818 (a report between two layers; the Pipeline raises UsageError)
    """A kernel does not compile.

    Parameters
    ----------
    node : Node
        Whose kernel.
    reason : str
        Numba's message.
    """

    def __init__(self, node: Node, reason: str) -> None:
        self.node = node
        super().__init__(reason)


def _storage(state: ImageState) -> np.dtype[Any]:
    return np.dtype(STORAGE_DTYPES[state.dtype])


def _shape(state: ImageState) -> tuple[int, int, int]:
    assert state.height is not None and state.width is not None
    return state.channels, state.height, state.width


def _image_bytes(state: ImageState) -> int:
    return int(np.prod(_shape(state))) * _storage(state).itemsize


class Program:
    """A tree of operations on images of one shape and dtype.

    Parameters
    ----------
    root : Node
        Its stream is the sample's key.
    draws_only : bool
        Whether it is drawn and never run: kernels that change pixels are not compiled.

    Attributes
    ----------
    leaves : list of Node
        The leaves that can happen, by their numbers on a tape.
    in_place : bool
        No operation moves the image to another place.
    picks : bool
        Some operations happen only to samples of certain numbers.
    """

    def __init__(self, root: Node, *, draws_only: bool = False) -> None:
        self.leaves: list[Node] = []
        self._paths: list[tuple[str, ...]] = []
        self._nodes: list[tuple[Any, ...]] = []
        self._children: list[int] = []
        self._weights: list[float] = []
        self._laws: list[tuple[int, int, float, float]] = []
        self._values: list[float] = []
        self._first_laws: list[int] = []
        self._root = root
        self._draws_only = draws_only
        self._tape_length = self._add(root)
        self.in_place = all(_operation(leaf).kind in _IN_PLACE for leaf in self.leaves)
        self.picks = any(_operation(leaf).only is not None for leaf in self.leaves)
        self._program: AugmentProgram | None = None
        self._lock = threading.Lock()

    # -- the tree as tables ---------------------------------------------------------------------------------------

    def _add(self, node: Node, path: tuple[str, ...] = ()) -> int:
        """Add a node and those below it; return how many operations one sample can get from it."""
        number = len(self._nodes)
        self._nodes.append(())
        stream = -1 if node.place is None else node.place
        p = -1.0 if node.p is None else float(node.p)
        if node.p == 0:  # never: nothing below needs to be compiled
            self._nodes[number] = (_NODES["sequence"], stream, -1.0, 0, 0, -1)
            return 0
        if node.operation is not None:
            self._nodes[number] = (_NODES["leaf"], stream, p, 0, 0, len(self.leaves))
            self.leaves.append(node)
            self._paths.append(path)
            self._first_laws.append(len(self._laws))
            self._add_laws(node)
            return 1
        numbers, lengths = [], []
        for child in node.children:
            numbers.append(len(self._nodes))
            place = () if child.place is None else (str(child.place),)
            lengths.append(self._add(child, (*path, *place, child.name)))
        self._nodes[number] = (_NODES[node.kind], stream, p, len(self._children), len(numbers), -1)
        self._children += numbers
        weights = np.array(node.weights or [1.0] * len(numbers), dtype=np.float64)
        self._weights += (np.cumsum(weights) / max(weights.sum(), 1e-300)).tolist()
        return max(lengths, default=0) if node.kind == "choice" else sum(lengths)

    def _add_laws(self, node: Node) -> None:
        params = _operation(node).params
        number = 0 if node.p is None else 1
        for law in params.values() if isinstance(params, Mapping) else ():
            number = number if law.number is None else law.number
            low, high = law.low, law.high
            if law.code in (_PICKS, _PICKS_SIGNED):
                low, high = float(len(self._values)), float(len(law.values))
                self._values += law.values
            self._laws.append((law.code, number, low, high))
            number += _numbers_taken(law)

    def names(self) -> list[tuple[str, ...]]:
        """Return the names of each leaf's params."""
        return [tuple(_operation(leaf).params) for leaf in self.leaves]

    def path_of(self, leaf: Node) -> tuple[str, ...]:
        """Return where a leaf stands: places and names of the nodes from the root's child down to it."""
        return self._paths[next(n for n, each in enumerate(self.leaves) if each is leaf)]

    def params_at(self) -> list[int]:
        """Return where each leaf's params begin in a row of ``Draws.params``; one entry more for the end."""
        return [0, *np.cumsum([_num_params(leaf) for leaf in self.leaves]).tolist()]

    def picked(self, draws: Draws, indices: npt.NDArray[np.int64]) -> Draws:
        """Return draws of samples with these numbers, without the operations that are for others."""
        tapes = draws.tapes.copy()
        for number, leaf in enumerate(self.leaves):
            only = _operation(leaf).only
            if only is not None:
                tapes[(tapes == number) & ~np.isin(indices, only)[:, None]] = -1
        order = np.argsort(tapes < 0, axis=1, kind="stable")
        return draws._replace(tapes=np.ascontiguousarray(np.take_along_axis(tapes, order, 1)))

    # -- compiled -------------------------------------------------------------------------------------------------

    def compiled(self) -> AugmentProgram:
        """Return the program with the addresses of its kernels. Any number of threads may call this at once.

        Raises
        ------
        DoesNotCompile
            Where a user's function does not.
        """
        if self._program is None:
            with self._lock:
                self._program = self._program or self._compile()
        return self._program

    def _compile(self) -> AugmentProgram:
        leaves = np.zeros(len(self.leaves), LEAF)
        self._alive: list[Any] = []  # what the tables point to
        starts = self.params_at()
        states = [self._root.before, self._root.after]
        work_bytes = 0
        for number, leaf in enumerate(self.leaves):
            operation = _operation(leaf)
            constants = leaf.constants()
            row = leaves[number]
            row["kind"] = _OPERATIONS[operation.kind]
            row["kernel"], row["draw"] = _addresses(leaf, draws_only=self._draws_only)
            row["constants"], row["num_constants"] = constants.ctypes.data, len(constants)
            if operation.lookup is not None:
                lookup = np.ascontiguousarray(operation.lookup)
                row["lookup"] = lookup.ctypes.data
                self._alive.append(lookup)
            row["first_law"], row["params_at"] = self._first_laws[number], starts[number]
            row["num_params"] = starts[number + 1] - starts[number]
            row["source_bytes"], row["source_shape"] = _storage(leaf.before).itemsize, _shape(leaf.before)
            row["target_bytes"], row["target_shape"] = _storage(leaf.after).itemsize, _shape(leaf.after)
            self._alive.append(constants)
            states += [leaf.before, leaf.after]
            work_bytes = max(work_bytes, operation.work_bytes)
        tables = {
            "nodes": np.array(self._nodes, NODE),
            "children": np.array(self._children, np.int64),
            "weights": np.array(self._weights, np.float64),
            "leaves": leaves,
            "laws": np.array(self._laws, LAW),
            "values": np.array(self._values, np.float64),
        }
        sizes = {
            "num_params": starts[-1],
            "tape_length": self._tape_length,
            "image_bytes": max(map(_image_bytes, states)),
            "work_bytes": work_bytes,
            "decoded_bytes": _image_bytes(self._root.before),
            "out_bytes": _image_bytes(self._root.after),
        }
        return AugmentProgram(tables, sizes)

    def failure_of(self, failure: AugmentFailure) -> tuple[Node, Exception]:
        """Return the leaf that failed, and what it raised: a user's function is run again on the same image."""
        leaf = self.leaves[failure.leaf]
        operation = _operation(leaf)
        if isinstance(operation.kernel, Callback):
            return leaf, operation.kernel.raised()
        if callable(operation.kernel) and failure.source:
            from dataloading.transforms.kernels.jit import run_again

            shape, storage = _shape(leaf.before), _storage(leaf.before)
            image = np.ctypeslib.as_array(_pointer(failure.source, _image_bytes(leaf.before))).view(storage)
            outs = (np.zeros(_shape(leaf.after), _storage(leaf.after)),) if operation.kind == "custom_writes" else ()
            raised = run_again(operation.kernel, image.reshape(shape).copy(), np.uint64(failure.key), *outs)
            if raised is not None:
                return leaf, raised
        return leaf, RuntimeError(f"the kernel failed with status {failure.status}")


def _pointer(address: int, count: int) -> Any:
    return (ctypes.c_uint8 * count).from_address(address)


def _operation(leaf: Node) -> Operation:
    assert leaf.operation is not None
    return leaf.operation


def _num_params(leaf: Node) -> int:
    operation = _operation(leaf)
    return 1 if operation.kind.startswith("custom") else len(operation.params)


def _numbers_taken(law: Law) -> int:
    return 0 if law.code == _TAKES_NO_NUMBER else 2 if law.code == _PICKS_SIGNED else 1


def _addresses(leaf: Node, *, draws_only: bool) -> tuple[int, int]:
    """Return the addresses of a leaf's kernel, or its number, and of the kernel that draws for it; 0 for none."""
    operation = _operation(leaf)
    if (draws_only or operation.kind in _NO_KERNEL) and not operation.draw:
        return 0, 0
    if isinstance(operation.kernel, Callback):
        return operation.kernel.address, 0
    if operation.kernel in _NATIVE:
        return _NATIVE[operation.kernel], 0
    from dataloading.transforms.kernels import store

    numbers = "float64:1"
    before, after = (f"{_storage(state).name}:3" for state in (leaf.before, leaf.after))
    signature = {
        "table": [before, "uint8:2", numbers, numbers],
        "statistics": [before, "uint8:2", numbers, numbers],
        "custom": [before, "uint64"],
        "custom_writes": [before, "uint64", after],
    }.get(operation.kind, [before, after, numbers, numbers, "uint8:1"])
    try:
        kernel = 0 if draws_only or operation.kind in _NO_KERNEL else store.address_of(operation.kernel, signature)
        if not operation.draw:
            return kernel, 0
        return kernel, store.address_of(operation.draw, ["uint64", "int64", "int64", numbers, numbers])
    except store.DoesNotCompile as error:
        raise DoesNotCompile(leaf, str(error)) from None
