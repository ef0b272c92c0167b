"""`run_ptx`: any PTX kernel on the emulated device, with NumPy arrays for its buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from .axioms import STRICT, Axioms
from .errors import EmulatorError
from .launch_arguments import Buffer, LaunchError, check_target, cluster_of, integer, pack, place_buffers, triple
from .machine import Launch, Machine, TraceEvent
from .options import Hostility
from .ptx_parser import parse_ptx
from .ptx_tree import Kernel, Module
from .referee import Referee
from .translator import Program, translate


@dataclass(slots=True)
class RunReport:
    """What a run did."""

    instructions: int
    ticks: int
    launches: list[Launch]
    unproven: list[EmulatorError] = field(default_factory=list)


@lru_cache(maxsize=64)
def _module(digest: str, text: str) -> Module:
    return parse_ptx(text)


@lru_cache(maxsize=128)
def _program(digest: str, text: str, entry: str, block: tuple[int, int, int]) -> Program:
    module = _module(digest, text)
    return translate(module, module.kernels[entry], block, text)


def load_program(ptx: str, entry: str | None, block: tuple[int, int, int]) -> Program:
    """Parse and translate, cached by content. Raises LaunchError, PtxSyntaxError, UnsupportedInstruction."""
    digest = hashlib.sha256(ptx.encode()).hexdigest()
    module = _module(digest, ptx)
    if entry is None:
        if len(module.kernels) != 1:
            raise LaunchError(f"the module has kernels {sorted(module.kernels)}: name one")
        entry = next(iter(module.kernels))
    if entry not in module.kernels:
        raise LaunchError(f"no kernel {entry!r}; the module has {sorted(module.kernels)}")
    check_block(module.kernels[entry], block)
    return _program(digest, ptx, entry, block)


def check_block(kernel: Kernel, block: tuple[int, int, int]) -> None:
    """The block agrees with .reqntid and .maxntid. Raises LaunchError."""
    if kernel.reqntid is not None and kernel.reqntid != block:
        raise LaunchError(f"kernel {kernel.name} requires blocks of {kernel.reqntid} threads, launched with {block}")
    if kernel.maxntid is not None:
        limit = kernel.maxntid[0] * kernel.maxntid[1] * kernel.maxntid[2]
        if block[0] * block[1] * block[2] > limit:
            raise LaunchError(f"kernel {kernel.name} allows {limit} threads in a block, launched with {block}")


def check_parameters(kernel: Kernel, params: bytes) -> None:
    """The parameter block has the kernel's size. Raises LaunchError."""
    if len(params) != kernel.parameter_bytes:
        layout = ", ".join(f"{p.size} at {p.offset}" for p in kernel.parameters)
        raise LaunchError(
            f"{len(params)} bytes of parameters for kernel {kernel.name}, which takes {kernel.parameter_bytes} "
            f"({layout})"
        )


def new_referee(program: Program, axioms: Axioms, foreign: bool) -> Referee:
    """A referee fine enough for the narrowest shared-memory access of the kernel."""
    return Referee(axioms, foreign=foreign, granule_bytes=narrowest_access(program.kernel))


def narrowest_access(kernel: Kernel) -> int:
    from .ptx_tree import TYPE_BYTES, Instruction

    sizes = [4]
    for item in kernel.body:
        if (
            isinstance(item, Instruction)
            and item.parts[0] in ("ld", "st", "atom", "red")
            and item.parts[-1] in TYPE_BYTES
        ):
            if not any(p in ("global", "param", "local", "const") for p in item.parts):
                count = next((int(p[1]) for p in item.parts if p in ("v2", "v4", "v8")), 1)
                sizes.append(TYPE_BYTES[item.parts[-1]] * count)
    return min(sizes)


def run_ptx(
    ptx: str,
    entry: str | None = None,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    cluster: int | Sequence[int] | None = None,
    dynamic_smem_bytes: int = 0,
    args: Sequence[object] = (),
    buffers: Sequence[np.ndarray | Buffer] = (),
    arch: str = "sm_90a",
    sm_count: int = 8,
    seed: int = 0,
    hostility: Hostility | None = None,
    axioms: Axioms = STRICT,
    foreign: bool = False,
    referee: bool = True,
    trace: list[TraceEvent] | None = None,
) -> RunReport:
    """Run one kernel on an emulated GPU of `sm_count` SMs.

    `args`, one for each kernel parameter: NumPy arrays or `Buffer`s (device memory, passed as pointers, changed in
    place), numbers (by the parameter's type), bytes (as they are), TensorMaps, or a callable that takes
    {id(array): device address} and returns one of these. `buffers` are further device memory, for tensor maps to point
    to. `cluster`: the kernel's own if left out. `foreign`: verdicts that rest on our own axioms are reported as
    unproven.

    `trace`, an empty list, receives the tensor loads, MMAs and stores in the order of issue. Raises EmulatorError
    subclasses with PTX line, CTA and warp.
    """
    if arch not in ("sm_90a", "sm_90", "sm_100a", "sm_100f", "sm_100", "sm_103a"):
        raise LaunchError(f"architecture {arch!r} is not emulated")
    if not isinstance(ptx, str):
        raise LaunchError(f"PTX is text, not {type(ptx).__name__}")
    block_shape, grid_shape = triple("block", block), triple("grid", grid)
    integer("dynamic_smem_bytes", dynamic_smem_bytes, 0)
    integer("sm_count", sm_count, 1)
    integer("seed", seed, 0)
    program = load_program(ptx, entry, block_shape)
    check_target(program.target, arch)
    cluster_shape = cluster_of(program.kernel, cluster)
    judge = new_referee(program, axioms, foreign) if referee else None
    machine = Machine(sm_count, seed, Hostility() if hostility is None else hostility, judge, axioms)
    machine.trace = trace
    data_base = add_module_data(machine, program)
    params = pack(program.kernel, args, place_buffers(machine.memory, [*args, *buffers]))
    if any(g % c for g, c in zip(grid_shape, cluster_shape, strict=True)):
        raise LaunchError(f"grid {grid_shape} is not a whole number of clusters {cluster_shape}")
    machine.run_grid(program, grid_shape, block_shape, cluster_shape, dynamic_smem_bytes, params, data_base)
    machine.memory.check_coverage()
    return RunReport(
        machine.instructions, machine.now, list(machine.launches.values()), judge.unproven if judge else []
    )


def add_module_data(machine: Machine, program: Program) -> int:
    """Place the module's .const and .global variables; returns their address."""
    address = 0x6_0000_0000
    if program.constant_bytes:
        machine.memory.add(address, np.frombuffer(bytearray(program.constant_bytes), np.uint8), "module variables")
    return address
