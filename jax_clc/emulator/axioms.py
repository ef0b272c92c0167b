"""The axioms that the referee judges by, each a switch. Their text and sources: docs/memory_model.md."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum


class Tag(Enum):
    """Where an axiom comes from."""

    ISA_RULE = "ISA rule"
    ISA_EXAMPLE = "ISA example"
    VENDOR_PRACTICE = "vendor practice"
    OUR_CHOICE = "our choice"


def _axiom(number: int, tag: Tag, statement: str) -> bool:
    return field(default=True, metadata={"number": number, "tag": tag, "statement": statement})  # type: ignore[return-value]


@dataclass(frozen=True)
class Axioms:
    """True enforces the axiom. A switch that is off grants what the axiom would have checked."""

    scope_limits_order: bool = _axiom(
        1, Tag.ISA_RULE, "An arrival and a wait order memory only if the scope of each includes the other's thread."
    )
    scope_limits_async_hand_back: bool = _axiom(
        2, Tag.VENDOR_PRACTICE, "Axiom 1 also holds where both accesses are of the asynchronous proxy."
    )
    lanes_are_threads: bool = _axiom(
        3, Tag.ISA_RULE, "Lanes of a warp are ordered only by bar.warp.sync and by barriers, not by lockstep."
    )
    generic_to_async_needs_fence: bool = _axiom(
        4, Tag.ISA_RULE, "A generic write is ordered before an asynchronous access only through fence.proxy.async."
    )
    fence_covers_write_after_read: bool = _axiom(
        5, Tag.ISA_EXAMPLE, "So is a generic read before an asynchronous write."
    )
    fence_by_accessing_thread: bool = _axiom(
        6, Tag.OUR_CHOICE, "The proxy fence is executed by the thread that made the generic access, after it."
    )
    init_before_use: bool = _axiom(
        7, Tag.ISA_RULE, "Every use of an mbarrier is ordered after its init; across CTAs by fence.mbarrier_init."
    )
    phase_observed_before_next_arrival: bool = _axiom(
        8, Tag.ISA_RULE, "Each phase is observed by a successful wait before an arrival in the next phase."
    )
    written_before_read: bool = _axiom(
        9, Tag.OUR_CHOICE, "Shared and tensor memory is written before it is read; the ISA says 'unknown value'."
    )
    async_done_before_exit: bool = _axiom(
        10, Tag.VENDOR_PRACTICE, "Asynchronous operations on a CTA's memory are observed complete before it exits."
    )
    remote_access_before_exit: bool = _axiom(
        11,
        Tag.ISA_RULE,
        "Accesses by other CTAs are ordered before the exit of the CTA they reach; arrivals, or seen.",
    )
    tensor_fences: bool = _axiom(
        12, Tag.ISA_RULE, "tcgen05 operations of different threads are ordered through before_ and after_thread_sync."
    )
    tensor_fences_after_wait: bool = _axiom(
        13, Tag.ISA_EXAMPLE, "So are loads and stores of tensor memory that their own thread has waited for."
    )
    barrier_memory_is_opaque: bool = _axiom(
        14, Tag.ISA_RULE, "Memory that holds a valid mbarrier is touched by mbarrier operations only."
    )
    async_stores_need_fence: bool = _axiom(
        15, Tag.OUR_CHOICE, "st.async and red.async are accesses of the asynchronous proxy, as axioms 4 to 6 mean it."
    )


STRICT = Axioms()
TAGS: dict[str, Tag] = {f.name: f.metadata["tag"] for f in fields(Axioms)}
NUMBERS: dict[str, int] = {f.name: f.metadata["number"] for f in fields(Axioms)}
STATEMENTS: dict[str, str] = {f.name: f.metadata["statement"] for f in fields(Axioms)}


def is_unproven(axiom: str | None) -> bool:
    """Whether a violation says nothing certain about a foreign kernel: it rests on more than the ISA's rules."""
    return axiom is not None and TAGS[axiom] is not Tag.ISA_RULE
