"""What a caller may ask of a product beyond the product itself: schedule, kernel, SM limit, strictness."""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import Any

SCHEDULES = ("auto", "nonpersistent", "static", "dynamic", "clc")
MOST_SMS = 2**31 - 1
"""What an attribute of the custom call can say; a larger limit limits no more."""
STRICT_VARIABLE = "JAX_CLC_STRICT"
SWITCH = {**dict.fromkeys(("", "0", "false", "no", "off"), False), **dict.fromkeys(("1", "true", "yes", "on"), True)}


@dataclasses.dataclass(frozen=True)
class GemmOptions:
    """Static requests of one call. `demanded`: one that cannot be honoured is an error rather than a wish.

    `emulated_target` is for one shard of a split program: XLA asks for it in a thread that does not see `emulated`.
    """

    schedule: str = "auto"
    kernel: str | None = None
    sm_limit: int | None = None
    strict: bool = False
    demanded: bool = True
    emulated_target: Any = None

    @classmethod
    def checked(cls, schedule: str, kernel: str | None, sm_limit: int | None) -> GemmOptions:
        """Raises ValueError for an unknown schedule, a limit that leaves no SM, or a JAX_CLC_STRICT that is neither on
        nor off; TypeError for a wrong type."""
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule={schedule!r} does not exist; choose from {', '.join(SCHEDULES)}")
        if kernel is not None and not isinstance(kernel, str):
            raise TypeError(f"kernel must be the name of a kernel or None, got {kernel!r}")
        if sm_limit is not None:
            try:
                number = operator.index(sm_limit)
            except TypeError:
                number = None
            if number is None or isinstance(sm_limit, bool):
                raise TypeError(f"sm_limit must be a number of SMs or None, got {sm_limit!r}")
            sm_limit = min(number, MOST_SMS)
            if sm_limit < 1:
                raise ValueError(f"sm_limit={sm_limit} leaves no SM; give at least 1, or None for no limit")
        strict = os.environ.get(STRICT_VARIABLE, "")
        if strict.strip().lower() not in SWITCH:
            raise ValueError(f"{STRICT_VARIABLE}={strict!r}: expected 1, or 0 or nothing")
        return cls(schedule, kernel, sm_limit, SWITCH[strict.strip().lower()])

    @property
    def pinned(self) -> bool:
        return self.schedule != "auto" or self.kernel is not None

    def for_backward(self) -> GemmOptions:
        """For the products that differentiation adds: the kernel is the forward product's, the schedule a wish."""
        return dataclasses.replace(self, kernel=None, demanded=False)
