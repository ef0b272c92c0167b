"""Arguments that describe a product, shared by the subcommands that take one."""

from __future__ import annotations

import argparse

from jax_clc.planning import GemmProblem, constraints
from jax_clc.planning.problem import DTYPE_BYTES, SHORT_DTYPES

MAX_COUNT = 2**31 - 1
MAX_COLUMNS = 10_000
MAX_AXIS = 2**63 - 1
"""The longest axis of an array: XLA keeps sizes in 64 bits."""

_DTYPE_NAMES = {short: name for name, short in SHORT_DTYPES.items()} | {name: name for name in DTYPE_BYTES}


def positive(text: str) -> int:
    """A count of at least 1."""
    return _whole(text, 1, MAX_COUNT)


def not_negative(text: str) -> int:
    """A count of at least 0."""
    return _whole(text, 0, MAX_COUNT)


def columns(text: str) -> int:
    """The width of a text in characters."""
    return _whole(text, 1, MAX_COLUMNS)


def axis_size(text: str) -> int:
    """A size of an array, which may be 0."""
    return _whole(text, 0, MAX_AXIS)


def _whole(text: str, least: int, most: int) -> int:
    """A whole number in decimal. Raises ArgumentTypeError, to which argparse adds the argument's name, for others."""
    shown = text if len(text) <= 24 else f"{text[:20]}..."
    # `int` refuses thousands of digits, in words of its own.
    number = int(text.lstrip("0")[: len(str(most)) + 1] or "0") if text.isdecimal() else -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{shown!r}: a whole number of at least {least} is wanted")
    if number > most:
        raise argparse.ArgumentTypeError(f"{shown!r}: a whole number of at most {most} is wanted")
    return number


def dtype_name(text: str) -> str:
    """`bf16` or `bfloat16` -> `bfloat16`."""
    if text not in _DTYPE_NAMES:
        raise argparse.ArgumentTypeError(f"unknown dtype {text!r}; choose from {', '.join(SHORT_DTYPES.values())}")
    return _DTYPE_NAMES[text]


def majors(text: str) -> tuple[str, str]:
    """`kn` -> ("k", "n"): the contiguous axis of a, then of b."""
    if len(text) != 2 or text[0] not in "km" or text[1] not in "kn":
        raise argparse.ArgumentTypeError(f"{text!r}: give a's contiguous axis (k or m), then b's (k or n), as in kn")
    return text[0], text[1]


def add_type_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", type=dtype_name, default="bfloat16", metavar="T", help="of a and b (default bf16)")
    parser.add_argument("--out-dtype", type=dtype_name, metavar="T", help="of the result (default: --dtype)")
    parser.add_argument("--majors", type=majors, default=("k", "n"), metavar="AB",
                        help="contiguous axis of a (k, m) and of b (k, n); default kn: both row-major")  # fmt: skip
    parser.add_argument("--batch", type=axis_size, default=1, metavar="L", help="products in one call (default 1)")


def add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedule", default="auto", choices=("auto", *constraints.SCHEDULES))
    parser.add_argument("--kernel", metavar="NAME", help="pin a kernel by name")
    parser.add_argument("--sm-limit", type=positive, metavar="N", help="use at most N SMs (static and dynamic)")


def problem_of(args: argparse.Namespace) -> GemmProblem:
    """The problem that the parsed arguments describe."""
    return GemmProblem.compact(
        args.m, args.n, args.k, batch=args.batch, dtype=args.dtype, out_dtype=args.out_dtype,
        a_major=args.majors[0], b_major=args.majors[1],
    )  # fmt: skip
