"""A contraction of two arrays in labels: the one form in which matmul, dot_general and einsum meet.

`a=(0, 1), b=(1, 2), out=(0, 2)` is the plain matrix product. A label in all three is a batch axis (l), one in `a` and
`b` only is contracted (k), one in `a` and `out` only is m, one in `b` and `out` only is n. With labels, the backward
products and the batched product are contractions again, and the order of the result's axes is free: no transpose of an
operand or of a result is ever written down.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def _letters(labels: Sequence[int]) -> str:
    return "".join(chr(ord("a") + label) if label < 26 else f"<{label}>" for label in labels)


@dataclasses.dataclass(frozen=True)
class Contraction:
    """Labels of the axes of both operands and of the result, outermost first. A parameter of the primitive."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("a", "b", "out"):
            labels = getattr(self, name)
            if len(set(labels)) != len(labels):
                raise ValueError(f"Contraction: {name}={labels} names an axis twice")
        both = set(self.a) & set(self.b)
        either = set(self.a) ^ set(self.b)
        if not either <= set(self.out) <= (both | either):
            raise ValueError(
                f"Contraction {self}: an axis of one operand must be in the result, and no axis appears there alone"
            )

    def __str__(self) -> str:
        return f"{_letters(self.a)},{_letters(self.b)}->{_letters(self.out)}"

    __repr__ = __str__

    @classmethod
    def from_dimension_numbers(cls, dimension_numbers: DimensionNumbers, a_ndim: int, b_ndim: int) -> Contraction:
        """`lax.dot_general`'s dimension numbers, already checked, as labels."""
        (a_contracting, b_contracting), (a_batch, b_batch) = dimension_numbers
        a = list(range(a_ndim))
        b = list(range(a_ndim, a_ndim + b_ndim))
        for a_axis, b_axis in [*zip(a_batch, b_batch, strict=True), *zip(a_contracting, b_contracting, strict=True)]:
            b[b_axis] = a[a_axis]
        batch = [a[axis] for axis in a_batch]
        out = batch + [x for x in a if x not in b] + [x for x in b if x not in a]
        return cls(tuple(a), tuple(b), tuple(out))._renumbered()

    def _renumbered(self) -> Contraction:
        """The same contraction with labels counted in order of appearance, so that equal contractions compare equal."""
        names: dict[int, int] = {}
        for label in self.a + self.b:
            names.setdefault(label, len(names))
        a, b, out = (tuple(names[label] for label in labels) for labels in (self.a, self.b, self.out))
        return Contraction(a, b, out)

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(x for x in self.out if x in self.a and x in self.b)

    @property
    def contracted(self) -> tuple[int, ...]:
        return tuple(x for x in self.a if x not in self.out)

    def dimension_numbers(self) -> DimensionNumbers:
        """The same product for `lax.dot_general`; its result has the axis order `natural_out`."""
        k, batch = self.contracted, self.batch
        contracting = (tuple(map(self.a.index, k)), tuple(map(self.b.index, k)))
        return contracting, (tuple(map(self.a.index, batch)), tuple(map(self.b.index, batch)))

    @property
    def natural_out(self) -> tuple[int, ...]:
        """Axis order that `lax.dot_general` gives: batch, a's free axes, b's free axes."""
        shared = set(self.a) & set(self.b)
        return self.batch + tuple(x for x in self.a + self.b if x not in shared)

    def permutation(self) -> tuple[int, ...]:
        """`lax.transpose(dot_general_result, permutation)` has the axis order `out`."""
        natural = self.natural_out
        return tuple(map(natural.index, self.out))

    def sizes(self, a_shape: Sequence[int], b_shape: Sequence[int]) -> dict[int, int]:
        """Size of each label. The shapes must agree where the operands share a label."""
        return {**dict(zip(self.a, a_shape, strict=True)), **dict(zip(self.b, b_shape, strict=True))}

    def exchanged(self) -> Contraction:
        """The same product of (b, a)."""
        return Contraction(self.b, self.a, self.out)._renumbered()

    def wrt_a(self) -> Contraction:
        """Cotangent of `a` from (cotangent of the result, b)."""
        return Contraction(self.out, self.b, self.a)._renumbered()

    def wrt_b(self) -> Contraction:
        """Cotangent of `b` from (a, cotangent of the result)."""
        return Contraction(self.a, self.out, self.b)._renumbered()

    def batched(self, a_axis: int | None, b_axis: int | None) -> tuple[Contraction, int]:
        """The product over one more axis, found at `a_axis` of a, `b_axis` of b, or both; and where the result has it.

        An axis of one operand only goes next to the neighbour that it has there, where it merges into m or n without a
        copy; an axis of both becomes the leading batch axis.
        """
        new = 1 + max((*self.a, *self.b), default=-1)
        a = self.a if a_axis is None else (*self.a[:a_axis], new, *self.a[a_axis:])
        b = self.b if b_axis is None else (*self.b[:b_axis], new, *self.b[b_axis:])
        position = 0
        if a_axis is None or b_axis is None:
            labels, other = (a, self.b) if b_axis is None else (b, self.a)
            where = labels.index(new)
            after, before = labels[where + 1 : where + 2], labels[max(where - 1, 0) : where]
            if after and after[0] in self.out and after[0] not in other:
                position = self.out.index(after[0])
            elif before and before[0] in self.out and before[0] not in other:
                position = self.out.index(before[0]) + 1
        out = (*self.out[:position], new, *self.out[position:])
        return Contraction(a, b, out)._renumbered(), position


@functools.lru_cache(maxsize=4096)
def einsum_contraction(subscripts: str, a_shape: Sequence[int], b_shape: Sequence[int]) -> Contraction | None:
    """The contraction that an einsum of two arrays is, or None where it is more than that.

    More than that: an implicit result, an ellipsis, a diagonal, an axis summed in one operand alone, a size 1 that
    broadcasts, and whatever `jnp.einsum` has an error for.
    """
    letters = subscripts.replace(" ", "")
    inputs, arrow, out = letters.partition("->")
    parts = inputs.split(",")
    if not arrow or len(parts) != 2 or not all(part.isalpha() or part == "" for part in (*parts, out)):
        return None
    a, b = parts
    if (len(a), len(b)) != (len(a_shape), len(b_shape)) or any(len(set(part)) != len(part) for part in (a, b, out)):
        return None
    if not set(a) ^ set(b) <= set(out) <= set(a) | set(b):
        return None
    sizes = dict(zip(a, a_shape, strict=True))
    if any(sizes.get(letter, size) != size for letter, size in zip(b, b_shape, strict=True)):
        return None
    numbers = {letter: number for number, letter in enumerate(dict.fromkeys(a + b))}
    return Contraction(*(tuple(numbers[letter] for letter in part) for part in (a, b, out)))
