"""mov, cvt, cvta, mapa, isspacep, getctarank: values between registers, types and address spaces."""

from __future__ import annotations

from .emitter import NUMPY_TYPE, Emitter
from .instruction_table import form
from .instructions_integer import bits_of, truncated, unsigned
from .ptx_tree import TYPE_BYTES, Instruction, Label, Register, SpecialRegister, Vector

FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
EIGHT_BIT_PAIRS = ("e4m3x2", "e5m2x2")
RANGES = {kind: (-(1 << bits_of(kind) - 1), (1 << bits_of(kind) - 1) - 1) for kind in ("s8", "s16", "s32", "s64")}
RANGES |= {kind: (0, (1 << bits_of(kind)) - 1) for kind in ("u8", "u16", "u32", "u64")}


def mov_uniform(analysis, instruction: Instruction, block: int, position: int) -> bool:
    sources = instruction.operands[1:]
    if all(analysis.is_uniform(o, block, position) for o in sources):
        return analysis.special_uniform(instruction) or analysis.always_uniform(instruction, analysis, block, position)
    return False


@form("mov", uniform=mov_uniform)
def mov(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, a = instruction.operands
    if kind == "pred":
        text, how = emitter.predicate(a)
        return emitter.put_predicate(d, text, how)
    if kind == "b128":
        return _move_b128(emitter, d, a)
    if isinstance(a, Vector):
        return _pack(emitter, d, a, kind)
    if isinstance(d, Vector):
        return _unpack(emitter, d, a, kind)
    if isinstance(a, SpecialRegister):
        scalar = emitter.is_scalar(a)
        text = emitter.special(a)
        return emitter.put(d, text, unsigned(kind), scalar)
    if isinstance(a, Register) and not emitter.is_scalar(a) and emitter.declared(a) == kind in ("f32", "f64"):
        return emitter.put(d, emitter.value(a, kind), kind, False)
    return emitter.put(d, emitter.raw(a, unsigned(kind)), unsigned(kind), emitter.is_scalar(a))


def _pack(emitter: Emitter, d, a: Vector, kind: str) -> None:
    each = bits_of(kind) // len(a.items)
    u = unsigned(kind)
    if emitter.is_scalar(a):
        text = " | ".join(f"({emitter.raw(o, f'u{each}')} << {each * i})" for i, o in enumerate(a.items))
        return emitter.put(d, text, u, True)
    wide = NUMPY_TYPE[u]
    terms = []
    for index, operand in enumerate(a.items):
        text = emitter.vector(operand, f"u{each}") + f".astype({wide})"
        terms.append(f"({text} << {wide}({each * index}))" if index else text)
    return emitter.put(d, " | ".join(terms), u, False)


def _unpack(emitter: Emitter, d: Vector, a, kind: str) -> None:
    each = bits_of(kind) // len(d.items)
    source = emitter.temporary()
    scalar = emitter.is_scalar(a)
    emitter.write(f"{source} = {emitter.raw(a, unsigned(kind))}")
    for index, operand in enumerate(d.items):
        if operand == Label("_"):
            continue
        if scalar:
            emitter.put(operand, f"({source} >> {each * index}) & {(1 << each) - 1}", f"u{each}", True)
        else:
            wide = NUMPY_TYPE[unsigned(kind)]
            emitter.put(operand, f"({source} >> {wide}({each * index})).astype(U{each})", f"u{each}", False)


def _move_b128(emitter: Emitter, d, a) -> None:
    if isinstance(a, Vector):
        low, high = a.items
        if emitter.is_scalar(a):
            text = f"{emitter.raw(low, 'u64')} | {emitter.raw(high, 'u64')} << 64"
            return put_scalar_b128(emitter, d, text)
        text = f"np.stack(({emitter.vector(low, 'u64')}, {emitter.vector(high, 'u64')}), 1)"
        return put_b128(emitter, d, text)
    if isinstance(d, Vector):
        name = _name_b128(emitter, a)
        for index, operand in enumerate(d.items):
            if emitter.is_scalar(a):
                emitter.put(operand, f"({name} >> {64 * index}) & {(1 << 64) - 1}", "u64", True)
            else:
                emitter.put(operand, f"{name}[:, {index}].copy()", "u64", False)
        return None
    name = _name_b128(emitter, a)
    return put_scalar_b128(emitter, d, name) if emitter.is_scalar(a) else put_b128(emitter, d, name)


def put_scalar_b128(emitter: Emitter, d, text: str) -> None:
    """Assign one 128-bit integer to all lanes."""
    if emitter.definition(d).uniform:
        emitter.put(d, text, "b128", True)
    else:
        put_b128(emitter, d, f"FULL_U128({text})")


def _name_b128(emitter: Emitter, operand) -> str:
    if not isinstance(operand, Register):
        raise emitter.unsupported("128-bit operand")
    return emitter.name(emitter.use(operand))


def put_b128(emitter: Emitter, d, text: str) -> None:
    """Assign 128-bit lanes, a (32, 2) array of uint64."""
    web = emitter.definition(d)
    if emitter.guarded or (web.blended and emitter.block in emitter.analysis.partial):
        text = f"WHERE(LANES[{emitter.mask}][:, None], {text}, {emitter.name(web)})"
    emitter.write(f"{emitter.name(web)} = {text}")


# cvt


def cvt_uniform(analysis, instruction: Instruction, block: int, position: int) -> bool:
    if any(p in FLOATS or p.startswith(("e4m3", "e5m2", "tf32")) for p in instruction.parts[-2:]):
        return False
    return all(analysis.is_uniform(o, block, position) for o in instruction.operands[1:])


@form("cvt", uniform=cvt_uniform)
def cvt(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    if parts[1] == "pack":
        raise emitter.unsupported()
    if len(instruction.operands) == 3:
        return _cvt_pair(emitter, instruction)
    to, source = parts[-2], parts[-1]
    if source in EIGHT_BIT_PAIRS:
        return _cvt_from_eight_bits(emitter, instruction, to, source)
    if to not in TYPE_BYTES and to != "tf32" or source not in TYPE_BYTES:
        raise emitter.unsupported()
    if to in FLOATS or source in FLOATS or to == "tf32":
        return _cvt_float(emitter, instruction, to, source)
    d, a = instruction.operands
    scalar = emitter.is_scalar(a)
    value = emitter.value(a, source)
    if "sat" in parts:
        low, high = RANGES[to]
        if scalar:
            return _put_widened(emitter, d, f"min(max({value}, {low}), {high})", to)
        return emitter.put(d, f"CLIP({value}, {low}, {high}, {NUMPY_TYPE[to]})", to, False)
    if scalar:
        return _put_widened(emitter, d, value, to)
    return emitter.put(d, f"{value}.astype({NUMPY_TYPE[to]})", to, False)


def _put_widened(emitter: Emitter, d, value: str, to: str) -> None:
    """A scalar integer cut to `to`, then extended to the register by `to`'s sign."""
    have = emitter.bytes_of(d) if isinstance(d, Register) else TYPE_BYTES[to]
    text = truncated(value, to)
    if have > TYPE_BYTES[to] and to[0] == "s":
        half = 1 << (bits_of(to) - 1)
        text = f"((({text}) ^ {half}) - {half}) & {(1 << 8 * have) - 1}"
    emitter.put(d, text, f"u{8 * have}", True)


def _cvt_float(emitter: Emitter, instruction: Instruction, to: str, source: str) -> None:
    from .instructions_float import load

    parts = instruction.parts
    d, a = instruction.operands
    rounding = next((p for p in parts if p in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")), "rn")
    value = load(emitter, a, source) if source in FLOATS else emitter.vector(a, source)
    if to not in FLOATS and to != "tf32":
        low, high = RANGES[to]
        mode = rounding if rounding.endswith("i") else "rzi"
        nan = 1 << bits_of(to) - 1 if source == "f64" or to in ("s64", "u64") else 0  # the top bit alone, or zero
        nan -= 1 << bits_of(to) if nan and to[0] == "s" else 0
        return emitter.put(d, f"TO_INT({value}, {low}, {high}, {nan}, {NUMPY_TYPE[to]}, {mode!r})", to, False)
    if rounding.endswith("i"):
        function = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}[rounding]
        value = f"{function}({value})"
    elif rounding != "rn" and not (rounding == "rna" and to == "tf32"):
        widening = TYPE_BYTES.get(source, 8) < TYPE_BYTES.get(to, 0) and source in FLOATS
        if not widening and (to != "f32" or source in ("s64", "u64")):
            raise emitter.unsupported(f"rounding .{rounding} to .{to}")
        if not widening:
            value = f"DIRECTED32(({value}).astype(F64), {rounding!r})"
    if "relu" in parts:
        value = f"RELU({value})"
    if "sat" in parts:
        value = f"SATURATE({value})"
    if to == "tf32":
        return emitter.put(d, f"(({value}).view(U32) + U32(0x1000)) & U32(0xFFFFE000)", "u32", False)
    if to == "bf16":
        return emitter.put(d, f"F32_TO_BF16(({value}).astype(F32)).astype(U16)", "u16", False)
    if to == "f16":
        return emitter.put(d, f"F32_TO_F16({value}).astype(U16)", "u16", False)
    value = f"({value}).astype({NUMPY_TYPE[to]})"
    return emitter.put(d, f"FLUSH({value})" if "ftz" in parts and to == "f32" else value, to, False)


def _cvt_pair(emitter: Emitter, instruction: Instruction) -> None:
    """cvt.rn(.relu)(.satfinite).{f16x2,bf16x2}.f32 d, a, b: a is the upper half."""
    parts = instruction.parts
    to, source = parts[-2], parts[-1]
    if to not in ("f16x2", "bf16x2", *EIGHT_BIT_PAIRS) or source != "f32" or "rn" not in parts:
        raise emitter.unsupported()
    d, a, b = instruction.operands
    x, y = emitter.vector(a, "f32"), emitter.vector(b, "f32")
    if "relu" in parts:
        x, y = f"RELU({x})", f"RELU({y})"
    if to in EIGHT_BIT_PAIRS:
        emitter.put(d, f"PACK_EIGHT_BITS({x}, {y}, {to[:4]!r})", "u16", False)
        return
    if "satfinite" in parts:
        limit = 65504.0 if to == "f16x2" else 3.3895313892515355e38
        x, y = f"({x}).clip(-{limit}, {limit})", f"({y}).clip(-{limit}, {limit})"
    emitter.put(d, f"{'PACK_F16' if to == 'f16x2' else 'PACK_BF16'}({x}, {y})", "u32", False)


def _cvt_from_eight_bits(emitter: Emitter, instruction: Instruction, to: str, source: str) -> None:
    """cvt.rn(.relu).f16x2.{e4m3x2,e5m2x2} d, a."""
    if to != "f16x2":
        raise emitter.unsupported()
    d, a = instruction.operands
    values = f"UNPACK_EIGHT_BITS({emitter.vector(a, 'u16')}, {source[:4]!r})"
    if "relu" in instruction.parts:
        values = f"CANONICAL(RELU({values}))"
    emitter.put(d, f"({values}).view(U32)", "u32", False)


# address spaces


@form("cvta")
def cvta(emitter: Emitter, instruction: Instruction) -> None:
    """Generic addresses of shared, local and param memory carry their window in the upper bits."""
    parts = instruction.parts
    d, a = instruction.operands
    space = parts[2] if parts[1] == "to" else parts[1]
    space = space.split("::")[0]
    windows = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW", "param": "PARAM_WINDOW", "global": "0", "const": "0"}
    if space not in windows:
        raise emitter.unsupported()
    value, scalar = emitter.raw(a, "u64"), emitter.is_scalar(a)
    if windows[space] == "0":
        return emitter.put(d, value, "u64", scalar)
    window = windows[space]
    if not scalar:
        window = f"U64({window})"
    return emitter.put(d, f"{value} {'^' if parts[1] == 'to' else '|'} {window}", "u64", scalar)


@form("mapa")
def mapa(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    d, a, b = instruction.operands
    kind = parts[-1]
    shared = any(p.startswith("shared") for p in parts)
    scalar = emitter.is_scalar(a, b)
    address, rank = emitter.raw(a, kind), emitter.raw(b, "u32")
    keep = 0xFFFFFF if shared else ~0xFF000000 & 0xFFFFFFFFFFFFFFFF
    if scalar:
        return emitter.put(d, f"warp.map_rank({address} & {keep}, {rank})", kind, True)
    numpy_type = NUMPY_TYPE[kind]
    text = f"({emitter.vector(a, kind)} & {numpy_type}({keep})) | "
    text += f"({emitter.vector(b, 'u32')}.astype({numpy_type}) << {numpy_type}(24))"
    return emitter.put(d, text, kind, False)


@form("getctarank")
def getctarank(emitter: Emitter, instruction: Instruction) -> None:
    d, a = instruction.operands
    kind = instruction.parts[-1]
    scalar = emitter.is_scalar(a)
    text = f"({emitter.raw(a, kind)} >> {'24' if scalar else NUMPY_TYPE[kind] + '(24)'}) & 255"
    emitter.put(d, text if scalar else f"({text}).astype(U32)", "u32", scalar)


@form("isspacep")
def isspacep(emitter: Emitter, instruction: Instruction) -> None:
    d, a = instruction.operands
    space = instruction.parts[1].split("::")[0]
    scalar = emitter.is_scalar(a)
    tops = {"shared": 1, "local": 2, "param": 3}
    value = emitter.raw(a, "u64")
    top = f"({value} >> {'56' if scalar else 'U64(56)'})"
    test = f"{top} == {tops[space]}" if space in tops else f"({top} == 0)"
    emitter.put(d, test, "pred", scalar)
