"""A warp's asynchronous copies: what it issues, what the machine does later, what it waits for."""

from __future__ import annotations

import contextlib

import numpy as np

from .errors import AddressOutOfRange, MisalignedAddress
from .lane_math import LANES
from .memory import PARAM_WINDOW, POISON, UNSIGNED, check_alignment
from .tensor_map import TensorMap
from .warp_barriers import WarpBarriers
from .warp_memory import combine


class AsyncOperation:
    """One asynchronous operation between issue and completion."""

    __slots__ = ("kind", "line", "warp", "reads_done", "done", "actor", "sleepers")

    def __init__(self, kind: str, line: int, warp, actor):
        self.kind, self.line, self.warp, self.actor = kind, line, warp, actor
        self.reads_done = self.done = False
        self.sleepers: list = []

    def finish_reads(self, machine) -> None:
        self.reads_done = True
        if machine.referee is not None:
            machine.referee.reads_complete(self.actor)
        self._wake(machine)

    def finish(self, machine) -> None:
        self.reads_done = self.done = True
        if machine.referee is not None:
            machine.referee.complete(self.actor)
        self._wake(machine)

    def _wake(self, machine) -> None:
        sleepers, self.sleepers = self.sleepers, []
        for warp in sleepers:
            machine.wake(warp)

    def __str__(self) -> str:
        return f"{self.kind} of PTX line {self.line} by {self.warp}"


def global_ranges(tensor_map: TensorMap, coordinates) -> np.ndarray:
    """(address, bytes) of each inner row of a box that lies inside the tensor."""
    clipped = tensor_map._clip(coordinates)
    if clipped is None:
        return np.zeros((0, 2), np.int64)
    _, address, shape, strides = clipped  # outermost axis first
    starts = np.array(address, np.int64)
    for count, stride in zip(shape[:-1], strides[:-1], strict=True):
        starts = starts[..., None] + np.arange(count) * stride
    starts = starts.reshape(-1)
    return np.stack((starts, np.full(len(starts), shape[-1] * tensor_map.dtype.itemsize)), 1)


def spoil_granules(memory, tensor_map: TensorMap, coordinates) -> None:
    """A tensor store writes whole 16-byte granules (seen on the H200): where a row of the tensor ends inside of one,
    what lies behind it in memory is spoilt."""
    item = tensor_map.dtype.itemsize
    tail = -(tensor_map.dims[0] * item) % 16
    if not tail:
        return
    for start, size in global_ranges(tensor_map, coordinates).tolist():
        if (start + size - tensor_map.address) % 16:
            with contextlib.suppress(AddressOutOfRange):
                memory.bytes(start + size, tail).fill(POISON)


