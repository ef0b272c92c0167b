"""The batched matrix product that a kernel is chosen for: sizes, dtypes, majors and strides."""

from __future__ import annotations

import dataclasses
from typing import Literal

SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "int32": "s32",
}
DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "int32": 4,
}
COPY_ALIGNMENT_BYTES = 16
"""What is moved at a time, by the copy engine (TMA) or by stores from registers: every base address, and every stride
but the contiguous one, must be a multiple of it."""

PADDED_ROW_BYTES = 128
"""What rows of a padded copy are a multiple of: a line of L2, so that no piece that the copy engine moves cuts one."""

Operand = Literal["a", "b", "d"]


def short_dtype(dtype: str) -> str:
    """`bfloat16` -> `bf16`; a dtype without a short name is given back as it is."""
    return SHORT_DTYPES.get(dtype, dtype)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element. A dtype that no kernel knows counts as 4, for size arithmetic only."""
    return DTYPE_BYTES.get(dtype, 4)


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """`D[l,m,n] = sum_k A[l,m,k] B[l,k,n]`, with `batch` the size of l.

    `a_major` is `k` or `m`, `b_major` is `k` or `n`: the axis of the operand that is contiguous. D is n-contiguous.
    Each `*_strides` is (batch stride, stride of the axis that is not contiguous), in elements.
    Sizes may be zero. Raises ValueError for a negative size, an unknown major or malformed strides.
    """

    batch: int
    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    a_major: str
    b_major: str
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    d_strides: tuple[int, int]
    accumulator_dtype: str = "float32"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        for name in ("batch", "m", "n", "k"):
            size = getattr(self, name)
            if size < 0:
                raise ValueError(f"GemmProblem: {name} is {size}; sizes cannot be negative")
        if self.a_major not in ("k", "m"):
            raise ValueError(f"GemmProblem: a_major is {self.a_major!r}; expected 'k' or 'm'")
        if self.b_major not in ("k", "n"):
            raise ValueError(f"GemmProblem: b_major is {self.b_major!r}; expected 'k' or 'n'")
        for name in ("a_strides", "b_strides", "d_strides"):
            strides = getattr(self, name)
            if len(strides) != 2 or any(stride < 0 for stride in strides):
                raise ValueError(
                    f"GemmProblem: {name} is {strides}; expected (batch, outer) element strides, not negative"
                )
            object.__setattr__(self, name, (int(strides[0]), int(strides[1])))

    @classmethod
    def compact(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str = "bfloat16",
        out_dtype: str | None = None,
        a_major: str = "k",
        b_major: str = "n",
    ) -> GemmProblem:
        """The problem of freshly made arrays: no gaps between rows, none between batches."""
        a_outer = k if a_major == "k" else m
        b_outer = k if b_major == "k" else n
        return cls(
            batch, m, n, k, dtype, dtype, out_dtype or dtype, a_major, b_major,
            a_strides=(m * k, a_outer), b_strides=(k * n, b_outer), d_strides=(m * n, n),
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each product that is added."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that any kernel moves: each operand read once, the result written once."""
        a = self.m * self.k * dtype_bytes(self.a_dtype)
        b = self.k * self.n * dtype_bytes(self.b_dtype)
        d = self.m * self.n * dtype_bytes(self.out_dtype)
        return self.batch * (a + b + d)

    def dtype(self, operand: Operand) -> str:
        return {"a": self.a_dtype, "b": self.b_dtype, "d": self.out_dtype}[operand]

    def strides(self, operand: Operand) -> tuple[int, int]:
        return {"a": self.a_strides, "b": self.b_strides, "d": self.d_strides}[operand]

    def major(self, operand: Operand) -> str:
        """The axis of the operand that is contiguous."""
        return {"a": self.a_major, "b": self.b_major, "d": "n"}[operand]

    def extents(self, operand: Operand) -> tuple[int, int]:
        """(size of the axis that is not contiguous, size of the one that is)."""
        axes = {"a": "mk", "b": "kn", "d": "mn"}[operand]
        major = self.major(operand)
        outer = axes[0] if axes[1] == major else axes[1]
        return getattr(self, outer), getattr(self, major)

    def misalignment(self, operand: Operand) -> str | None:
        """Why the operand cannot be moved 16 bytes at a time, in words; None if it can.

        An axis of size 1 has no stride.
        """
        element_bytes = dtype_bytes(self.dtype(operand))
        outer_size, contiguous_size = self.extents(operand)
        batch_stride, outer_stride = (stride * element_bytes for stride in self.strides(operand))
        for what, size, stride in (("rows", outer_size, outer_stride), ("batches", self.batch, batch_stride)):
            if size > 1 and stride % COPY_ALIGNMENT_BYTES:
                return f"{operand}'s {what} start every {stride} bytes, not a multiple of {COPY_ALIGNMENT_BYTES}"
        row_bytes = contiguous_size * element_bytes
        granules_bytes = -(-row_bytes // COPY_ALIGNMENT_BYTES) * COPY_ALIGNMENT_BYTES
        if operand == "d" and row_bytes != granules_bytes and outer_stride < granules_bytes:
            # Stores are of whole granules: without room behind the row the last one would leave the result.
            return f"d's only row has {row_bytes} bytes, not a multiple of {COPY_ALIGNMENT_BYTES}"
        return None

    def padded(self, operand: Operand) -> tuple[GemmProblem, int]:
        """The problem after copying the operand to rows of a legal length, and that length in elements.

        Sizes stay: the kernel still reads (or writes) only the true extent of each row.
        """
        outer_size, contiguous_size = self.extents(operand)
        multiple = PADDED_ROW_BYTES // dtype_bytes(self.dtype(operand))
        row = -(-contiguous_size // multiple) * multiple
        old_strides = self.strides(operand)
        if contiguous_size and all(stride % contiguous_size == 0 for stride in old_strides):
            # Whole rows apart, whichever axis is outermost; 0 where all batches share one matrix.
            new_strides = tuple(stride // contiguous_size * row for stride in old_strides)
        else:
            new_strides = (outer_size * row, row)
        strides = {f"{operand}_strides": new_strides}
        return dataclasses.replace(self, **strides), row  # type: ignore[arg-type]

    def in_parts_of_k(self, parts: int) -> GemmProblem:
        """The batched problem whose results add up to this one's: a part of k each, read where it lies, not rounded.

        For one product whose k the number of parts divides.
        """
        if parts == 1:
            return self
        k = self.k // parts
        steps = {
            name: k if major == "k" else k * strides[1]
            for name, major, strides in (("a", self.a_major, self.a_strides), ("b", self.b_major, self.b_strides))
        }
        return dataclasses.replace(
            self, batch=parts, k=k, out_dtype=self.accumulator_dtype, a_strides=(steps["a"], self.a_strides[1]),
            b_strides=(steps["b"], self.b_strides[1]), d_strides=(self.m * self.n, self.n),
        )  # fmt: skip

    @property
    def sizes_text(self) -> str:
        """`4096 x 4096 x 4096 (m x n x k)`, with the batch before it if there is one."""
        sizes = f"{self.m} x {self.n} x {self.k}"
        return f"{sizes} (m x n x k)" if self.batch == 1 else f"{self.batch} x ({sizes}) (l x m x n x k)"

    @property
    def types_text(self) -> str:
        """`bf16 x bf16 -> bf16, a k-major, b n-major`."""
        dtypes = f"{short_dtype(self.a_dtype)} x {short_dtype(self.b_dtype)} -> {short_dtype(self.out_dtype)}"
        return f"{dtypes}, a {self.a_major}-major, b {self.b_major}-major"

    def __str__(self) -> str:
        return f"{self.sizes_text}, {self.types_text}"
