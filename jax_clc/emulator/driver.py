"""The emulated device behind the extension's driver table: what `_native.set_emulator` takes (docs/design.md, 7.4)."""

from __future__ import annotations

import ctypes
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jax_clc.planning import catalog

from .axioms import STRICT, Axioms
from .errors import EmulatorError
from .kernel_run import dtype_of, read_ptx, region_of_d
from .launch_arguments import LaunchError, triple
from .layout import SHARED_BASE
from .machine import Machine
from .options import Hostility
from .run import RunReport, add_module_data, check_parameters, load_program, new_referee
from .translator import Program

REPORTS_KEPT = 64


class EmulatedDevice:
    """A GPU of `arch` with `sm_count` SMs that runs the PTX shipped next to each cubin.

    Every launch gets a machine of its own, seeded from `seed` and the launch's number, so that the same program with
    the same seed is the same run. `hostility` are fields of `Hostility`. Keeps the reports of the newest launches in
    `reports`. Raises ValueError for an `arch` that no kernel is built for.
    """

    def __init__(
        self, arch: str, *, sm_count: int = 8, seed: int = 0, axioms: Axioms = STRICT, referee: bool = True,
        folder: Path | None = None, **hostility: object,
    ):  # fmt: skip
        self.arch = arch
        self.compute_capability = catalog.compute_capability_of(arch)
        self.sm_count = sm_count
        self.seed = seed
        self.axioms = axioms
        self.referee = referee
        self.options = Hostility(**hostility)  # type: ignore[arg-type]
        self.reports: deque[RunReport] = deque(maxlen=REPORTS_KEPT)
        self._folder = Path(folder) if folder is not None else None
        self._entries: dict[str, Mapping] = {}
        self._programs: dict[str, Program] = {}
        self._launches = 0

    # the driver's entry points

    def load(self, kernel_name: str) -> int:
        """Read, parse and translate a kernel's PTX. Returns a handle, 1."""
        self._program(kernel_name)
        return 1

    def max_active_clusters(
        self,
        kernel_name: str,
        grid: Sequence[int],
        block: Sequence[int],
        cluster: Sequence[int],
        dynamic_smem_bytes: int,
    ) -> int:
        """Clusters of a launch that are resident at once on an idle device."""
        program, size = self._program(kernel_name), math.prod(cluster)
        shared = SHARED_BASE + program.static_shared_bytes + dynamic_smem_bytes
        threads = -(-math.prod(block) // 32) * 32
        return self._machine(0).resident_clusters(shared, threads, self._entry(kernel_name)["registers"], size)

    def memset(self, address: int, value: int, count_bytes: int) -> None:
        """Fill host memory that stands for device memory."""
        ctypes.memset(address, value, count_bytes)

    def launch(
        self,
        kernel_name: str,
        grid: Sequence[int],
        block: Sequence[int],
        cluster: Sequence[int],
        dynamic_smem_bytes: int,
        params: bytes,
        buffers: list[tuple[int, int, str]],
    ) -> None:
        """Run a launch to its end. `buffers` is all the global memory there is: (host address, bytes, operand).

        D is filled with NaN first, and each of its elements must be stored exactly once. Raises EmulatorError
        subclasses that name the kernel, the seed and the launch.
        """
        self._launches += 1
        entry, program = self._entry(kernel_name), self._program(kernel_name)
        check_parameters(program.kernel, params)
        machine = self._machine(self._launches, program)
        for address, size, operand in buffers:
            if size == 0 or address == 0:
                continue
            buffer = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
            allocation = machine.memory.add(address, buffer, operand)
            if operand == "d":
                buffer.fill(0xFF)
                allocation.audit(region_of_d(entry, bytes(params), size), dtype_of(entry["dtypes"]["d"]).itemsize)
        given = {"grid": grid, "block": block, "cluster": cluster}
        shapes = [triple(what, [int(v) for v in shape]) for what, shape in given.items()]
        if any(g % c for g, c in zip(shapes[0], shapes[2], strict=True)):
            raise LaunchError(f"kernel {kernel_name}: grid {shapes[0]} is not a whole number of clusters {shapes[2]}")
        registers, data = entry["registers"] or None, add_module_data(machine, program)
        try:
            machine.run_grid(
                program, shapes[0], shapes[1], shapes[2], dynamic_smem_bytes, bytes(params), data, registers
            )
            machine.memory.check_coverage()
        except EmulatorError as error:
            error.add_note(f"kernel {kernel_name}, launch {self._launches}, seed {self.seed}, {self.sm_count} SMs")
            raise
        self.reports.append(RunReport(machine.instructions, machine.now, list(machine.launches.values())))

    # helpers

    def _machine(self, number: int, program: Program | None = None) -> Machine:
        judge = new_referee(program, self.axioms, False) if self.referee and program is not None else None
        return Machine(self.sm_count, self.seed * 1_000_003 + number, self.options, judge, self.axioms)

    def _entry(self, kernel_name: str) -> Mapping:
        if kernel_name not in self._entries:
            manifest = json.loads((self._directory() / "manifest.json").read_text())
            self._entries = {entry["name"]: entry for entry in manifest["kernels"]}
        if kernel_name not in self._entries:
            raise LaunchError(f"no kernel {kernel_name!r} in {self._directory() / 'manifest.json'}")
        return self._entries[kernel_name]

    def _directory(self) -> Path:
        return self._folder if self._folder is not None else catalog.directory()

    def _program(self, kernel_name: str) -> Program:
        if kernel_name not in self._programs:
            entry = self._entry(kernel_name)
            ptx = read_ptx(entry, self._directory())
            self._programs[kernel_name] = load_program(ptx, entry["symbol"], triple("block", entry["launch"]["block"]))
        return self._programs[kernel_name]
