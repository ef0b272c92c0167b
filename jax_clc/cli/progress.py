"""A progress line: rewritten in place on a terminal, one line per step elsewhere."""

from __future__ import annotations

import shutil
import sys
import time


class ProgressLine:
    """Shows `done/total` steps with the time taken on standard error, so that standard output stays a table."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._step = ""
        self._start = time.monotonic()
        self._live = sys.stderr.isatty()

    def start(self, step: str) -> None:
        """A step begins."""
        self._step = step
        if not self._live:
            print(f"[{self._done + 1}/{self._total}] {step}", file=sys.stderr, flush=True)
        self.detail("")

    def detail(self, text: str) -> None:
        """Where within the step; shown on a terminal only."""
        if not self._live:
            return
        width = min(shutil.get_terminal_size((60, 20)).columns, 100) - 1
        line = f"[{self._done}/{self._total}] {time.monotonic() - self._start:4.0f} s  {self._step}  {text}"
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """The step is done."""
        self._done += 1
        if self._live and self._done == self._total:
            width = min(shutil.get_terminal_size((60, 20)).columns, 100) - 1
            print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
