"""How hostile the emulated device is: everything the hardware may do and a test wants, in one record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hostility:
    """Times are ticks: one tick is one turn of one warp. The seed decides every draw; same seed, same run."""

    copy_delay: tuple[int, int] = (0, 60)
    """Ticks from the issue of an asynchronous copy to its effect."""
    mma_delay: tuple[int, int] = (0, 30)
    """Ticks from the moment a tensor-core operation could start to its completion."""
    turn: tuple[int, int] = (1, 12)
    """Synchronising instructions a warp may execute before another warp gets the turn."""
    spurious_failures: float = 0.05
    """Chance that a try_wait gives up although its phase has completed, or before it has."""
    shuffle_launches: int = 4
    """The next cluster to start is drawn from this many oldest pending ones."""
    launch_delay: tuple[int, int] = (0, 20)
    """Ticks between two launches."""
    sm_changes: int = 0
    """How many times during the run an SM is taken away or given back (new launches there stop; nothing is evicted)."""
    sm_change_interval: tuple[int, int] = (50, 2000)
    sm_schedule: tuple[tuple[int, int, bool], ...] = ()
    """(tick, SM, available) changes that a test wants exactly."""
    clc_delay: tuple[int, int] = (0, 80)
    """Ticks from a cancellation request to its record."""
    clc_refusals: float = 0.0
    """Chance that a request is refused although clusters are pending."""
    tensor_loads_pending: bool = True
    """Registers of tcgen05.ld are unusable until wait::ld. False hands them over at once, for kernels that lack the
    wait.
    """
    idle_instructions: int = 2_000_000
    """Warp instructions without any change of memory or barriers after which a run counts as hanging."""

    def __post_init__(self) -> None:
        for name in ("copy_delay", "mma_delay", "turn", "launch_delay", "sm_change_interval", "clc_delay"):
            low, high = getattr(self, name)
            if not int(name == "turn") <= low <= high:
                raise ValueError(f"Hostility: {name} goes from one number of ticks to a larger one, not {(low, high)}")
        for name in ("spurious_failures", "clc_refusals"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Hostility: {name} is a chance from 0 to 1, not {getattr(self, name)}")

    @classmethod
    def calm(cls) -> Hostility:
        """As friendly as hardware can be: for speed and for pictures."""
        return cls(copy_delay=(1, 1), mma_delay=(1, 1), turn=(8, 8), spurious_failures=0.0, shuffle_launches=1,
                   launch_delay=(0, 0), clc_delay=(1, 1))  # fmt: skip
