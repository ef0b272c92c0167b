"""`jax-clc`: the command line. A table of subcommands, each a module of this package, imported when asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

COMMANDS = {
    "demo": ("jax_clc.cli.demo", "multiply two matrices, check the result, say what ran"),
    "info": ("jax_clc.cli.info", "versions, driver, devices, kernels that would serve"),
    "plan": ("jax_clc.cli.plan", "which kernel serves a product, and why"),
    "bench": ("jax_clc.cli.bench", "check, then time against jnp.dot"),
    "tune": ("jax_clc.cli.tune", "measure your shapes, write a table for JAX_CLC_TUNED"),
    "verify": ("jax_clc.cli.verify", "run the kernels' PTX on the emulated device, under hostile conditions"),
    "timeline": ("jax_clc.cli.timeline", "draw who computed which tile when"),
    "first-contact": ("jax_clc.cli.first_contact", "all checks and measurements on a new GPU, as one JSON"),
}
"""name -> (module, what it does). A module has `add_parser(subparsers)` and `main(args)`, which gives a status."""


class PrintVersion(argparse.Action):
    """Prints the version and ends the program, whatever else was asked for. Imports the package only then."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: Any) -> NoReturn:
        import jax_clc

        print(jax_clc.__version__)
        parser.exit()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of `jax-clc`; only the module of `command` is imported, the others appear with their one line."""
    parser = argparse.ArgumentParser(prog="jax-clc", description="Persistent GEMM kernels for JAX on NVIDIA GPUs.")
    parser.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and leave")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, summary) in COMMANDS.items():
        if name == command:
            importlib.import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and gives its exit status.

    0 done, 1 a check failed, 2 a request that cannot be met, 130 interrupted, 141 nobody reads the output any more.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser = build_parser(command)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        status = importlib.import_module(COMMANDS[parsed.command][0]).main(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered has nowhere to go
        return 141
    except (ValueError, RuntimeError, OSError) as error:
        if "KeyboardInterrupt" not in str(error):  # in an emulated kernel, under XLA, it becomes an error of XLA's
            print(f"jax-clc {parsed.command}: {error}", file=sys.stderr)
            return 2
        return interrupted()
    except KeyboardInterrupt:
        return interrupted()
    return int(status or 0)


def interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130
