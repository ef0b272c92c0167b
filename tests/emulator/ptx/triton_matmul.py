"""Makes triton_matmul_*.ptx: `TRITON_DISABLE_LINE_INFO=1 python triton_matmul.py` with Triton 3.9.0; no GPU is needed.

A foreign kernel: written in another language, compiled by another compiler, run on the emulated device as it comes.
"""

from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C (M, N) = A (M, K) times the transpose of B (N, K), float32 out; one program a tile, tails masked."""
    tiles = tl.cdiv(N, BN)
    rows = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = (k + depth) < K
        a = tl.load(a_ptr + rows[:, None] * K + (k + depth)[None, :], (rows[:, None] < M) & inside[None, :], 0.0)
        b = tl.load(b_ptr + columns[None, :] * K + (k + depth)[:, None], (columns[None, :] < N) & inside[:, None], 0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc, (rows[:, None] < M) & (columns[None, :] < N))


def main() -> None:
    signature = {"a_ptr": "*?", "b_ptr": "*?", "c_ptr": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    tile = {"BM": 128, "BN": 64, "BK": 32}
    for capability, kind in ((90, "bf16"), (90, "fp32"), (100, "bf16")):
        types = {name: of.replace("?", kind) for name, of in signature.items()} | dict.fromkeys(tile, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 5)}  # pointers and K
        source = ASTSource(matmul, types, tile, aligned)
        target = GPUTarget("cuda", capability, 32)
        kernel = triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 3})
        Path(__file__).with_name(f"triton_matmul_{kind}_sm{capability}.ptx").write_text(kernel.asm["ptx"])
        print(capability, kind, kernel.metadata.shared, "bytes of shared memory")


if __name__ == "__main__":
    main()
