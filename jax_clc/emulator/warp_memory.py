"""Generic-proxy memory accesses of a warp: loads, stores, atomics in every state space."""

from __future__ import annotations

import struct

import numpy as np

from .errors import AddressOutOfRange, UnsupportedInstruction
from .lane_math import LANES
from .memory import UNSIGNED, check_alignment
from .warp_state import WarpState

FULL = 0xFFFFFFFF
OFFSET = 0xFFFFFF


class WarpMemory(WarpState):
    """Mixin of Warp. `address` is an int when all lanes use the same one, else an int64 array of 32."""

    # where a shared address points

    def shared_owner(self, address: int, remote: bool):
        """(CTA, offset) of a 32-bit shared address. Raises AddressOutOfRange, RemoteAccessToExitedCta."""
        rank, offset = address >> 24, address & OFFSET
        if rank == self.cta.rank or (rank == 0 and not remote):
            return self.cta, offset
        if not remote:
            raise AddressOutOfRange(
                f"shared::cta access to address {address:#x} of CTA rank {rank} from rank {self.cta.rank}"
            )
        return self.cluster.member(rank, "shared-memory access"), offset

    def _ranks(self, address: np.ndarray, mask: int, remote: bool):
        """[(CTA, offsets, mask)] of a vector of shared addresses."""
        ranks = address >> 24
        active = LANES[mask]
        result = []
        for rank in np.unique(ranks[active]):
            lanes = (ranks == rank) & active
            cta, _ = self.shared_owner(int(rank) << 24, remote)
            bits = int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")
            result.append((cta, address & OFFSET, bits))
        return result

    @staticmethod
    def _in_window(cta, low: int, high: int) -> None:
        if low < 1024 or high > cta.shared.size:
            raise AddressOutOfRange(
                f"shared addresses {low:#x} to {high - 1:#x} lie outside of the CTA's {cta.shared.size - 1024} bytes "
                f"[0x400, {cta.shared.size:#x})"
            )

    # loads

    def load_shared(self, address, size, count, mask, line, semantics="weak", scope=None, remote=False):
        total = size * count
        if isinstance(address, int):
            cta, offset = self.shared_owner(address, remote)
            check_alignment(offset, total)
            self._in_window(cta, offset, offset + total)
            if self.referee is not None:
                self.referee.access(
                    self.handle, mask, "read", "shared", cta.number, offset, total, line, semantics, scope
                )
            data = cta.shared.data[offset : offset + total].tobytes()
            return [int.from_bytes(data[i : i + size], "little") for i in range(0, total, size)]
        offsets = address - self.shared_window
        cta = self.cta
        active = offsets if mask == FULL else offsets[LANES[mask]]
        low, high = int(active.min()), int(active.max()) + total
        if low < 1024 or high > cta.shared.size:
            return self._load_shared_split(address, size, count, mask, line, semantics, scope, remote)
        check_alignment(active, total)
        if self.referee is not None:
            self.referee.access(self.handle, mask, "read", "shared", cta.number, offsets, total, line, semantics, scope)
        if mask != FULL:
            offsets = np.where(LANES[mask], offsets, low)
        return self._gather(cta.shared, offsets, size, count)

    @staticmethod
    def _gather(shared, offsets, size, count):
        if size == 16:
            return [shared.data.view(np.uint64).reshape(-1, 2)[offsets >> 4]]
        words = shared.words(size, count)[offsets // (size * count)]
        return [words] if count == 1 else list(np.ascontiguousarray(words.T))

    def _load_shared_split(self, address, size, count, mask, line, semantics, scope, remote):
        result = [np.zeros((32, 2), np.uint64) if size == 16 else np.zeros(32, UNSIGNED[size]) for _ in range(count)]
        for cta, offsets, bits in self._ranks(address, mask, remote):
            lanes = LANES[bits]
            active = offsets[lanes]
            check_alignment(active, size * count)
            self._in_window(cta, int(active.min()), int(active.max()) + size * count)
            if self.referee is not None:
                self.referee.access(
                    self.handle, bits, "read", "shared", cta.number, offsets, size * count, line, semantics, scope
                )
            for index, values in enumerate(self._gather(cta.shared, active, size, count)):
                result[index][lanes] = values
        return result

    def load_cluster(self, address, size, count, mask, line, semantics="weak", scope=None):
        return self.load_shared(address, size, count, mask, line, semantics, scope, True)

    def load_global(self, address, size, count, mask, line, semantics="weak", scope=None):
        total = size * count
        memory = self.machine.memory
        if isinstance(address, int):
            check_alignment(address, total)
            allocation = memory.find(address, address + total)
            if self.referee is not None:
                self.referee.access(self.handle, mask, "read", "global", -1, address, total, line, semantics, scope)
            start = address - allocation.address
            data = allocation.data[start : start + total].tobytes()
            return [int.from_bytes(data[i : i + size], "little") for i in range(0, total, size)]
        active = address if mask == FULL else address[LANES[mask]]
        check_alignment(active, total)
        low, high = int(active.min()), int(active.max()) + total
        allocation = memory.find(low, high)
        if self.referee is not None:
            self.referee.access(self.handle, mask, "read", "global", -1, address, total, line, semantics, scope)
        if mask != FULL:
            address = np.where(LANES[mask], address, low)
        if size == 16:
            words, first = allocation.view(8)
            places = (address - first) // 8
            return [np.stack((words[places], words[places + 1]), 1)]
        words, first = allocation.view(size)
        places = (address - first) // size
        return [words[places + i] for i in range(count)]

    def load_local(self, address, size, count, mask, line, semantics="weak", scope=None):
        places = self._local(address, size * count, mask) // size
        words = self.local.view(UNSIGNED[size])
        return [words[np.arange(32), places + i] for i in range(count)]

    def _local(self, address, total, mask):
        places = np.where(LANES[mask], address, 0)
        if self.local is None or (places < 0).any() or (places + total > self.local.shape[1]).any():
            raise AddressOutOfRange(f"local address beyond {0 if self.local is None else self.local.shape[1]} bytes")
        check_alignment(places, total)
        return places

    def _generic(self, address, mask):
        """(space, address inside it) of a generic address; lanes must agree on the space."""
        first = address if isinstance(address, int) else int(address[LANES[mask]][0])
        top = first >> 56
        if not isinstance(address, int) and ((address[LANES[mask]] >> 56) != top).any():
            raise AddressOutOfRange("lanes of one generic access point into different state spaces")
        space = {0: "global", 1: "cluster", 2: "local", 3: "param"}.get(top)
        if space is None:
            raise AddressOutOfRange(f"generic address {first:#x} lies in no window")
        return space, address & ((1 << 56) - 1)

    def load_generic(self, address, size, count, mask, line, semantics="weak", scope=None):
        space, address = self._generic(address, mask)
        if space == "param":
            alike = isinstance(address, int)
            if not alike:
                first = int(address[LANES[mask]][0])
                if (address[LANES[mask]] != first).any():
                    raise UnsupportedInstruction("a generic load of different parameters by the lanes of a warp")
                address = first
            if address + size * count > len(self.params):
                raise AddressOutOfRange(f"parameters {address} to {address + size * count - 1} of {len(self.params)}")
            data = [
                int.from_bytes(self.params[address + size * i : address + size * (i + 1)], "little")
                for i in range(count)
            ]
            return data if alike else [np.full(32, value, UNSIGNED[size]) for value in data]
        return getattr(self, f"load_{space}")(address, size, count, mask, line, semantics, scope)

    # stores

    def store_shared(self, address, values, size, mask, line, semantics="weak", scope=None, remote=False):
        total = size * len(values)
        self.machine.changes += 1
        if isinstance(address, int):
            cta, offset = self.shared_owner(address, remote)
            check_alignment(offset, total)
            self._in_window(cta, offset, offset + total)
            if self.referee is not None:
                self.referee.access(
                    self.handle, mask, "write", "shared", cta.number, offset, total, line, semantics, scope
                )
            if all(isinstance(v, int) for v in values):
                data = b"".join(int(v).to_bytes(size, "little") for v in values)
                cta.shared.data[offset : offset + total] = np.frombuffer(data, np.uint8)
                return
            lane = self.random.choice(np.flatnonzero(LANES[mask]).tolist())  # one of the lanes' values stays
            for index, value in enumerate(values):
                place = offset // size + index
                cta.shared.words(size)[place] = value if isinstance(value, int) else value[lane]
            return
        offsets = address - self.shared_window
        active = offsets if mask == FULL else offsets[LANES[mask]]
        low, high = int(active.min()), int(active.max()) + total
        if low < 1024 or high > self.cta.shared.size:
            for cta, some, bits in self._ranks(address, mask, remote):
                chosen = some[LANES[bits]]
                self._in_window(cta, int(chosen.min()), int(chosen.max()) + total)
                self._scatter(cta, some, chosen, values, size, bits, line, semantics, scope)
            return
        self._scatter(self.cta, offsets, active, values, size, mask, line, semantics, scope)

    def _scatter(self, cta, offsets, active, values, size, mask, line, semantics, scope):
        total = size * len(values)
        check_alignment(active, total)
        if self.referee is not None:
            self.referee.access(
                self.handle, mask, "write", "shared", cta.number, offsets, total, line, semantics, scope
            )
        if len(values) == 1:
            value = values[0]
            words = cta.shared.words(size)
            words[active // size] = value if isinstance(value, int) or mask == FULL else value[LANES[mask]]
            return
        words = cta.shared.words(size, len(values))
        rows = active // total
        for index, value in enumerate(values):
            words[rows, index] = value if isinstance(value, int) or mask == FULL else value[LANES[mask]]

    def store_cluster(self, address, values, size, mask, line, semantics="weak", scope=None):
        self.store_shared(address, values, size, mask, line, semantics, scope, True)

    def store_global(self, address, values, size, mask, line, semantics="weak", scope=None):
        total = size * len(values)
        self.machine.changes += 1
        lanes = LANES[mask]
        if isinstance(address, int):
            address = np.full(32, address, np.int64)
        active = address[lanes]
        check_alignment(active, total)
        allocation = self.machine.memory.find(int(active.min()), int(active.max()) + total)
        if self.referee is not None:
            self.referee.access(self.handle, mask, "write", "global", -1, address, total, line, semantics, scope)
        if allocation.writes is not None:
            self.machine.memory.note_writes(np.stack((active, np.full_like(active, total)), 1))
        words, first = allocation.view(size)
        places = (active - first) // size
        for index, value in enumerate(values):
            words[places + index] = value if isinstance(value, int) else value[lanes]

    def store_local(self, address, values, size, mask, line, semantics="weak", scope=None):
        places = self._local(address, size * len(values), mask) // size
        words = self.local.view(UNSIGNED[size])
        lanes = np.flatnonzero(LANES[mask])
        for index, value in enumerate(values):
            words[lanes, places[lanes] + index] = value if isinstance(value, int) else value[lanes]

    def store_generic(self, address, values, size, mask, line, semantics="weak", scope=None):
        space, address = self._generic(address, mask)
        if space == "param":
            raise AddressOutOfRange("store to a kernel parameter")
        getattr(self, f"store_{space}")(address, values, size, mask, line, semantics, scope)

    # atomics

    def atomic(self, space, operation, kind, address, values, mask, line, semantics, scope, event):
        """Read-modify-write by each active lane, in an order the seed decides. `event`, for the referee: "atomic", or
        "reduction" where nobody gets the old value. Returns the old values."""
        if space == "generic":
            space, address = self._generic(address, mask)
        size = int("".join(c for c in kind if c.isdigit())[:2]) // 8
        if kind in ("f16x2", "bf16x2"):
            size = 4
        old = np.zeros(32, UNSIGNED[size])
        lanes = np.flatnonzero(LANES[mask]).tolist()
        self.random.shuffle(lanes)
        check_alignment(address[LANES[mask]], size)
        self._report_atomic(space, address, size, mask, line, semantics, scope, event)
        for lane in lanes:
            place = int(address[lane])
            if space == "global":
                allocation = self.machine.memory.find(place, place + size)
                cell = allocation.data[place - allocation.address : place - allocation.address + size]
            else:
                cta, offset = self.shared_owner(place, space == "cluster")
                self._in_window(cta, offset, offset + size)
                cell = cta.shared.data[offset : offset + size]
            before = int.from_bytes(cell.tobytes(), "little")
            after = combine(operation, kind, before, [int(v[lane]) for v in values])
            if after != before:
                self.machine.changes += 1
            cell[:] = np.frombuffer(after.to_bytes(size, "little"), np.uint8)
            old[lane] = before
        return old

    def _report_atomic(self, space, address, size, mask, line, semantics, scope, event):
        if self.referee is None:
            return
        if space == "global":
            self.referee.access(self.handle, mask, event, "global", -1, address, size, line, semantics, scope)
        else:
            for cta, offsets, bits in self._ranks(address, mask, space == "cluster"):
                self.referee.access(
                    self.handle, bits, event, "shared", cta.number, offsets, size, line, semantics, scope
                )


_FLOATS = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}


def combine(operation: str, kind: str, old: int, values: list[int]) -> int:
    """The new bits of an atomic operation on one location."""
    if operation == "exch":
        return values[0]
    if operation == "cas":
        return values[1] if old == values[0] else old
    value = values[0]
    if operation in ("and", "or", "xor"):
        return {"and": old & value, "or": old | value, "xor": old ^ value}[operation]
    if kind in _FLOATS:
        as_float, as_int = _FLOATS[kind]
        x, y = (struct.unpack(as_float, struct.pack(as_int, v))[0] for v in (old, value))
        dtype = np.float32 if kind == "f32" else np.float64
        result = {"add": dtype(x) + dtype(y), "min": np.fmin(x, y), "max": np.fmax(x, y)}[operation]
        return struct.unpack(as_int, struct.pack(as_float, float(result)))[0]
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        return _combine_halves(operation, kind, old, value)
    bits = int(kind[1:])
    top = (1 << bits) - 1
    if operation == "add":
        return (old + value) & top
    if operation == "inc":
        return 0 if old >= value else old + 1
    if operation == "dec":
        return value if old == 0 or old > value else old - 1
    key = (lambda v: (v ^ (1 << bits - 1)) - (1 << bits - 1)) if kind[0] == "s" else (lambda v: v)
    return min(old, value, key=key) if operation == "min" else max(old, value, key=key)


def _combine_halves(operation: str, kind: str, old: int, value: int) -> int:
    import ml_dtypes

    dtype = np.dtype(np.float16 if kind.startswith("f") else ml_dtypes.bfloat16)
    size = 4 if kind.endswith("x2") else 2
    x, y = (np.frombuffer(v.to_bytes(size, "little"), dtype) for v in (old, value))
    function = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]
    return int.from_bytes(function(x, y).astype(dtype).tobytes(), "little")
