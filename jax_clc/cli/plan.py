"""`jax-clc plan M N K`: which kernel serves a product, and why. Needs no GPU."""

from __future__ import annotations

import argparse

from jax_clc.cli import problem_arguments
from jax_clc.planning import GemmPlan, plan
from jax_clc.planning.device_model import device_model


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("plan", help="which kernel serves a product, and why", description=__doc__)
    parser.add_argument("m", type=problem_arguments.axis_size)
    parser.add_argument("n", type=problem_arguments.axis_size)
    parser.add_argument("k", type=problem_arguments.axis_size)
    problem_arguments.add_type_arguments(parser)
    problem_arguments.add_choice_arguments(parser)
    parser.add_argument("--arch", metavar="ARCH", help="plan for one GPU family, e.g. sm_90a or 10.3 (default: all)")
    parser.add_argument("--sm-count", type=problem_arguments.positive, metavar="N", help="its SMs (with --arch)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Prints the plan. A request that cannot be honoured is a ValueError, whose text names what would fit."""
    if args.sm_count is not None and args.arch is None:
        raise ValueError("--sm-count needs --arch")
    devices = None if args.arch is None else [device_model(args.arch, sm_count=args.sm_count)]
    problem = problem_arguments.problem_of(args)
    made = plan(problem, schedule=args.schedule, kernel=args.kernel, sm_limit=args.sm_limit, devices=devices)
    if problem.flops == 0:  # as in a JAX program, which holds no kernel for it
        made = GemmPlan(problem, {}, "an empty sum or result needs no kernel")
    print(made)
    return 0
