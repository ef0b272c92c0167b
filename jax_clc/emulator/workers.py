"""Processes that share cases out, and end at once when the command is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context


def _leave_at_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes. An interrupt (Ctrl-C goes to all of them) cancels what has not begun."""
    with ProcessPoolExecutor(processes, get_context("spawn"), _leave_at_interrupt) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
