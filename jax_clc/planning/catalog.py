"""What ships: the manifest of the built kernels, read on first use, as Kernel records."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_clc.planning import json_fields
from jax_clc.planning.json_fields import flag, part, parts, text, texts, whole, wholes

MANIFEST_FORMAT = 1
CUBINS_VARIABLE = "JAX_CLC_CUBINS"
FAMILIES: Mapping[str, tuple[str, ...]] = {"sm_90a": ("9.0",), "sm_100f": ("10.0", "10.3")}
"""GPU families that kernels are built for, with the compute capabilities that each serves."""

OPTIONAL_FIELDS: Mapping[str, Any] = {"cluster_k": 1, "stream_k": False, "traced": False}
"""Fields of a manifest entry that may be absent, and what that means."""

PACKAGE_FOLDER = Path(__file__).parents[1]


class CatalogError(RuntimeError):
    """The manifest is missing or damaged; the text names the file and how to rebuild it."""


def how_to_rebuild() -> str:
    """What to do where the extension or the kernels are missing or do not fit."""
    if (PACKAGE_FOLDER.parent / "CMakeLists.txt").is_file():
        return (
            f"Python imports jax_clc from its source folder {PACKAGE_FOLDER.parent}: start Python elsewhere to use the "
            "installed one, or rebuild in place with `pip install -e .`."
        )
    return "Rebuild it with `pip install .` in the source folder."


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One cubin, as its manifest entry describes it. Sizes are in the kernel's own terms (see `swapped`)."""

    name: str
    family: str
    compute_capabilities: tuple[str, ...]
    minimum_driver: int
    schedule: str
    a_dtype: str
    b_dtype: str
    accumulator_dtype: str
    out_dtype: str
    a_major: str
    b_major: str
    d_major: str
    cta_tile: tuple[int, int, int]
    cluster: tuple[int, int]
    cluster_k: int
    """CTAs of a cluster that compute one tile, a part of k each."""
    two_sm_mma: bool
    pingpong: bool
    stages: int
    threads: int
    ctas_per_sm: int
    epilogue: str
    split_k: bool
    stream_k: bool
    """Workers share out by k tiles what does not fill a round of whole tiles."""
    traced: bool
    """Writes down who computed which tile when (docs/design.md, 7.7): for pictures, not for products."""
    launch_grid: str
    counter_bytes: int
    partial_bytes_per_element: int
    zeroed_bytes: int
    aligned_operands: frozenset[str]
    """Operands (`a`, `b`, `d`) that are moved 16 bytes at a time, by the copy engine or through a pointer, and whose
    strides therefore must be 16-byte multiples."""
    entry: Mapping[str, Any] = dataclasses.field(compare=False, repr=False)
    """The whole manifest entry, for the loader."""

    @property
    def swapped(self) -> bool:
        """The kernel computes `D^T = B^T A^T`: its a is the caller's b, its m the caller's n."""
        return self.d_major == "m"

    @property
    def body(self) -> tuple[object, ...]:
        """What kernels that differ in their schedule alone have in common; load stages make room for its records.
        Whether workers share out the last round is the schedule's business too."""
        return (
            self.family, self.a_dtype, self.b_dtype, self.accumulator_dtype, self.out_dtype, self.a_major, self.b_major,
            self.d_major, self.cta_tile, self.cluster, self.cluster_k, self.two_sm_mma, self.pingpong, self.epilogue,
            self.ctas_per_sm, self.split_k, self.aligned_operands,
        )  # fmt: skip

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster_k

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """(m, n) elements of D that one cluster computes: the unit that is scheduled."""
        return self.cta_tile[0] * self.cluster[0], self.cta_tile[1] * self.cluster[1]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Kernel:
        """A record over one manifest entry. Raises TypeError or ValueError, naming the field, where it is malformed."""
        fields = {**OPTIONAL_FIELDS, **entry}
        family = text(fields, "family")
        if family not in FAMILIES:
            raise ValueError(f"unknown family {family!r}; known are {', '.join(FAMILIES)}")
        for name in ("image", "ptx", "symbol", "image_sha256"):  # others read these in `entry`
            text(fields, name)
        for name in ("image", "ptx"):
            if Path(fields[name]).name != fields[name]:
                raise ValueError(f"the field '{name}' is {json_fields.shown(fields[name])}, expected a bare file name")
        majors, dtypes, scratch = part(fields, "majors"), part(fields, "dtypes"), part(fields, "scratch")
        tile_m, tile_n, tile_k = wholes(fields, "cta_tile", 3, least=1)
        cluster_m, cluster_n = wholes(fields, "cluster", 2, least=1)
        return cls(
            name=text(fields, "name"),
            family=family,
            compute_capabilities=texts(fields, "compute_capabilities"),
            minimum_driver=whole(fields, "minimum_driver", least=0),
            schedule=text(fields, "schedule"),
            a_dtype=text(dtypes, "a"),
            b_dtype=text(dtypes, "b"),
            accumulator_dtype=text(dtypes, "accumulator"),
            out_dtype=text(dtypes, "d"),
            a_major=text(majors, "a"),
            b_major=text(majors, "b"),
            d_major=text(majors, "d"),
            cta_tile=(tile_m, tile_n, tile_k),
            cluster=(cluster_m, cluster_n),
            cluster_k=whole(fields, "cluster_k", least=1),
            two_sm_mma=flag(fields, "two_sm_mma"),
            pingpong=flag(fields, "pingpong"),
            stages=whole(fields, "stages", least=1),
            threads=whole(fields, "threads", least=1),
            ctas_per_sm=whole(fields, "ctas_per_sm", least=1),
            epilogue=text(fields, "epilogue"),
            split_k=flag(fields, "split_k"),
            stream_k=flag(fields, "stream_k"),
            traced=flag(fields, "traced"),
            launch_grid=text(part(fields, "launch"), "grid"),
            counter_bytes=whole(scratch, "counter_bytes", least=0),
            partial_bytes_per_element=whole(scratch, "partial_bytes_per_element", least=0),
            zeroed_bytes=whole(scratch, "zeroed_bytes", least=0),
            aligned_operands=frozenset(
                text(param, "operand")
                for param in parts(fields, "params")
                if text(param, "kind") == "tensor_map" or "access_bytes" in param
            ),
            entry=entry,
        )


