"""Looks through what a program does to an operand just before the product, so that no copy of it is made.

A transpose only renames axes, and the kernel takes any order that strides can say: `a.T @ b` reads `a` as it lies. A
widening of a 16-bit float is exact, and so are its products in 32-bit accumulation: the kernel reads the narrow array.
This makes the backward product of a 16-bit layer with 32-bit results a 16-bit product again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp
from jax.interpreters.mlir import ir

from jax_clc import _jax_internals as internals
from jax_clc.contraction import Contraction

_NARROW = {"bf16": np.dtype(jnp.bfloat16), "f16": np.dtype(jnp.float16)}


@dataclasses.dataclass(frozen=True)
class Source:
    """A value of the program being lowered, with its abstract value, and the label of each of its axes."""

    value: Any
    aval: Any
    labels: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype


Sources = tuple[tuple[Source, Source], Contraction]
"""Both operands, and the contraction in their axes."""


def given(a: Any, b: Any, avals: Sequence[Any], contraction: Contraction) -> Sources:
    """The operands as the caller sees them."""
    a_aval, b_aval = avals
    return (Source(a, a_aval, contraction.a), Source(b, b_aval, contraction.b)), contraction


def sources_of(a: Any, b: Any, avals: Sequence[Any], contraction: Contraction) -> Sources:
    """The operands behind transposes and exact widenings. Those with explicit shardings, which belong to their axes,
    are taken as they are."""
    (first, second), _ = as_they_are = given(a, b, avals, contraction)
    if any(internals.explicit_sharding(aval) for aval in avals):
        return as_they_are
    first, second = _behind_transposes(first), _behind_transposes(second)
    narrow = _behind_widening(first), _behind_widening(second)
    if narrow[0].dtype == narrow[1].dtype:
        first, second = narrow  # kernels take operands of one dtype: a lone narrow operand would help nobody
    return (first, second), Contraction(first.labels, second.labels, contraction.out)


def _operation(value: Any) -> Any:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner


def _behind_transposes(source: Source) -> Source:
    operation = _operation(source.value)
    while operation is not None and operation.name == "stablehlo.transpose":
        permutation = list(operation.attributes["permutation"])
        order = [permutation.index(axis) for axis in range(len(permutation))]
        shape, labels = ([x[axis] for axis in order] for x in (source.shape, source.labels))
        source = Source(operation.operands[0], internals.plain_aval(shape, source.dtype), tuple(labels))
        operation = _operation(source.value)
    return source


def _behind_widening(source: Source) -> Source:
    operation = _operation(source.value)
    if operation is None or operation.name != "stablehlo.convert" or source.dtype != np.float32:
        return source
    dtype = _NARROW.get(str(ir.RankedTensorType(operation.operands[0].type).element_type))
    if dtype is None:
        return source
    return _behind_transposes(Source(operation.operands[0], internals.plain_aval(source.shape, dtype), source.labels))
