"""Reads programs: the custom calls in lowered StableHLO, and the collectives in compiled HLO."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax

_CALL = re.compile(
    r"stablehlo\.custom_call @jax_clc\.gemm\.v1\((?P<operands>[^)]*)\) \{(?P<attributes>.*)\} : \((?P<types>.*?)\) -> "
)
_OPERATION = re.compile(r"(?:stablehlo|chlo)\.(\w+)")
_COLLECTIVE = re.compile(r"= [^=]*? (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@dataclasses.dataclass(frozen=True)
class Call:
    """One custom call: its operands' names and its attributes, as text."""

    operands: tuple[str, ...]
    text: str
    types: tuple[str, ...]

    def __getitem__(self, attribute: str) -> str:
        found = re.search(rf"\b{attribute} = (?:\"([^\"]*)\"|dense<\[?([-\d, ]*)\]?>|(-?\d+))", self.text)
        assert found, f"no attribute {attribute} in {self.text}"
        return next(group for group in found.groups() if group is not None)


@dataclasses.dataclass(frozen=True)
class Program:
    """A lowered program: its text, our custom calls, and how often each StableHLO operation occurs."""

    text: str
    calls: tuple[Call, ...]
    operations: collections.Counter[str]


def lowered(function: Callable[..., Any], *arguments: Any, platform: str = "cuda") -> Program:
    """The program that `function` lowers to for a platform that need not be here."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    calls = tuple(
        Call(tuple(found["operands"].split(", ")), found["attributes"], tuple(found["types"].split(", ")))
        for found in _CALL.finditer(text)
    )
    return Program(text, calls, collections.Counter(_OPERATION.findall(text)))


def collectives(function: Callable[..., Any], *arguments: Any, **jit_arguments: Any) -> dict[str, int]:
    """How often each collective occurs in the compiled program."""
    text = jax.jit(function, **jit_arguments).lower(*arguments).compile().as_text()
    return dict(collections.Counter(_COLLECTIVE.findall(text)))
