"""Loads and stores of global and shared memory that the DSL's tensors cannot say: predicated, by address."""

from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op


def _assemble(text: str, operands: list, constraints: list[str], results: int, loc, ip) -> list[Int32]:
    """A volatile inline-assembly block with `results` 32-bit results."""
    i32 = Int32.mlir_type
    several = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * results)})>") if results > 1 else i32
    block = llvm.inline_asm(
        several if results else None,
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        ",".join([*["=&r"] * results, *constraints, "~{memory}"]),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    if results <= 1:
        return [Int32(block)] if results else []
    return [Int32(llvm.extractvalue(i32, block, [i], loc=loc, ip=ip)) for i in range(results)]


@dsl_user_op
def load_16_bytes(address: Int64, condition: Int32, *, loc=None, ip=None) -> list[Int32]:
    """Four words of global memory at a multiple of 16, or zeros where `condition` is 0."""
    return _assemble(
        "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n"
        "mov.b32 $0, 0;\nmov.b32 $1, 0;\nmov.b32 $2, 0;\nmov.b32 $3, 0;\n"
        "@p ld.global.v4.b32 {$0, $1, $2, $3}, [$4];\n}",
        [address, condition],
        ["l", "r"],
        4,
        loc,
        ip,
    )


@dsl_user_op
def load_2_bytes(address: Int64, condition: Int32, *, loc=None, ip=None) -> Int32:
    """Two bytes of global memory in the low half of a word, or zero where `condition` is 0."""
    return _assemble(
        "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, $2, 0;\nmov.b16 h, 0;\n"
        "@p ld.global.b16 h, [$1];\ncvt.u32.u16 $0, h;\n}",
        [address, condition],
        ["l", "r"],
        1,
        loc,
        ip,
    )[0]


@dsl_user_op
def store_4_bytes(address: Int64, value: Int32, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores a word to global memory at a multiple of 4 where `condition` is not 0."""
    _assemble(
        "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.global.b32 [$0], $1;\n}",
        [address, value, condition],
        ["l", "r", "r"],
        0,
        loc,
        ip,
    )


@dsl_user_op
def store_2_bytes(address: Int64, value: Int32, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores the low half of a word to global memory at a multiple of 2 where `condition` is not 0."""
    _assemble(
        "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, $2, 0;\ncvt.u16.u32 h, $1;\n@p st.global.b16 [$0], h;\n}",
        [address, value, condition],
        ["l", "r", "r"],
        0,
        loc,
        ip,
    )


@dsl_user_op
def store_16_bytes(address: Int64, words: list, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores four words to global memory at a multiple of 16 where `condition` is not 0."""
    _assemble(
        "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n@p st.global.v4.b32 [$0], {$1, $2, $3, $4};\n}",
        [address, *words, condition],
        ["l"] + ["r"] * 5,
        0,
        loc,
        ip,
    )


@dsl_user_op
def load_shared_word(address: Int32, *, loc=None, ip=None) -> Int32:
    return _assemble("ld.shared.b32 $0, [$1];", [address], ["r"], 1, loc, ip)[0]


@dsl_user_op
def load_shared_16_bytes(address: Int32, *, loc=None, ip=None) -> list[Int32]:
    """Four words of shared memory at a multiple of 16."""
    return _assemble("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", [address], ["r"], 4, loc, ip)


@dsl_user_op
def store_shared_16_bytes(address: Int32, words: list, *, loc=None, ip=None) -> None:
    """Stores four words to shared memory at a multiple of 16."""
    _assemble("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", [address, *words], ["r"] * 5, 0, loc, ip)


@dsl_user_op
def funnel_shift_right(low: Int32, high: Int32, bits: Int32, *, loc=None, ip=None) -> Int32:
    """Bits `bits` to `bits` + 31 of high:low, for `bits` from 0 to 31."""
    return _assemble("shf.r.wrap.b32 $0, $1, $2, $3;", [low, high, bits], ["r"] * 3, 1, loc, ip)[0]


@dsl_user_op
def send_quad(address: Int32, barrier, rank: Int32, values: list[Float32], *, loc=None, ip=None) -> None:
    """Stores four numbers asynchronously where `address`, a multiple of 16, lies in the shared memory of the cluster's
    CTA `rank`, completing 16 bytes on the barrier that lies there where `barrier` does."""
    _assemble(
        "{\n.reg .b32 target, signal;\nmapa.shared::cluster.u32 target, $0, $2;\n"
        "mapa.shared::cluster.u32 signal, $1, $2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [target], {$3, $4, $5, $6}, [signal];\n}",
        [address, Int32(barrier.toint()), rank, *values],
        ["r", "r", "r", "f", "f", "f", "f"],
        0,
        loc,
        ip,
    )
