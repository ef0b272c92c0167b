"""What the parts of a warp share: who and where it is. The parts are mixins; `warp.Warp` puts them together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from .options import Hostility


class WarpState:
    """Fields that `Warp` sets. `cta`, `cluster` and `machine` are typed loosely: they are made of warps themselves."""

    cta: Any
    cluster: Any
    machine: Any
    index: int
    live: int
    options: Hostility
    random: random.Random
    referee: Any
    handle: Any
    params: bytes
    shared_window: int
    local: np.ndarray | None
    ticket: object
    polled: tuple | None

    def sleep(self, why: str) -> None:
        """Mark the warp as waiting: the machine does not resume it until `machine.wake`."""
        raise NotImplementedError

    def check_aligned(self, mask: int, what: str) -> None:
        """`.aligned` instructions: all live lanes execute them together."""
        raise NotImplementedError

    def check_members(self, members: int, mask: int) -> None:
        """`.sync` instructions: the executing lanes are in the member mask, and no live member is missing."""
        raise NotImplementedError
