"""Sees a contraction of row-major arrays as one batched GEMM with strides, copying an operand only where it must.

`D[l,m,n] = sum_k A[l,m,k] B[l,k,n]`: neighbouring axes that lie the same way in every array merge; an axis of one
operand that cannot merge becomes the batch axis, with stride 0 in the other; where the result is m-contiguous the
operands change places; only what is left after that takes a transposing copy, of the smallest arrays that do.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from jax_clc.contraction import Contraction

_EXCHANGED = {"l": "l", "m": "n", "n": "m", "k": "k"}


@dataclasses.dataclass(frozen=True)
class MatrixView:
    """One array as a batched matrix: what its buffer looks like, and which axis is which.

    `permutation` is the transposing copy made first (None: the array is used as it lies). `axes` are the merged axes of
    the buffer, outermost first, by name; the last is the contiguous one. `shape` has their sizes, in elements.
    """

    axes: str
    shape: tuple[int, ...]
    permutation: tuple[int, ...] | None = None

    @property
    def major(self) -> str:
        return self.axes[-1]

    def strides(self, batch: int) -> tuple[int, int]:
        """(batch, outer) element strides of a GEMM with `batch` batches; an operand they all share has stride 0."""
        steps = {axis: math.prod(self.shape[i + 1 :]) for i, axis in enumerate(self.axes)}
        outer = [axis for axis in self.axes[:-1] if axis != "l"]
        outer_stride = steps[outer[0]] if outer else self.shape[-1]
        batch_stride = steps.get("l", math.prod(self.shape) if batch == 1 else 0)
        return batch_stride, outer_stride

    def with_rows_of(self, multiple: int) -> MatrixView:
        """The same view after growing the contiguous axis of the buffer to a multiple of `multiple` elements."""
        row = -(-self.shape[-1] // multiple) * multiple
        return dataclasses.replace(self, shape=(*self.shape[:-1], row))

    def _exchanged(self) -> MatrixView:
        return dataclasses.replace(self, axes="".join(_EXCHANGED[axis] for axis in self.axes))


@dataclasses.dataclass(frozen=True)
class GemmView:
    """A contraction as one batched GEMM. `exchanged`: the GEMM's a is the contraction's b, and the other way round.

    `d.permutation` is the transpose of the GEMM's result that gives the contraction's axis order (None: it has it).
    """

    batch: int
    m: int
    n: int
    k: int
    a: MatrixView
    b: MatrixView
    d: MatrixView
    exchanged: bool

    @property
    def copies(self) -> tuple[str, ...]:
        """Which of the GEMM's arrays take a transposing copy."""
        return tuple(name for name in "abd" if getattr(self, name).permutation is not None)


class NotAGemm(ValueError):
    """The contraction has no matrix axis, or a size that is not a number; the text says which."""


def gemm_view(contraction: Contraction, a_shape: Sequence[int], b_shape: Sequence[int]) -> GemmView:
    """The cheapest view, in elements copied. Raises NotAGemm; sizes must not be zero."""
    if not all(isinstance(size, int) for size in (*a_shape, *b_shape)):
        raise NotAGemm(f"shapes {tuple(a_shape)} and {tuple(b_shape)} are symbolic")
    sizes = contraction.sizes(a_shape, b_shape)
    kinds = {label: _kind(label, contraction) for label in sizes}
    orders = {
        name: tuple(label for label in labels if sizes[label] != 1)
        for name, labels in (("a", contraction.a), ("b", contraction.b), ("d", contraction.out))
    }
    if not any(kinds[label] in "mn" for label in orders["d"]):
        raise NotAGemm("the result has no m or n axis longer than 1 (a dot product of vectors)")
    elements = {name: math.prod(sizes[label] for label in order) for name, order in orders.items()}
    subsets = [subset for count in range(4) for subset in itertools.combinations("abd", count)]
    for copied in sorted(subsets, key=lambda subset: sum(elements[name] for name in subset)):
        trial = dict(orders)
        for name in copied:
            trial[name] = _canonical_order(name, trial, kinds, free=copied)
        view = _view_without_copies(trial, sizes, kinds)
        if view is not None:
            return _with_permutations(view, contraction, trial, copied)
    raise AssertionError(f"contraction {contraction} of {a_shape} and {b_shape} has no GEMM form: this is a bug")


def _kind(label: int, contraction: Contraction) -> str:
    in_a, in_b, in_out = (label in labels for labels in (contraction.a, contraction.b, contraction.out))
    if in_a and in_b:
        return "l" if in_out else "k"
    return "m" if in_a else "n"


