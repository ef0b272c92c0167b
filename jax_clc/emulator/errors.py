"""Named errors of the emulated device, each with the place in the PTX that raised it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Location:
    """Where in the program and in the grid something happened. Fields that are not known stay None."""

    line: int | None = None
    text: str | None = None
    cta: int | None = None
    warp: int | None = None
    lanes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        parts = []
        if self.line is not None:
            parts.append(f"PTX line {self.line}")
        if self.cta is not None:
            parts.append(f"CTA {self.cta}")
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lanes is not None and len(self.lanes) < 32:
            parts.append(f"lanes {','.join(map(str, self.lanes))}")
        where = ", ".join(parts)
        return f"{where}: {self.text.strip()}" if self.text else where


class EmulatorError(Exception):
    """Base of everything the emulated device refuses.

    Engines raise without a place; the interpreter adds it on the way out (`located`). `axiom` names the switch in
    `axioms.Axioms` on which the verdict rests; None means a plain rule of the PTX ISA.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        text: str | None = None,
        warp: int | None = None,
        cta: int | None = None,
        lanes: tuple[int, ...] | None = None,
        axiom: str | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.axiom = axiom
        self.location = Location(line, text, cta, warp, lanes)

    def located(self, **place: object) -> EmulatorError:
        """Fills in what is not known yet of line, text, cta, warp, lanes; returns self, to be raised."""
        known = {k: v for k, v in place.items() if getattr(self.location, k) is None}
        self.location = replace(self.location, **known)  # type: ignore[arg-type]
        return self

    def __str__(self) -> str:
        where = str(self.location)
        why = f" (axiom: {self.axiom})" if self.axiom else ""
        return f"{self.message}{why} [{where}]" if where else f"{self.message}{why}"


class PtxSyntaxError(EmulatorError):
    """The PTX text cannot be read."""


class UnsupportedInstruction(EmulatorError):
    """The instruction, or this form of it, is not emulated. Says nothing about the kernel."""


# Memory


class DataRace(EmulatorError):
    """Two conflicting accesses that no causality order relates."""


class MissingProxyFence(EmulatorError):
    """Ordered in time, but a generic access and an asynchronous one meet without a proxy fence between them."""


class BufferReusedInFlight(EmulatorError):
    """Memory changed, or read too early, while the copy engine or the tensor core still works on it."""


class UninitializedRead(EmulatorError):
    """Reads shared or tensor memory that nobody has written since the CTA started."""


class MisalignedAddress(EmulatorError):
    """An address is not aligned as the instruction demands."""


class AddressOutOfRange(EmulatorError):
    """An address lies outside of the memory it should point into."""


class BranchOutOfRange(EmulatorError):
    """An indexed branch beyond its table."""


class RemoteAccessToExitedCta(EmulatorError):
    """Access, arrive or multicast to a CTA of the cluster that has exited or never started."""


class AsyncInFlightAtExit(EmulatorError):
    """A CTA exited while a copy into or out of its shared memory was still running."""


class OutputWrittenTwice(EmulatorError):
    """An output element was stored more than once."""


class OutputNeverWritten(EmulatorError):
    """An output element was never stored."""


# Descriptors


class BadDescriptor(EmulatorError):
    """A tensor map, matrix descriptor or instruction descriptor holds values that the ISA does not allow."""


# Barriers and convergence


class BarrierMisuse(EmulatorError):
    """An mbarrier operation on memory that holds no valid barrier, a second init, or a count out of range."""


class BarrierOverArrival(EmulatorError):
    """More arrivals than the barrier's current phase expects."""


class BarrierPhaseAliased(EmulatorError):
    """A waiter was overtaken by two phases, or arrivals went on before anybody observed the phase before."""


class BrokenAligned(EmulatorError):
    """An `.aligned` instruction was not executed by all live lanes of the warp (or warps of the warpgroup)."""


class Deadlock(EmulatorError):
    """Nothing can run any more; the message lists who waits for what."""


# Tensor cores


class RegistersInFlight(EmulatorError):
    """Registers of a wgmma touched before its wait_group, or before wgmma.fence."""


class TensorMemoryNotReady(EmulatorError):
    """Registers of tcgen05.ld used before wait::ld, or tensor memory reused before wait::st or a commit."""


class TensorMemoryMisuse(EmulatorError):
    """Tensor memory outside of an allocation, outside of a warp's lanes, or allocated against the rules."""


class TensorMemoryNotFreed(EmulatorError):
    """A CTA exited while it held tensor memory."""


# Cluster launch control


class ClcRequestAfterRefusal(EmulatorError):
    """try_cancel after this CTA had already observed a refusal."""


class ClcRefusedRecordDecoded(EmulatorError):
    """get_first_ctaid on a record that is no grant."""


class ClcRecordNotComplete(EmulatorError):
    """A record was decoded that is not a completed answer of the hardware."""


class ClcRecordUnread(EmulatorError):
    """A grant was never read: its tile is lost."""


class ClcRequestInFlightAtExit(EmulatorError):
    """A CTA exited while a request of its cluster was not answered or not observed."""


class ClcMulticastToAbsentCta(EmulatorError):
    """A multicast request in a cluster whose CTAs have not all started, or where one has exited."""
