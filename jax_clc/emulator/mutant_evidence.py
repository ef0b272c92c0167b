"""What clean runs show about a line of PTX: a scope that never mattered, a fence that never had anything to order."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from jax_clc.emulator import happens_before as hb
from jax_clc.emulator.referee import Referee
from jax_clc.emulator.referee_state import Warp


class Witness(Referee):
    """A referee that also notes, per line, whether what a mutant would change ever had an effect."""

    def __init__(self) -> None:
        super().__init__()
        self._crossed: dict[int, bool] = defaultdict(bool)
        self._ordered: dict[int, bool] = defaultdict(bool)
        self._is_arrival: dict[int, bool] = {}

    def harmless(self) -> dict[int, str]:
        """By line, why a scope or a fence there makes no difference."""
        reasons = {
            line: "its arrivals are on its own CTA's barrier"
            if self._is_arrival[line]
            else "it observes arrivals of its own CTA and completions of asynchronous operations only"
            for line, crossed in self._crossed.items()
            if not crossed
        }
        reasons |= {
            line: "whenever it runs there is nothing left for it to order"
            for line, ordered in self._ordered.items()
            if not ordered
        }
        return reasons

    def mbarrier_arrive(self, warp: Warp, mask: int, cta: int, address: int, line: int, *order: str) -> None:
        self._is_arrival[line] = True
        self._crossed[line] |= cta != warp.cta
        super().mbarrier_arrive(warp, mask, cta, address, line, *order)

    def mbarrier_wait_success(
        self, warp: Warp, mask: int, cta: int, address: int, phase: int, line: int, *order: str
    ) -> None:
        barrier = self._ctas[cta].barriers[address]
        self._is_arrival[line] = False
        self._crossed[line] |= barrier.observes_other_ctas(warp.cta)
        super().mbarrier_wait_success(warp, mask, cta, address, phase, line, *order)

    def fence(
        self, warp: Warp, mask: int, kind: str, line: int, semantics: str = "acq_rel", scope: str | None = None
    ) -> None:
        if kind.startswith("tcgen05") or kind.endswith(".acquire"):
            before = self._state(warp, kind)
            super().fence(warp, mask, kind, line, semantics, scope)
            self._ordered[line] |= bool((self._state(warp, kind) != before).any())
        else:
            super().fence(warp, mask, kind, line, semantics, scope)

    @staticmethod
    def _state(warp: Warp, kind: str) -> np.ndarray:
        rows = {"tcgen05.before": [hb.B], "tcgen05.after": [hb.U]}.get(kind, [hb.H, hb.P])
        clocks = [warp.known(), *(warp.known(lane) for lane in sorted(warp.lane_clocks))]
        return np.concatenate([clock[rows] for clock in clocks[:1]] + [c[rows] for c in clocks[1:]])