def _canonical_order(
    name: str, orders: Mapping[str, tuple[int, ...]], kinds: Mapping[int, str], free: Sequence[str]
) -> tuple[int, ...]:
    """Axis order of a copied array: batch axes first, each kind in the order of an array that stays as it lies."""
    wanted = {"a": "lmk", "b": "lkn", "d": "lmn"}[name]
    reference = {"l": "dab", "m": "da", "n": "db", "k": "ab"}
    result: list[int] = []
    for kind in wanted:
        others = [other for other in reference[kind] if other != name and other not in free]
        # With both neighbours copied too, any order that they share will do: the first array's.
        source = orders[(others or [reference[kind][0]])[0]]
        result += [label for label in source if kinds[label] == kind]
    return tuple(result)


def _view_without_copies(
    orders: Mapping[str, tuple[int, ...]], sizes: Mapping[int, int], kinds: Mapping[int, str]
) -> GemmView | None:
    lists = {name: list(order) for name, order in orders.items()}
    merged = dict(sizes)
    _merge_neighbours(lists, merged, kinds)
    by_kind: dict[str, list[int]] = {kind: [] for kind in "lmnk"}
    for label in dict.fromkeys([*lists["d"], *lists["a"], *lists["b"]]):
        by_kind[kinds[label]].append(label)
    for batch_label in _batch_candidates(by_kind, merged):
        axis_of = {label: "l" if label == batch_label else kinds[label] for label in merged}
        view = _assemble(lists, merged, axis_of)
        if view is not None:
            return view
    return None


def _merge_neighbours(lists: dict[str, list[int]], sizes: dict[int, int], kinds: Mapping[int, str]) -> None:
    """Joins pairs of axes of one kind that are next to each other, in the same order, in every array that has them."""
    changed = True
    while changed:
        changed = False
        for order in lists.values():
            for left, right in itertools.pairwise(order):
                holders = [other for other in lists.values() if left in other or right in other]
                if kinds[left] == kinds[right] and all((left, right) in itertools.pairwise(other) for other in holders):
                    sizes[left] *= sizes[right]
                    for other in holders:
                        other.remove(right)
                    changed = True
                    break
            if changed:
                break


def _batch_candidates(by_kind: Mapping[str, list[int]], sizes: Mapping[int, int]) -> Sequence[int | None]:
    """Which axis may be l, best first. None: no batch is needed. Empty: one axis of each kind cannot be reached."""
    if len(by_kind["k"]) > 1 or len(by_kind["l"]) > 1:
        return []
    surplus = [kind for kind in "mn" if len(by_kind[kind]) > 1]
    if not surplus:
        return list(by_kind["l"]) or [None]
    if len(surplus) > 1 or by_kind["l"] or len(by_kind[surplus[0]]) > 2:
        return []
    return sorted(by_kind[surplus[0]], key=sizes.__getitem__)


def _assemble(
    lists: Mapping[str, Sequence[int]], sizes: Mapping[int, int], axis_of: Mapping[int, str]
) -> GemmView | None:
    """The view for a chosen batch axis, or None where an array's contiguous axis would be l."""
    views = {}
    for name, fallback in (("a", "k"), ("b", "k"), ("d", "n")):
        axes = "".join(axis_of[label] for label in lists[name])
        shape = tuple(sizes[label] for label in lists[name])
        if axes in ("", "l"):
            axes, shape = axes + fallback, (*shape, 1)
        if axes.endswith("l"):
            return None
        views[name] = MatrixView(axes, shape)
    extent = {axis: 1 for axis in "lmnk"}
    for name in "abd":
        extent.update(zip(views[name].axes, views[name].shape, strict=True))
    if views["d"].major == "n":
        return GemmView(extent["l"], extent["m"], extent["n"], extent["k"], views["a"], views["b"], views["d"], False)
    a, b, d = views["b"]._exchanged(), views["a"]._exchanged(), views["d"]._exchanged()
    return GemmView(extent["l"], extent["n"], extent["m"], extent["k"], a, b, d, True)


def _with_permutations(
    view: GemmView, contraction: Contraction, orders: Mapping[str, tuple[int, ...]], copied: Sequence[str]
) -> GemmView:
    """Adds the transposing copies, as permutations of the arrays with all their axes, those of size 1 leading."""
    full = {"a": contraction.a, "b": contraction.b, "d": contraction.out}
    for name in copied:
        kept = [label for label in full[name] if label not in orders[name]]
        order = [*kept, *orders[name]]
        if name == "d":
            permutation = tuple(order.index(label) for label in full[name])
        else:
            permutation = tuple(full[name].index(label) for label in order)
        slot = {"a": "b", "b": "a"}.get(name, name) if view.exchanged else name
        view = dataclasses.replace(view, **{slot: dataclasses.replace(getattr(view, slot), permutation=permutation)})
    return view
