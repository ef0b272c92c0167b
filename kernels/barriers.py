"""Barrier and fence instructions with their scope and order spelled out, as the kernels need them.

The DSL's own calls leave scope and order to defaults that are right inside one CTA: `.release.cta` and `.acquire.cta`
count across CTAs but order nothing there. Here every call names both. The forms are those of the PTX ISA's own
examples (mbarrier, tcgen05 synchronization patterns, clusterlaunchcontrol.try_cancel).
"""

from cutlass import Float32, Int32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op


def assemble(text: str, operands: list, result: type | None = None, *, loc=None, ip=None):
    """One volatile inline-assembly block that nothing which touches memory moves across.

    Args:
      text: PTX; `$0` is the result if there is one, then the operands in order.
      operands: pointers into shared memory and 32-bit numbers.
      result: DSL type of the 32-bit result, if any.
    """
    values = [
        operand.to_llvm_ptr(loc=loc, ip=ip)
        if isinstance(operand, cute.Pointer)
        else Int32(operand).ir_value(loc=loc, ip=ip)
        for operand in operands
    ]
    # Early clobber: a block of several instructions may write its result before it has read all operands.
    constraints = [*(["=&r"] if result else []), *(["r"] * len(values)), "~{memory}"]
    return llvm.inline_asm(
        result.mlir_type if result else None,
        values,
        text,
        ",".join(constraints),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def pause(nanoseconds: int, *, loc=None, ip=None) -> None:
    """This warp issues nothing for about so long, at most twice as long."""
    assemble(f"nanosleep.u32 {nanoseconds};", [], loc=loc, ip=ip)


@dsl_user_op
def wait(barrier: cute.Pointer, parity: Int32, fence: str | None = "shared", *, loc=None, ip=None) -> None:
    """Block until the phase of `parity` of a barrier in this CTA has completed.

    The wait itself is relaxed, of cluster scope; a fence after it orders what follows. Together they are an acquire
    pattern. An acquiring wait of cluster scope would do too, but it covers global memory, and throws away the L1 cache
    at each success (CCTL.IVALL in SASS).

    Args:
      barrier: an mbarrier in this CTA's shared memory.
      parity: 0 or 1, of the phase waited for; a fresh barrier passes a wait for 1 at once.
      fence: what the wait orders: `shared`, shared memory of the whole cluster; `tensor`, later tcgen05 instructions;
        `both`; or None, nothing: the arrival told of an event, or the caller has a fence of its own.
    """
    shared, tensor = "fence.acquire.sync_restrict::shared::cluster.cluster;\n", "tcgen05.fence::after_thread_sync;\n"
    fences = {"shared": shared, "tensor": tensor, "both": shared + tensor, None: ""}
    assemble(
        "{\n"
        ".reg .pred complete;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, [$0], $1;\n"
        "@!complete bra WAIT;\n"
        f"{fences[fence]}"
        "}",
        [barrier, parity],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def arrive_at(barrier: cute.Pointer, rank: Int32, *, loc=None, ip=None):
    """Arrive once, relaxed, at the barrier that lies where `barrier` lies, in the CTA of `rank`.

    A release fence before it makes the pair a release pattern of cluster scope; `.release.cluster` on the arrive itself
    would wait for all earlier global writes too, which nothing here hands over.
    """
    assemble(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, $0, $1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
        "}",
        [barrier, rank],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def arrive(barrier: cute.Pointer, *, loc=None, ip=None):
    """Arrive once, relaxed, at a barrier of this CTA, where the arrival hands over an event and no data."""
    assemble(
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [$0];",
        [barrier],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def expect_at(barrier: cute.Pointer, rank: Int32, size_bytes: int, *, loc=None, ip=None):
    """Arrive once and expect `size_bytes` more at the barrier of the CTA of `rank`. Hands over no data: relaxed."""
    assemble(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, $0, $1;\n"
        f"mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [remote], {size_bytes};\n"
        "}",
        [barrier, rank],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def expect(barrier: cute.Pointer, size_bytes: int, *, loc=None, ip=None):
    """Arrive once and expect `size_bytes` more at a barrier of this CTA. Hands over no data: relaxed."""
    assemble(
        f"mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [$0], {size_bytes};",
        [barrier],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def computed_here(value: Int32, *, loc=None, ip=None) -> Int32:
    """`value`, by an instruction that stays in order with the barriers and fences of this file."""
    return Int32(assemble("mov.b32 $0, $1;", [value], Int32, loc=loc, ip=ip))


@dsl_user_op
def fence_release_shared(*, loc=None, ip=None):
    """What this thread has done to its CTA's shared memory, and what others have done whose arrivals it has waited for,
    comes before what another thread of the cluster does after it has seen this thread's next (relaxed) arrival and
    fenced."""
    assemble("fence.release.sync_restrict::shared::cta.cluster;", [], loc=loc, ip=ip)


@dsl_user_op
def fence_reads_before_async_writes_release(*, loc=None, ip=None):
    """Reader's half: this thread's reads of its CTA's shared memory come before asynchronous writes that a peer starts
    after it has seen this thread's next (relaxed) arrival."""
    assemble("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;", [], loc=loc, ip=ip)


@dsl_user_op
def fence_reads_before_async_writes_acquire(*, loc=None, ip=None):
    """Writer's half: asynchronous writes that this thread starts from here on come after the reads just handed back."""
    assemble("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;", [], loc=loc, ip=ip)


WAIT_FOR_TENSOR_LOAD = "tcgen05.wait::ld.sync.aligned;"


@dsl_user_op
def load_tensor_memory_row(address: Int32, columns: int, *, loc=None, ip=None) -> list[Float32]:
    """By a whole warp: `columns` consecutive columns of each lane's own row of tensor memory, waited for.

    Load and wait are one block: until the wait the registers hold nothing, and the compiler, which does not know that,
    puts moves of them in between (seen with the DSL's copy).

    Args:
      address: of the warp's first row (bits 16 up: the lane, a multiple of 32) and the first column.
      columns: a power of two, 128 at most.
    """
    registers = ", ".join(f"${i}" for i in range(columns))
    text = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{registers}}}, [${columns}];\n{WAIT_FOR_TENSOR_LOAD}"
    bits = Int32.mlir_type
    row = llvm.inline_asm(
        llvm.StructType.get_literal([bits] * columns),
        [Int32(address).ir_value(loc=loc, ip=ip)],
        text,
        ",".join([*(["=r"] * columns), "r", "~{memory}"]),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    values = [llvm.extractvalue(bits, row, [i], loc=loc, ip=ip) for i in range(columns)]
    return [Float32(llvm.bitcast(Float32.mlir_type, value, loc=loc, ip=ip)) for value in values]


@dsl_user_op
def tensor_memory_fence_before_sync(*, loc=None, ip=None):
    """This thread's tcgen05 operations so far come before what another thread does after the coming synchronization."""
    assemble("tcgen05.fence::before_thread_sync;", [], loc=loc, ip=ip)


@dsl_user_op
def tensor_memory_fence_after_sync(*, loc=None, ip=None):
    """This thread's tcgen05 operations from here on come after what the synchronization just seen has ordered."""
    assemble("tcgen05.fence::after_thread_sync;", [], loc=loc, ip=ip)
