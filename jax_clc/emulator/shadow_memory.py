"""Who last wrote and who since read each granule of a memory: the referee's state, checked whole ranges at a time.

Seven int32 rows per granule: actor, time and line of the last write; actor, time and line of one read since; and the
number of a set of further reads (0: none). A line is negated where the access was a strong (atomic, volatile, relaxed
or stronger) one, and 2**28 more where its scope was the CTA. Time 0 means never.

Stages are written and read whole, so state is kept per block of granules as long as a block's granules agree, and
spread over the granules when an access touches a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from jax_clc.emulator.happens_before import BARRIER_MEMORY, NOBODY

WRITER, WRITE_TIME, WRITE_LINE, READER, READ_TIME, READ_LINE, READ_SET = range(7)
ROWS = 7
WEAK, WIDE, NARROW = 0, 1, 1 << 28
"""What an access is: weak; strong; strong with its own CTA as scope (added to its line)."""

Selection = slice | np.ndarray
"""Granules of one access, as an index into the last axis."""


@dataclass(frozen=True)
class Access:
    """One side of a conflict, as the shadow remembers it."""

    actor: int
    time: int
    line: int
    is_write: bool
    strong: bool
    granule: int


@dataclass
class ReadSet:
    """Reads of one granule besides the one kept inline."""

    actors: np.ndarray
    times: np.ndarray
    lines: np.ndarray


@dataclass
class Request:
    """An access to check and record.

    `actors` and `times` are scalars or arrays shaped as the selection. `known` is the vector that decides whether an
    earlier access is ordered before this one. `is_own(access, position)` recognises the accessor's own past, which
    program order covers although no vector says so. `strong` (WEAK, WIDE or NARROW) accesses do not race with strong
    ones, if the scope of each includes the other's thread; `of_my_cta` tells which actors a NARROW one includes.
    """

    actors: int | np.ndarray
    time: int
    line: int
    known: np.ndarray
    is_write: bool
    strong: int = WEAK
    is_own: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None
    """(earlier actors, earlier times, own actors broadcast to them) -> bool."""
    of_my_cta: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def marked_line(self) -> int:
        """The line as it is remembered."""
        return -(self.line + (self.strong & NARROW)) if self.strong else self.line

    def clear_strong(self, suspect: np.ndarray, actors: np.ndarray, lines: np.ndarray) -> None:
        """Takes out of the suspects those accesses that are morally strong relative to this one (8.7)."""
        places = np.flatnonzero(suspect)
        if not self.strong or not len(places):
            return
        lines = lines[places]
        excused = lines < 0
        narrow = (lines <= -NARROW) | (self.strong == NARROW)
        if narrow.any() and self.of_my_cta is not None:
            excused &= ~narrow | self.of_my_cta(actors[places])
        suspect[places[excused]] = False


@dataclass
class ShadowMemory:
    """The shadow of one memory of `granules` granules, `granule_bytes` wide each, in blocks of `block` granules."""

    granules: int
    granule_bytes: int = 4
    block: int = 128
    state: np.ndarray = field(init=False)
    blocks: np.ndarray = field(init=False)
    whole: np.ndarray = field(init=False)
    """Per block: its state is the one in `blocks`, not those in `state`."""
    sets: list[ReadSet | None] = field(init=False, default_factory=lambda: [None])

    def __post_init__(self) -> None:
        count = -(-self.granules // self.block)
        self.state = np.zeros((ROWS, count * self.block), np.int32)
        self.blocks = np.zeros((ROWS, count), np.int32)
        self.whole = np.ones(count, bool)

    # Selections

    def span(self, start: int, size: int) -> slice:
        """Granules that bytes `start` to `start + size - 1` touch."""
        return slice(start // self.granule_bytes, -(-(start + size) // self.granule_bytes))

    def lanes(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """(lanes, granules per lane) for accesses of `size` bytes at each address."""
        first = addresses // self.granule_bytes
        count = max(1, size // self.granule_bytes)
        return first if count == 1 else first[:, None] + np.arange(count)

    def chunks(self, numbers: np.ndarray, size: int = 16) -> np.ndarray:
        """(n, granules per chunk) for chunks of `size` bytes."""
        per_chunk = size // self.granule_bytes
        return numbers.reshape(-1, 1) * per_chunk + np.arange(per_chunk)

    # The rules

    def check_and_record(self, where: Selection, request: Request) -> list[Access]:
        """Returns the earlier accesses that conflict with this one and are not ordered before it (at most a few), and
        records this one whether or not there are any. A granule never written that is read counts as a conflict with
        NOBODY at time 0."""
        size = self.block
        if isinstance(where, slice) and where.start % size == 0 and where.stop % size == 0:
            blocks = slice(where.start // size, where.stop // size)
            if self.whole[blocks].all():
                problems = self._check_and_record(self.blocks, blocks, request)
                return [replace(p, granule=p.granule * size) for p in problems]
            self._spread(np.arange(blocks.start, blocks.stop))
            problems = self._check_and_record(self.state, where, request)
            if request.is_write:
                self.blocks[:, blocks] = self.state[:, where][:, ::size]
                self.whole[blocks] = True
            return problems
        if isinstance(where, slice):
            touched = np.arange(where.start // size, -(-where.stop // size))
        else:
            touched = where // size
        if self.whole[touched].any():
            self._spread(np.unique(touched))
        return self._check_and_record(self.state, where, request)

    def _spread(self, blocks: np.ndarray) -> None:
        """Gives the granules of these blocks their blocks' state."""
        blocks = blocks[self.whole[blocks]]
        self.whole[blocks] = False
        granules = (blocks[:, None] * self.block + np.arange(self.block)).reshape(-1)
        self.state[:, granules] = np.repeat(self.blocks[:, blocks], self.block, axis=1)

    def _check_and_record(self, table: np.ndarray, where: Selection, request: Request) -> list[Access]:
        state = table[:, where]
        problems: list[Access] = []
        known, now = request.known, request
        if not (known[state[WRITER]] >= state[WRITE_TIME]).all():
            self._judge(problems, state, where, now, WRITER)
        if now.is_write:
            if state[READER].any():  # a set exists only beside an inline reader
                if not (known[state[READER]] >= state[READ_TIME]).all():
                    self._judge(problems, state, where, now, READER)
                if state[READ_SET].any():
                    self._judge_sets(problems, state, where, now)
            _record_write(table, where, now)
        else:
            if not state[WRITE_TIME].all():
                unwritten = int(np.flatnonzero(state[WRITE_TIME].reshape(-1) == 0)[0])
                problems.append(Access(NOBODY, 0, 0, True, False, _granule(where, unwritten)))
            self._record_read(table, where, state, now)
        return problems

    def _judge(self, problems: list[Access], state: np.ndarray, where: Selection, now: Request, row: int) -> None:
        """Looks closely at granules whose earlier write (or inline read) the plain comparison did not clear."""
        actors, times, lines = (state[row + i].reshape(-1) for i in range(3))
        suspect = now.known[actors] < times
        if now.is_own is not None:
            own = np.broadcast_to(_column(now.actors, state[row]), state[row].shape).reshape(-1)
            suspect &= ~now.is_own(actors, times, own)
        now.clear_strong(suspect, actors, lines)
        positions = np.flatnonzero(suspect)
        if len(positions):
            at = int(positions[0])
            problems.append(
                Access(
                    int(actors[at]), int(times[at]), _line(lines[at]), row == WRITER, bool(lines[at] < 0),
                    _granule(where, at),
                )
            )  # fmt: skip

    def _judge_sets(self, problems: list[Access], state: np.ndarray, where: Selection, now: Request) -> None:
        numbers = state[READ_SET].reshape(-1)
        own = np.broadcast_to(_column(now.actors, state[READ_SET]), state[READ_SET].shape).reshape(-1)
        for number in np.unique(numbers):
            if number == 0:
                continue
            reads = self.sets[number]
            assert reads is not None
            suspect = now.known[reads.actors] < reads.times
            at = int(np.flatnonzero(numbers == number)[0])
            if suspect.any() and now.is_own is not None:
                suspect &= ~now.is_own(reads.actors, reads.times, np.broadcast_to(own[at], reads.actors.shape))
            now.clear_strong(suspect, reads.actors, reads.lines)
            for i in np.flatnonzero(suspect)[:1].tolist():
                actor, time, line = int(reads.actors[i]), int(reads.times[i]), reads.lines[i]
                problems.append(Access(actor, time, _line(line), False, bool(line < 0), _granule(where, at)))

    def _record_read(self, table: np.ndarray, where: Selection, state: np.ndarray, now: Request) -> None:
        line = now.marked_line
        readers = state[READER]
        actors: int | np.ndarray = _column(now.actors, readers)
        # A read stands for an earlier one of the same actor only: a later writer is checked against every actor.
        others = (readers != NOBODY) & (readers != actors)
        if not others.any():
            table[READER, where] = actors
            table[READ_TIME, where] = now.time
            table[READ_LINE, where] = line
            return
        flat = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        actors = np.broadcast_to(actors, readers.shape)
        inline = flat[~others]
        table[READER, inline] = actors[~others]
        table[READ_TIME, inline] = now.time
        table[READ_LINE, inline] = line
        self._extend_sets(table, flat[others], state[READ_SET][others], actors[others], now.time, line)

    def _extend_sets(
        self, table: np.ndarray, granules: np.ndarray, numbers: np.ndarray, actors: np.ndarray, time: int, line: int
    ) -> None:
        """Adds a read to the sets of these granules; granules that shared a set and a reader share the new one."""
        keys = numbers.astype(np.int64) << 32 | actors
        if (keys == keys[0]).all():
            groups = [(keys[0], granules)]
        else:
            unique, inverse = np.unique(keys, return_inverse=True)
            groups = [(key, granules[inverse == i]) for i, key in enumerate(unique)]
        for key, members in groups:
            number, actor = int(key) >> 32, int(key) & 0xFFFFFFFF
            old = self.sets[number]
            if old is None:
                new = ReadSet(*(np.array([v], np.int32) for v in (actor, time, line)))
            else:
                keep = old.actors != actor
                new = ReadSet(
                    np.append(old.actors[keep], np.int32(actor)),
                    np.append(old.times[keep], np.int32(time)),
                    np.append(old.lines[keep], np.int32(line)),
                )
            self.sets.append(new)
            table[READ_SET, members] = len(self.sets) - 1
        if len(self.sets) > 1 << 16:
            self._compact_sets()

    def _compact_sets(self) -> None:
        count = self.state.shape[1]
        numbers = np.concatenate((self.state[READ_SET], self.blocks[READ_SET], [0]))
        used, renumbered = np.unique(numbers, return_inverse=True)
        self.sets = [self.sets[number] for number in used]
        self.state[READ_SET], self.blocks[READ_SET] = renumbered[:count], renumbered[count:-1]

    # Barriers

    def hold_barrier(self, address: int, line: int) -> None:
        """From mbarrier.init on, the eight bytes belong to the barrier."""
        where = self.span(address, 8)
        self._spread(np.arange(where.start // self.block, where.stop // self.block + 1))
        self.state[:, where] = 0
        self.state[WRITER, where] = BARRIER_MEMORY
        self.state[WRITE_TIME, where] = np.iinfo(np.int32).max
        self.state[WRITE_LINE, where] = line

    def release_barrier(self, address: int, actor: int, time: int, line: int) -> None:
        """mbarrier.inval: from here on the memory counts as written by whoever invalidated."""
        where = self.span(address, 8)
        self.state[:, where] = np.array([actor, time, line, 0, 0, 0, 0], np.int32)[:, None]


def _line(marked: int) -> int:
    """The PTX line of a remembered one."""
    return abs(int(marked)) & (NARROW - 1)


def _granule(where: Selection, position: int) -> int:
    return where.start + position if isinstance(where, slice) else int(where.reshape(-1)[position])


def _record_write(table: np.ndarray, where: Selection, now: Request) -> None:
    values = np.zeros((ROWS, 1), np.int32)
    values[WRITE_TIME] = now.time
    values[WRITE_LINE] = now.marked_line
    per_lane = isinstance(now.actors, np.ndarray)
    if not per_lane:
        values[WRITER] = now.actors
    table[:, where] = values if isinstance(where, slice) or where.ndim == 1 else values[:, :, None]
    if per_lane:
        table[WRITER, where] = now.actors if where.ndim == 1 else now.actors[:, None]  # type: ignore[union-attr, index]


def _column(actors: int | np.ndarray, like: np.ndarray) -> np.ndarray | int:
    """Actors per lane, shaped to broadcast over each lane's granules."""
    if not isinstance(actors, np.ndarray):
        return actors
    return actors[:, None] if like.ndim == 2 else actors