class WarpCopies(WarpBarriers):
    """Mixin of Warp."""

    def init_copies(self) -> None:
        self.bulk_open: dict[int, list[AsyncOperation]] = {}
        self.bulk_groups: dict[int, list[list[AsyncOperation]]] = {}
        self.copies_open: list[tuple[int, AsyncOperation]] = []  # with the lanes that have not committed theirs
        self.copy_groups: list[tuple[int, list[AsyncOperation]]] = []  # with the lanes whose group it is

    @staticmethod
    def lanes_of(mask: int) -> list[int]:
        return np.flatnonzero(LANES[mask]).tolist() if mask & (mask - 1) else [mask.bit_length() - 1]

    def issue(self, kind: str, lanes: int, line: int) -> AsyncOperation:
        actor = self.referee.issue(self.handle, lanes, kind, line) if self.referee is not None else None
        self.machine.changes += 1
        return AsyncOperation(kind, line, self, actor)

    def tensor_map(self, address: int) -> TensorMap:
        """The tensor map at a generic address: a kernel parameter or global memory."""
        if address % 64:
            raise MisalignedAddress(f"tensor map at {address:#x} is not aligned to 64 bytes")
        if address >> 56 == PARAM_WINDOW >> 56:
            offset = address & ((1 << 56) - 1)
            data = bytes(self.params[offset : offset + 128])
        elif address >> 56:
            raise AddressOutOfRange(f"tensor map at {address:#x}: neither a parameter nor global memory")
        else:
            data = self.machine.memory.bytes(address, 128).tobytes()
        return TensorMap.from_bytes(data)

    # loads into shared memory

    def _targets(self, destination, barrier, multicast, pair, local):
        """[(CTA, offset, barrier CTA, barrier offset)] of a load."""
        destination &= (1 << 56) - 1
        barrier &= (1 << 56) - 1
        check_alignment(barrier, 8)
        offset, barrier_offset = destination & 0xFFFFFF, barrier & 0xFFFFFF
        if multicast is None:
            cta, _ = self.shared_owner(destination, not local)
            owner, _ = self.shared_owner(barrier, True)
            if owner is not cta and not pair:
                raise AddressOutOfRange(f"copy into CTA rank {cta.rank} signals a barrier of CTA rank {owner.rank}")
            if pair and owner.rank >> 1 != cta.rank >> 1:
                raise AddressOutOfRange(
                    f"a two-SM copy into CTA rank {cta.rank} signals CTA rank {owner.rank} of another pair"
                )
            return [(cta, offset, owner, barrier_offset)]
        ranks = [r for r in range(16) if multicast >> r & 1]
        if not ranks:
            raise AddressOutOfRange("multicast to no CTA")
        result = []
        for rank in ranks:
            cta = self.cluster.member(rank, "multicast copy")
            owner = self.cluster.member(rank & ~1 | barrier >> 24 & 1, "multicast signal") if pair else cta
            result.append((cta, offset, owner, barrier_offset))
        return result

    def tensor_load(self, destination, map_address, coordinates, barrier, multicast, pair, local, lane, line):
        tensor_map = self.tensor_map(map_address)
        targets = self._targets(destination, barrier, multicast, pair, local)
        operation = self.issue("bulk.load", 1 << lane, line)
        self.machine.note("load", self.cta, line, coordinates)
        for cta, offset, _, _ in targets:
            self._in_window(cta, offset, offset + tensor_map.shared_bytes)
            tensor_map._check_shared(offset)
        memory = self.machine.memory

        def read():
            return tensor_map.read_box(memory.bytes, coordinates)

        def write(cta, offset, box):
            tensor_map.scatter(cta.shared.data, offset, box)
            return np.array([[offset, tensor_map.shared_bytes]], np.int64)

        self._launch_load(operation, targets, read, write, tensor_map.box_bytes, line)

    def bulk_load(self, destination, source, size, barrier, multicast, from_global, lane, line):
        if size % 16 or destination % 16 or source % 16:
            raise MisalignedAddress(
                f"bulk copy of {size} bytes from {source:#x} to {destination:#x}: multiples of 16 are needed"
            )
        targets = self._targets(destination, barrier, multicast, False, False)
        operation = self.issue("bulk.load" if from_global else "bulk.shared", 1 << lane, line)
        for cta, offset, _, _ in targets:
            self._in_window(cta, offset, offset + size)
        if from_global:
            source &= (1 << 56) - 1

            def read():
                return self.machine.memory.bytes(source, size).copy()
        else:
            owner, place = self.shared_owner(source & 0xFFFFFFFF, False)
            self._in_window(owner, place, place + size)
            owner.reading[operation] = None

            def read():
                if self.referee is not None:
                    ranges = np.array([[place, size]], np.int64)
                    self.referee.async_access(operation.actor, "read", "shared", owner.number, ranges, line)
                owner.reading.pop(operation, None)
                return owner.shared.data[place : place + size].copy()

        def write(cta, offset, data):
            cta.shared.data[offset : offset + size] = data
            return np.array([[offset, size]], np.int64)

        self._launch_load(operation, targets, read, write, size, line)

    def _launch_load(self, operation, targets, read, write, counted, line):
        machine = self.machine
        waiting = len(targets)
        box = None

        def arrive(cta, offset, owner, barrier_offset):
            nonlocal waiting, box
            if box is None:
                box = read()
            cta.check_alive(str(operation))
            owner.check_alive(str(operation))
            ranges = write(cta, offset, box)
            if self.referee is not None:
                self.referee.async_access(operation.actor, "write", "shared", cta.number, ranges, line)
                self.referee.mbarrier_async_arrive(operation.actor, owner.number, barrier_offset, line)
            waiting -= 1
            cta.writing.pop((operation, cta.rank), None)
            if owner.barrier(barrier_offset).complete_tx(counted):
                owner.phase_ended(barrier_offset)
            if waiting == 0:
                operation.finish(machine)

        for target in targets:
            target[0].writing[(operation, target[0].rank)] = None
            machine.later(self.options.copy_delay, arrive, operation, *target)

    # stores out of shared memory

    def tensor_store(self, map_address, coordinates, source, reduction, lane, line):
        tensor_map = self.tensor_map(map_address)
        cta, offset = self.shared_owner(source & 0xFFFFFFFF, False)
        self._in_window(cta, offset, offset + tensor_map.shared_bytes)
        tensor_map._check_shared(offset)
        operation = self.issue("bulk.reduce" if reduction else "bulk.store", 1 << lane, line)
        machine = self.machine
        machine.note("store", self.cta, line, coordinates)

        def write(box):
            tensor_map.write_box(machine.memory.bytes, coordinates, box, reduction)
            spoil_granules(machine.memory, tensor_map, coordinates)
            self._report_global(operation, global_ranges(tensor_map, coordinates), line)

        self._launch_store(operation, cta, offset, tensor_map.shared_bytes,
        lambda: tensor_map.gather(cta.shared.data, offset),
                           write, lane, line)  # fmt: skip

    def bulk_store(self, destination, source, size, reduction, kind, lane, line):
        if size % 16 or destination % 16 or source % 16:
            raise MisalignedAddress(
                f"bulk copy of {size} bytes from {source:#x} to {destination:#x}: multiples of 16 are needed"
            )
        cta, offset = self.shared_owner(source & 0xFFFFFFFF, False)
        self._in_window(cta, offset, offset + size)
        operation = self.issue("bulk.reduce" if reduction else "bulk.store", 1 << lane, line)
        memory = self.machine.memory
        memory.find(destination, destination + size)

        def write(data):
            target = memory.bytes(destination, size)
            if reduction is None:
                target[:] = data
            else:
                width = 2 if "16" in kind else int(kind[1:]) // 8
                old, new = (x.view(UNSIGNED[width]).tolist() for x in (target.copy(), data.copy()))
                done = [combine(reduction, kind, o, [n]) for o, n in zip(old, new, strict=True)]
                target[:] = np.array(done, UNSIGNED[width]).view(np.uint8)
            self._report_global(operation, np.array([[destination, size]], np.int64), line)

        self._launch_store(
            operation, cta, offset, size, lambda: cta.shared.data[offset : offset + size].copy(), write, lane, line
        )

    def _launch_store(self, operation, cta, offset, size, read, write, lane, line):
        machine = self.machine
        self.bulk_open.setdefault(lane, []).append(operation)
        cta.reading[operation] = None

        def finish(box):
            write(box)
            operation.finish(machine)

        def start():
            cta.check_alive(str(operation))
            if self.referee is not None:
                ranges = np.array([[offset, size]], np.int64)
                self.referee.async_access(operation.actor, "read", "shared", cta.number, ranges, line)
            box = read()
            cta.reading.pop(operation, None)
            operation.finish_reads(machine)
            machine.later(self.options.copy_delay, finish, operation, box)

        machine.later(self.options.copy_delay, start, operation)

    def _report_global(self, operation, ranges, line):
        if not len(ranges):
            return
        if operation.kind == "bulk.store":
            self.machine.memory.note_writes(ranges, distinct=True)
        if self.referee is not None:
            self.referee.async_access(operation.actor, "write", "global", -1, ranges, line)

    # groups

    def bulk_commit(self, mask):
        for lane in self.lanes_of(mask):
            self.bulk_groups.setdefault(lane, []).append(self.bulk_open.pop(lane, []))

    def bulk_wait(self, count, reads_only, mask, line):
        done = []
        lanes = [lane for lane in self.bulk_groups if mask >> lane & 1]
        for lane in lanes:
            groups = self.bulk_groups[lane]
            for group in groups[: max(len(groups) - count, 0)]:
                for operation in group:
                    if not (operation.reads_done if reads_only else operation.done):
                        operation.sleepers.append(self)
                        self.sleep(f"bulk group with {operation}")
                        return None
                    done.append(operation)
        if not reads_only:
            for lane in lanes:
                groups = self.bulk_groups[lane]
                del groups[: max(len(groups) - count, 0)]
        if self.referee is not None and done:
            self.referee.group_wait(self.handle, mask, [o.actor for o in done], line, reads_only)
        return True

    # cp.async

    def async_copy(self, destination, source, size, source_size, mask, line):
        lanes = LANES[mask]
        space = int(destination[lanes][0]) >> 56
        offsets = (destination & 0xFFFFFF) if space else destination - self.shared_window
        active = offsets[lanes]
        sources = source[lanes]
        check_alignment(active, size)
        check_alignment(sources, size)
        self._in_window(self.cta, int(active.min()), int(active.max()) + size)
        operation = self.issue("cp.async", mask, line)
        self.copies_open.append((mask, operation))
        keep = None if source_size is None else source_size[lanes]
        cta = self.cta

        def perform():
            if cta.exited:  # cp.async belongs to its thread: what nobody waited for ends with it
                return
            data = np.zeros((len(active), size), np.uint8)
            for row, address in enumerate(sources.tolist()):
                wanted = size if keep is None else int(keep[row])
                if wanted:
                    data[row, :wanted] = self.machine.memory.bytes(address, wanted)
            for row, offset in enumerate(active.tolist()):
                cta.shared.data[offset : offset + size] = data[row]
            if self.referee is not None:
                ranges = np.stack((active, np.full_like(active, size)), 1)
                self.referee.async_access(operation.actor, "write", "shared", cta.number, ranges, line)
            operation.finish(self.machine)

        self.machine.later(self.options.copy_delay, perform, operation)

    def async_commit(self, mask):
        self.copy_groups.append((mask, [o for lanes, o in self.copies_open if lanes & mask]))
        self.copies_open = [(lanes & ~mask, o) for lanes, o in self.copies_open if lanes & ~mask]

    def async_wait(self, count, mask, line):
        """Each lane waits for its own groups but the last `count`."""
        if count < 0:  # wait_all
            self.async_commit(mask)
            count = 0
        older = self._older_groups(count, mask)
        for index in older:
            for operation in self.copy_groups[index][1]:
                if not operation.done:
                    operation.sleepers.append(self)
                    self.sleep(f"cp.async group with {operation}")
                    return None
        for index, lanes in older.items():
            owners, operations = self.copy_groups[index]
            if self.referee is not None and operations:
                self.referee.group_wait(self.handle, lanes, [o.actor for o in operations], line)
            self.copy_groups[index] = (owners & ~lanes, operations)
        self.copy_groups = [group for group in self.copy_groups if group[0]]
        return True

    def _older_groups(self, count, mask):
        """{number of a group: the lanes of `mask` for which `count` groups or more came later}."""
        if all(owners & mask == mask for owners, _ in self.copy_groups):
            return dict.fromkeys(range(len(self.copy_groups) - count), mask)
        older: dict[int, int] = {}
        for lane in self.lanes_of(mask):
            mine = [i for i, (owners, _) in enumerate(self.copy_groups) if owners >> lane & 1]
            for index in mine[: max(len(mine) - count, 0)]:
                older[index] = older.get(index, 0) | 1 << lane
        return older

    def async_arrive(self, address, no_increment, mask, line):
        """cp.async.mbarrier.arrive: an arrival once this thread's copies so far are done."""
        cta, offset = self.barrier_place(address, "generic" if address >> 56 else "shared")
        barrier = cta.barrier(offset)
        lanes = mask.bit_count()
        if not no_increment:
            barrier.pending += lanes
        committed = [o for owners, group in self.copy_groups if owners & mask for o in group]
        operations = [o for o in [*committed, *(o for owners, o in self.copies_open if owners & mask)] if not o.done]

        def arrive():
            if not all(o.done for o in operations):
                self.machine.later((1, 4), arrive, None)
                return
            if self.referee is not None:
                self.referee.mbarrier_async_arrive([o.actor for o in operations], cta.number, offset, line)
            if barrier.arrive(lanes):
                cta.phase_ended(offset)

        if self.referee is not None:
            self.referee.mbarrier_arrive(self.handle, mask, cta.number, offset, line, "relaxed", "cta")
        self.machine.later((0, 2), arrive, None)

    # st.async, red.async

    def remote_store(self, address, values, size, barrier, reduction, kind, lane, line):
        total = size * len(values)
        check_alignment(address, total)
        check_alignment(barrier, 8)
        cta, offset = self.shared_owner(address, True)
        owner, barrier_offset = self.shared_owner(barrier, True)
        if owner is not cta:
            raise AddressOutOfRange(f"st.async into CTA rank {cta.rank} signals a barrier of CTA rank {owner.rank}")
        self._in_window(cta, offset, offset + total)
        operation = self.issue("red.async" if reduction else "st.async", 1 << lane, line)

        def perform():
            cta.check_alive(str(operation))
            cell = cta.shared.data[offset : offset + total]
            new = values
            if reduction:
                new = [combine(reduction, kind, int.from_bytes(cell.tobytes(), "little"), list(values))]
            cell[:] = np.frombuffer(b"".join(int(v).to_bytes(size, "little") for v in new), np.uint8)
            if self.referee is not None:
                ranges = np.array([[offset, total]], np.int64)
                self.referee.async_access(
                    operation.actor, "atomic" if reduction else "write", "shared", cta.number, ranges, line
                )
                self.referee.mbarrier_async_arrive(operation.actor, cta.number, barrier_offset, line)
            cta.writing.pop((operation, cta.rank), None)
            if cta.barrier(barrier_offset).complete_tx(total):
                cta.phase_ended(barrier_offset)
            operation.finish(self.machine)

        cta.writing[(operation, cta.rank)] = None
        self.machine.later(self.options.copy_delay, perform, operation)