def directory() -> Path:
    """Where the cubins and their manifest are: `JAX_CLC_CUBINS` if set, else the package's own folder."""
    override = os.environ.get(CUBINS_VARIABLE)
    return Path(override) if override else Path(__file__).resolve().parent.parent / "cubins"


def manifest() -> Mapping[str, Any]:
    """The manifest as read. Raises CatalogError."""
    return _load(directory())[0]


def kernels(arch: str | None = None, *, traced: bool = False) -> tuple[Kernel, ...]:
    """All kernels that ship, sorted by name, or those that run on `arch`; with `traced` the traced builds too.

    `arch` is a family (`sm_90a`), an architecture (`sm_100`) or a compute capability (`10.3`).
    Raises ValueError for an unknown `arch` and CatalogError for a missing or damaged manifest.
    """
    every = tuple(kernel for kernel in _load(directory())[1] if traced or not kernel.traced)
    if arch is None:
        return every
    family = family_of(arch)
    return tuple(kernel for kernel in every if kernel.family == family)


def find(name: str) -> Kernel | None:
    """The kernel of that name, or None."""
    return _load(directory())[2].get(name)


def family_of(arch: str) -> str:
    """The family that serves an architecture or compute capability; ValueError if none does."""
    return _served(arch)[0]


def compute_capability_of(arch: str) -> tuple[int, int]:
    """(major, minor) of an architecture or compute capability, of a family the first that it serves; ValueError if no
    family serves it."""
    major, minor = _served(arch)[1].split(".")
    return int(major), int(minor)


def _served(arch: str) -> tuple[str, str]:
    """The family and the compute capability that `arch` names."""
    wanted = arch.strip().lower()
    for family, capabilities in FAMILIES.items():
        for capability in capabilities:
            architecture = f"sm_{capability.replace('.', '')}"
            if wanted in (family, capability, architecture, f"{architecture}a", f"{architecture}f"):
                return family, capability
    known = "; ".join(f"{family} (compute capability {', '.join(cc)})" for family, cc in FAMILIES.items())
    raise ValueError(f"no kernels are built for {arch!r}; there are kernels for {known}")


@functools.lru_cache(maxsize=8)
def _load(folder: Path) -> tuple[Mapping[str, Any], tuple[Kernel, ...], Mapping[str, Kernel]]:
    path = folder / "manifest.json"
    try:
        content = json_fields.read(path)
    except FileNotFoundError:
        raise CatalogError(f"jax_clc: no kernel manifest at {path}. {how_to_rebuild()}") from None
    except (OSError, ValueError) as error:
        raise CatalogError(
            f"jax_clc: the kernel manifest {path} cannot be read: {error}. {how_to_rebuild()}"
        ) from error
    if type(content.get("format")) is not int or content["format"] != MANIFEST_FORMAT:
        found = json_fields.shown(content.get("format"))
        raise CatalogError(
            f"jax_clc: the kernel manifest {path} has format {found}; this package reads format {MANIFEST_FORMAT}. "
            f"{how_to_rebuild()}"
        )
    entries = content.get("kernels")
    if not isinstance(entries, list):
        raise CatalogError(f"jax_clc: the kernel manifest {path} has no list of kernels. {how_to_rebuild()}")
    records = []
    for entry in entries:
        try:
            records.append(Kernel.from_entry(entry))
        except (TypeError, ValueError) as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            raise CatalogError(
                f"jax_clc: the kernel manifest {path} is damaged at kernel {name if isinstance(name, str) else '?'}: "
                f"{error}. {how_to_rebuild()}"
            ) from error
    records.sort(key=lambda kernel: kernel.name)
    by_name = {kernel.name: kernel for kernel in records}
    if len(by_name) != len(records):
        raise CatalogError(f"jax_clc: the kernel manifest {path} names a kernel twice. {how_to_rebuild()}")
    return content, tuple(records), by_name
