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

from jax_clc.contraction import Contraction

_NARROW = {"bf16": np.dtype(jnp.bfloat16), "f16": np.dtype(jnp.float16)}


@dataclasses.dataclass(frozen=True)
class Source:
    """A value of the program being lowered, with its shape and dtype, and the label of each of its axes."""

    value: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    labels: tuple[int, ...]


def see_through(a: Any, b: Any, avals: Sequence[Any], contraction: Contraction) -> tuple[Source, Source, Contraction]:
    """The operands behind transposes and exact widenings, and the contraction in their axes."""
    a_aval, b_aval = avals
    plain = [
        _behind_transposes(Source(value, tuple(aval.shape), aval.dtype, labels))
        for value, aval, labels in ((a, a_aval, contraction.a), (b, b_aval, contraction.b))
    ]
    narrow = [_behind_widening(source) for source in plain]
    if len({source.dtype for source in narrow}) == 1:
        plain = narrow  # kernels take operands of one dtype: a lone narrow operand would help nobody
    first, second = plain
    return first, second, Contraction(first.labels, second.labels, contraction.out)


def _operation(value: Any) -> Any:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner


def _behind_transposes(source: Source) -> Source:
    operation = _operation(source.value)
    while operation is not None and operation.name == "stablehlo.transpose":
        permutation = list(operation.attributes["permutation"])
        shape, labels = [0] * len(permutation), [0] * len(permutation)
        for axis, behind in enumerate(permutation):
            shape[behind], labels[behind] = source.shape[axis], source.labels[axis]
        source = Source(operation.operands[0], tuple(shape), source.dtype, tuple(labels))
        operation = _operation(source.value)
    return source


def _behind_widening(source: Source) -> Source:
    operation = _operation(source.value)
    if operation is None or operation.name != "stablehlo.convert" or source.dtype != np.float32:
        return source
    dtype = _NARROW.get(str(ir.RankedTensorType(operation.operands[0].type).element_type))
    if dtype is None:
        return source
    return _behind_transposes(dataclasses.replace(source, value=operation.operands[0], dtype=dtype))
