"""A warp: identity, active lanes, divergence, lane exchange. What generated code calls as `warp.something`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .errors import BranchOutOfRange, BrokenAligned, EmulatorError, UnsupportedInstruction
from .lane_math import BITS, LANES
from .memory import PARAM_WINDOW
from .warp_matrix import WarpMatrix
from .warp_tensor_memory import WarpTensorMemory

if TYPE_CHECKING:
    from .machine import Cta

FULL = 0xFFFFFFFF
PATIENCE = 32  # polls after which lanes at a meeting block stop waiting for the polling ones
_LANE = np.arange(32, dtype=np.uint32)


class TrapError(EmulatorError):
    """The kernel executed `trap`."""


class Warp(WarpTensorMemory, WarpMatrix):
    """32 lanes of a CTA. Masks are integers, bit i for lane i."""

    def __init__(self, cta: Cta, index: int, live: int):
        self.cta, self.index, self.live = cta, index, live
        self.cluster, self.machine = cta.cluster, cta.machine
        self.options = cta.machine.options
        self.random = cta.machine.random
        self.referee = cta.machine.referee
        self.handle = self.referee.warp_start(cta.number, index, live) if self.referee is not None else None
        self.count = 0  # instructions executed
        self.limit = 0  # instructions at which a loop without synchronisation gives up the turn
        self.cluster_target = 0
        self.cluster_arrivals = 0  # lanes that have arrived at the cluster's barrier and not yet waited
        self.wants_registers = False  # in the middle of a setmaxnreg
        self.rotations = 0
        self.turn = 1
        self.waiting: str | None = None  # what the warp sleeps on, for the deadlock report
        self.polled = None  # (CTA, offset, parity or state, is parity) of the last mbarrier that was not over
        self.ticket = None  # what a blocking helper remembers between its first call and its success
        self.params = cta.grid.params
        self.shared_window = cta.rank << 24
        self.param_base = PARAM_WINDOW
        self.data_base = cta.grid.data_base
        self.local = None
        if cta.grid.program.local_bytes:
            self.local = np.full((32, -(-cta.grid.program.local_bytes // 16) * 16), 0xFF, np.uint8)
        self._set_specials()
        self.init_copies()
        self.init_matrix()
        self.init_tensor_memory()
        self.generator = cta.grid.program.run(self)

    def __str__(self) -> str:
        return f"CTA {self.cta.number} {self.cta.position} warp {self.index}"

    # special registers

    def _set_specials(self) -> None:
        cta, grid = self.cta, self.cta.grid
        threads = self.index * 32 + _LANE
        x, y, z = grid.block
        self.special_tid_x = (threads % x).astype(np.uint32)
        # y and z are one number for a warp whose rows are whole warps, as the translator assumes.
        self.special_tid_y = (threads // x % y).astype(np.uint32)
        self.special_tid_z = (threads // (x * y)).astype(np.uint32)
        for axis, letter in enumerate("xyz"):
            setattr(self, f"special_ntid_{letter}", grid.block[axis])
            setattr(self, f"special_ctaid_{letter}", cta.position[axis])
            setattr(self, f"special_nctaid_{letter}", grid.grid[axis])
            setattr(self, f"special_clusterid_{letter}", cta.position[axis] // grid.cluster[axis])
            setattr(self, f"special_nclusterid_{letter}", grid.grid[axis] // grid.cluster[axis])
            setattr(self, f"special_cluster_ctaid_{letter}", cta.position[axis] % grid.cluster[axis])
            setattr(self, f"special_cluster_nctaid_{letter}", grid.cluster[axis])
        self.special_cluster_ctarank = cta.rank
        self.special_cluster_nctarank = grid.cluster_size
        self.special_is_explicit_cluster = grid.cluster_size > 1
        self.special_laneid = _LANE
        self.special_warpid = self.index
        self.special_nwarpid = grid.warps
        self.special_smid = cta.sm
        self.special_nsmid = self.machine.sm_count
        self.special_gridid = grid.number
        self.special_lanemask_eq = np.uint32(1) << _LANE
        self.special_lanemask_lt = (np.uint32(1) << _LANE) - np.uint32(1)
        self.special_lanemask_le = self.special_lanemask_eq | self.special_lanemask_lt
        self.special_lanemask_gt = ~self.special_lanemask_le
        self.special_lanemask_ge = ~self.special_lanemask_lt
        self.special_dynamic_smem_size = grid.dynamic_smem_bytes
        self.special_total_smem_size = self.special_aggr_smem_size = cta.shared.size

    def read_special(self, name: str) -> int:
        """Clocks. Other special registers are not emulated."""
        if name in ("clock", "clock64", "globaltimer", "globaltimer_lo", "clock_hi", "globaltimer_hi"):
            value = self.machine.now * 32 if "clock" in name else self.machine.now * 20
            if name.endswith("_hi"):
                return value >> 32
            return value & 0xFFFFFFFF if name in ("clock", "globaltimer_lo") else value
        raise UnsupportedInstruction(f"special register %{name} is not emulated")

    # turns

    def pause(self) -> bool:
        """True when another warp gets the turn."""
        self.turn -= 1
        if self.turn > 0:
            return False
        low, high = self.options.turn
        self.turn = self.random.randint(low, high)
        return True

    def poll(self) -> None:
        """A look at memory that others change: the caller yields."""
        self.machine.polls += 1

    def sleep(self, why: str) -> None:
        """Mark the warp as waiting: the machine does not resume it until `machine.wake`."""
        self.waiting = why

    # divergence: stack entries are [meeting block, other block, other lanes, all lanes, the other lanes' own entries]

    def diverge(
        self, stack: list, taken: int, mask: int, taken_block: int, other_block: int, meet: int
    ) -> tuple[int, int]:
        """Lanes part; the seed decides who goes first. Returns (block, lanes) to run now."""
        other = mask & ~taken
        if other_block == meet or (taken_block != meet and self.random.random() < 0.5):
            first, lanes, second, rest = taken_block, taken, other_block, other
        else:
            first, lanes, second, rest = other_block, other, taken_block, taken
        if first == meet:
            first, lanes, second, rest = second, rest, first, lanes
        stack.append([meet, -1, 0, mask, []] if second == meet else [meet, second, rest, mask, []])
        return first, lanes

    def reconverge(self, stack: list, block: int) -> tuple[int, int]:
        """The running lanes reached their meeting block: run those still to come, or go on together."""
        mask = 0
        while stack and stack[-1][0] == block:
            entry = stack[-1]
            if entry[2]:
                other, lanes = entry[1], entry[2] & self.live
                entry[2] = 0
                if lanes:
                    stack += entry[4]
                    entry[4] = []
                    return other, lanes
            mask = entry[3] & self.live
            stack.pop()
        return block, mask

    def resume_others(self, stack: list) -> tuple[int, int]:
        """The running lanes have exited: run others of the warp, if any."""
        while stack:
            meet, other, lanes, everyone, _ = stack[-1]
            lanes &= self.live
            if lanes:
                entry = stack[-1]
                entry[2] = 0
                stack += entry[4]
                entry[4] = []
                return other, lanes
            stack.pop()
            if everyone & self.live:
                return meet, everyone & self.live
        return -1, 0

    def rotate(self, stack: list, block: int, mask: int) -> tuple[int, int]:
        """The running lanes poll: let others of the warp go on, if any can. After long polling in vain, lanes that
        wait at a meeting block for the polling ones go on without them (independent thread scheduling)."""
        self.rotations += 1
        depths = [depth for depth, entry in enumerate(stack) if entry[2] & self.live]
        if depths:
            depth = self.random.choice(depths)
            entry = stack[depth]
            other, lanes, inner = entry[1], entry[2] & self.live, entry[4]
            entry[1], entry[2], entry[4] = block, mask, stack[depth + 1 :]
            stack[depth + 1 :] = inner
            return other, lanes
        if self.rotations % PATIENCE == 0:
            running = mask
            for depth in reversed(range(len(stack))):
                meet, _, _, everyone, _ = stack[depth]
                waiting = everyone & self.live & ~running
                if waiting:
                    outer = stack[depth - 1][0] if depth else -1
                    stack[depth] = [outer, block, mask, everyone, stack[depth + 1 :]]
                    del stack[depth + 1 :]
                    return meet, waiting
                running |= everyone
        return block, mask

    def leave(self, mask: int) -> None:
        """Lanes exit."""
        self.live &= ~mask
        if self.referee is not None:
            self.referee.warp_exit(self.handle, mask, 0)
        self.cluster.lanes_left(self, mask)

    def trap(self) -> None:
        raise TrapError("the kernel executed trap")

    def beyond_table(self, index: int | np.ndarray, count: int, mask: int) -> None:
        first = index if isinstance(index, int) else int(index[LANES[mask]][0])
        raise BranchOutOfRange(f"brx.idx with index {first} into a table of {count} targets")

    # lane exchange

    def check_members(self, members: int | np.ndarray, mask: int) -> None:
        """`.sync` instructions: the executing lanes are in the member mask, and no live member is missing. Lanes that
        name different masks are as many groups."""
        if not isinstance(members, int):
            for group in np.unique(members[LANES[mask]]).tolist():
                self.check_members(group, mask & BITS(members == group))
            return
        if mask & ~members:
            raise BrokenAligned(f"lanes {mask:#010x} execute an instruction whose member mask is {members:#010x}")
        missing = members & self.live & ~mask
        if missing:
            raise BrokenAligned(f"lanes {missing:#010x} of member mask {members:#010x} do not take part")

    def check_aligned(self, mask: int, what: str) -> None:
        """`.aligned` instructions: all live lanes execute them together."""
        if mask != self.live:
            raise BrokenAligned(f"{what} is executed by lanes {mask:#010x} of {self.live:#010x}")

    def elect(self, members: int, mask: int) -> int:
        """The leader lane. Any lane is allowed; the lowest is what the hardware takes."""
        self.check_members(members, mask)
        members &= mask
        return (members & -members).bit_length() - 1

    def map_rank(self, address: int, rank: int) -> int:
        if rank >= self.cta.grid.cluster_size:
            raise EmulatorError(f"mapa of CTA {rank} in a cluster of {self.cta.grid.cluster_size}")
        return address | rank << 24

    def shuffle(self, mode, values, lane, clamp, members, mask):
        """(values, valid lanes) of shfl.sync for modes up, down, bfly, idx with PTX's segment mask and clamp. What a
        lane that does not take part would give is undefined: all ones."""
        self.check_members(members, mask)
        segment = (clamp >> np.uint32(8)) & np.uint32(31)
        limit = clamp & np.uint32(31)
        lane = lane & np.uint32(31)
        here = _LANE
        top = (here & segment) | (limit & ~segment & np.uint32(31))
        low = here & segment
        if mode == "up":
            source = here.astype(np.int64) - lane
            valid = source >= top.astype(np.int64)
        elif mode == "down":
            source = here.astype(np.int64) + lane
            valid = source <= top
        elif mode == "bfly":
            source = (here ^ lane).astype(np.int64)
            valid = source <= top
        else:
            source = (low | (lane & ~segment & np.uint32(31))).astype(np.int64)
            valid = source <= top
        source = np.where(valid, source, here) & 31
        return np.where(LANES[mask][source], values[source], np.uint32(FULL)), valid

    def match_any(self, values, members, mask) -> np.ndarray:
        self.check_members(members, mask)
        active = LANES[mask]
        result = np.zeros(32, np.uint32)
        for lane in np.flatnonzero(active):
            result[lane] = BITS((values == values[lane]) & active)
        return result

    def match_all(self, values, members, mask) -> int:
        self.check_members(members, mask)
        active = values[LANES[mask]]
        return mask if (active == active[0]).all() else 0

    def reduce(self, operation, values, members, mask) -> int:
        self.check_members(members, mask)
        active = values[LANES[mask]]
        if operation == "add":
            return int(active.astype(np.int64).sum()) & FULL
        functions: dict[str, Callable] = {
            "min": np.min,
            "max": np.max,
            "and": np.bitwise_and.reduce,
            "or": np.bitwise_or.reduce,
            "xor": np.bitwise_xor.reduce,
        }
        return int(functions[operation](active)) & FULL

    def reduce_float(self, operation, absolute, keep_nan, values, members, mask) -> int:
        """redux.sync of f32, as bits. Without .NaN a NaN counts only where every value is one."""
        self.check_members(members, mask)
        active = values[LANES[mask]]
        if absolute:
            active = np.abs(active)
        if np.isnan(active).any() if keep_nan else np.isnan(active).all():
            return 0x7FFFFFFF
        numbers = active[~np.isnan(active)]
        result = numbers.min() if operation == "min" else numbers.max()
        return int(result.view(np.uint32))
