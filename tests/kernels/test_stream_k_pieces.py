"""Stream-K's sequence of pieces, by the kernels' own lines on Python's integers: each k tile is in one piece, whoever
claims it."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.shares import leading_tiles, shared_tiles

stream_k = pytest.importorskip("kernels.stream_k", reason="the kernels' sources need the kernel compiler")

MOST = 72  # clusters of two
STAGES = 6
PLAIN = SimpleNamespace(select_=lambda condition, yes, no: yes if condition else no)


@contextlib.contextmanager
def on_integers(workers: int):
    """Integers in place of device values, and a launch of so many clusters of two."""
    launch = SimpleNamespace(arch=SimpleNamespace(grid_dim=lambda: (2 * workers, 1, 1)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"Int32": int, "cutlass": PLAIN, "cute": launch}.items():
            patch.setattr(stream_k, name, value)
        yield patch


def static_pieces(grid, workers: int, k_tiles: int, patch) -> list[list[tuple]]:
    """What each worker does, and what it says of whether that is its last."""

    def placed(worker: int):
        return lambda self, grid: vars(self).update(grid=grid, linear=worker)

    patch.setattr(stream_k.StaticScheduler, "workers", lambda self: workers)
    found = []
    for worker in range(workers):
        patch.setattr(stream_k.StaticScheduler, "__init__", placed(worker))
        scheduler = stream_k.StaticStreamK(grid, stream_k.Shares(grid, k_tiles, STAGES))
        own = []
        while (piece := scheduler.advance())[0] < grid.cluster_tiles:
            own.append((*piece, scheduler.has_last_work()))
        found.append(own)
    return found


def dynamic_pieces(grid, workers: int, k_tiles: int, present: int, seed: int) -> list[list[tuple]]:
    """The same where `present` of the workers claim in any order."""
    numbers, draw = iter(range(1 << 30)), random.Random(seed)
    hands = [stream_k.Shares(grid, k_tiles, STAGES) for _ in range(workers)]
    found: list[list[tuple]] = [[] for _ in range(workers)]
    live = list(range(present))
    while live:
        worker = draw.choice(live)
        shares = hands[worker]
        number = next(numbers) if shares.place >= shares.end else 0
        in_hand = stream_k.Shares.in_hand.__wrapped__(shares, number)
        shares.share, shares.place, shares.end, shares.tile = in_hand
        piece = shares.next_piece()
        if piece[0] < grid.cluster_tiles:
            found[worker].append((*piece, None))
        else:
            live.remove(worker)
    return found


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@settings(deadline=None)
@given(
    tiles=st.integers(1, 400),
    workers=st.integers(1, MOST + 1),
    k_tiles=st.integers(1, 200),
    present=st.integers(1, MOST),
    seed=st.integers(0, 9),
)
@example(tiles=3 * MOST + 30, workers=MOST, k_tiles=64, present=MOST, seed=0)
@example(tiles=MOST + 8, workers=MOST, k_tiles=64, present=3, seed=0)
@example(tiles=300, workers=66, k_tiles=64, present=1, seed=0)
def test_every_k_tile_is_in_one_piece(schedule, tiles, workers, k_tiles, present, seed):
    grid = SimpleNamespace(cluster_tiles=tiles, cluster=(2, 1))
    with on_integers(workers) as patch:
        if schedule == "static":
            found = static_pieces(grid, workers, k_tiles, patch)
        else:
            found = dynamic_pieces(grid, workers, k_tiles, min(present, workers), seed)
    shared = shared_tiles(tiles, workers, MOST, k_tiles)
    lead = leading_tiles(tiles, workers, shared)
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for worker, own in enumerate(found):
        filled = 0
        for tile, first_k, count, share, ring_place, _ in own:
            assert ring_place == filled % (2 * STAGES) and (share == stream_k.WHOLE) == (count == k_tiles)
            filled += count
            seen.setdefault(tile, []).append((first_k, count, share))
        if schedule == "static" and own:
            assert [piece[-1] for piece in own] == [False] * (len(own) - 1) + [True]
            if lead:  # a whole tile before the share and one after it
                assert own[0][0] == shared + worker and own[1][0] < shared <= own[-1][0]
        if schedule == "dynamic" and worker == 0 and present == 1:  # who is alone takes all in order
            assert [piece[0] for piece in own[:lead]] == list(range(shared, shared + lead))
    assert set(seen) == set(range(tiles))
    for parts in seen.values():
        parts.sort()
        assert [first for first, _, _ in parts] == [sum(count for _, count, _ in parts[:i]) for i in range(len(parts))]
        assert sum(count for _, count, _ in parts) == k_tiles
        shares = [share for _, _, share in parts]
        assert len(parts) == 1 or shares == list(range(shares[0], shares[0] + len(shares)))


@given(
    place=st.integers(0, 3000),
    length=st.integers(1, 300),
    k_tiles=st.integers(1, 200),
)
def test_the_shorter_end_of_a_share_comes_first(place, length, k_tiles):
    grid = SimpleNamespace(cluster_tiles=1, cluster=(2, 1))
    with on_integers(workers=1):
        shares = stream_k.Shares(grid, k_tiles, STAGES)
        shares.place, shares.end = place, place + length
        counts = []
        while shares.has_part():
            counts.append(shares.next_piece()[2])
    ends = min(k_tiles - place % k_tiles, length), (place + length - 1) % k_tiles + 1
    assert sum(counts) == length
    assert len(counts) == 1 or counts[0] == min(*ends, length)
