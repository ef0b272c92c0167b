"""Compiles the variants into cubins, PTX and manifest.json: `python -m kernels.compile --out jax_clc/cubins`.

Every variant is compiled in a process of its own (the DSL is not thread-safe), from a fork server that has the DSL
imported. Results are cached by kernel sources, variant and toolchain, so that a second build copies files.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import fnmatch
import gzip
import hashlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernels.variant import Variant
from kernels.variants import VARIANTS

ABI_VERSION = 1
MANIFEST_FORMAT = 1
SOURCES = Path(__file__).parent
MODULES = {"sm_90a": "kernels.gemm_sm90", "sm_100f": "kernels.gemm_sm100"}
COMPUTE_CAPABILITIES = {"sm_90a": ["9.0"], "sm_100f": ["10.0", "10.3"]}
SM_REGISTERS, REGISTER_GRANULE = 65536, 8  # of an SM; what a thread's count is rounded up to
MINIMUM_DRIVER = {"sm_90a": 12000, "sm_100f": 12090}  # CUDA versions, as cuDriverGetVersion counts them


def make_kernel(variant: Variant):
    """The traceable kernel of a variant: its module's `Kernel(variant)`.

    It has `entry` (what `cute.compile` takes), `arguments()`, `stages`, after tracing `parameters`, and `facts`: the
    manifest fields where it departs from the defaults of `manifest_entry`.
    """
    return importlib.import_module(MODULES[variant.family]).Kernel(variant)


def kernel_name(variant: Variant) -> str:
    return variant.name(make_kernel(variant).stages)


def toolchain() -> dict[str, str]:
    return {"nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl")}


def cache_directory() -> Path:
    """`$JAX_CLC_KERNEL_CACHE`, else `jax_clc/kernels` in the user's cache directory."""
    if chosen := os.environ.get("JAX_CLC_KERNEL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jax_clc" / "kernels"


def kernel_sources(module: str) -> list[Path]:
    """The files of this package that `module` imports, directly or not, its own among them; lists of variants apart."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = SOURCES / (name.rpartition(".")[2] + ".py")
        if name in found or not path.exists():
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                waiting += [name for name in names if name.startswith("kernels.")]
    return sorted(found.values())


def cache_key(variant: Variant) -> str:
    """Hash of all that a compiled kernel and its manifest entry depend on: sources (this file's too, which writes the
    entry), variant, toolchain."""
    digest = hashlib.sha256()
    for path in [Path(__file__), *kernel_sources(MODULES[variant.family])]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts = [dataclasses.asdict(variant), toolchain(), ABI_VERSION, MINIMUM_DRIVER, COMPUTE_CAPABILITIES]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def compile_variant(variant: Variant, directory: Path) -> dict:
    """Compiles one variant into `directory` (image, PTX, entry.json) and returns its manifest entry.

    Raises:
      ValueError: registers spilled to local memory, the parameter list differs from the PTX, or the folder for
        temporary files has a space in its name, at which the compiler would split its options.
    """
    os.environ["CUTE_DSL_ARCH"] = variant.family
    import cutlass.cute as cute

    from kernels import parameters

    kernel = make_kernel(variant)
    name = variant.name(kernel.stages)
    with tempfile.TemporaryDirectory() as scratch:
        if len(scratch.split()) > 1:
            raise ValueError(f"TMPDIR must have no space in its name for the kernel compiler: {scratch!r}")
        options = f"--gpu-arch {variant.family} --keep-cubin --keep-ptx --dump-dir {scratch}"
        compiled = cute.compile(kernel.entry, *kernel.arguments(), options=options)
    ptx, image = compiled.artifacts.PTX, compiled.artifacts.CUBIN
    params = parameters.place_parameters(kernel.parameters)
    parameters.check_against_ptx(params, ptx)

    directory.mkdir(parents=True, exist_ok=True)
    image_path = directory / f"{name}.cubin"
    image_path.write_bytes(image)
    (directory / f"{name}.ptx.gz").write_bytes(gzip.compress(ptx.encode(), mtime=0))
    resources = resource_usage(image_path)
    if resources["local_bytes"]:
        raise ValueError(f"{resources['local_bytes']} bytes of registers spilled to local memory")
    facts = {**parameters.launch_facts(str(compiled.ir_module), ptx), **resources}
    taken = variant.ctas_per_sm * facts["threads"] * -(-facts["registers"] // REGISTER_GRANULE) * REGISTER_GRANULE
    if taken > SM_REGISTERS:
        raise ValueError(f"{variant.ctas_per_sm} CTAs of {facts['threads']} threads take {taken} registers of an SM")
    entry = manifest_entry(variant, kernel, name, ptx, image, params, facts)
    (directory / "entry.json").write_text(json.dumps(entry))
    return entry


def manifest_entry(variant: Variant, kernel, name: str, ptx: str, image: bytes, params: list, facts: dict) -> dict:
    """One entry of the manifest, in the order of docs/design.md section 7.1."""
    from kernels import parameters

    dtypes = dict(zip(("a", "b", "accumulator", "d"), variant.dtypes, strict=True))
    cluster_size = variant.cluster[0] * variant.cluster[1] * variant.cluster_k
    persistent = variant.schedule in ("static", "dynamic")
    return {
        "name": name,
        "abi_version": ABI_VERSION,
        "family": variant.family,
        "compute_capabilities": COMPUTE_CAPABILITIES[variant.family],
        "minimum_driver": MINIMUM_DRIVER[variant.family],
        "image": f"{name}.cubin",
        "image_sha256": hashlib.sha256(image).hexdigest(),
        "ptx": f"{name}.ptx.gz",
        "symbol": parameters.entry_symbol(ptx),
        "dtypes": dtypes,
        "majors": dict(zip("abd", variant.majors, strict=True)),
        "cta_tile": list(variant.cta_tile),
        "cluster": list(variant.cluster),
        "two_sm_mma": variant.two_sm_mma,
        "pingpong": variant.pingpong,
        "stages": kernel.stages,
        "threads": facts["threads"],
        "schedule": variant.schedule,
        "epilogue": "none",
        "reduction_order": "splits_then_k_ascending" if variant.split_k else "k_ascending",
        "split_k": variant.split_k,
        "stream_k": variant.stream_k,
        "operand_copies": variant.operand_copies,
        "output_copies": variant.output_copies,
        "traced": variant.traced,
        "dynamic_smem_bytes": facts["dynamic_smem_bytes"],
        "registers": facts["registers"],
        "local_bytes": facts["local_bytes"],
        "tensor_memory_columns": 0,
        "ctas_per_sm": 1,
        "record_stages": 0,
        "launch": {
            "block": [facts["threads"], 1, 1],
            "cluster": [cluster_size, 1, 1],
            "grid": "workers" if persistent else "tiles",
        },
        "scratch": {"counter_bytes": 0, "partial_bytes_per_element": 0, "zeroed_bytes": 0},
        "params": params,
        **kernel.facts,
    }


def resource_usage(image: Path) -> dict[str, int]:
    """Registers and local-memory bytes of a cubin, by cuobjdump."""
    report = subprocess.run(
        [find_cuobjdump(), "--dump-resource-usage", str(image)], check=True, capture_output=True, text=True
    ).stdout
    usage = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    return {"registers": usage["REG"], "local_bytes": usage["STACK"] + usage["LOCAL"]}


def find_cuobjdump() -> str:
    """cuobjdump of the PATH, else of the PyPI package nvidia-cuda-cuobjdump."""
    if found := shutil.which("cuobjdump"):
        return found
    try:
        package = importlib.metadata.distribution("nvidia-cuda-cuobjdump")
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError("cuobjdump: not on the PATH; pip install nvidia-cuda-cuobjdump") from None
    return next(str(package.locate_file(file)) for file in package.files or () if file.name == "cuobjdump")


def compile_into_cache(variant: Variant) -> tuple[dict, float]:
    """The worker's job: compile, then move the result into the cache in one step, so that no reader sees half of it."""
    started = time.monotonic()
    target = cache_directory() / cache_key(variant)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".compiling-"))
    try:
        try:
            entry = compile_variant(variant, work)
        except Exception as error:  # the DSL's own errors do not travel between processes
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        if not (target / "entry.json").exists():
            shutil.rmtree(target, ignore_errors=True)
        try:
            work.rename(target)
        except OSError:  # another build was first: what it has put there is the same
            if not (target / "entry.json").exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return entry, time.monotonic() - started


def cached_entry(variant: Variant) -> dict | None:
    """The manifest entry of a variant that is in the cache, else None."""
    path = cache_directory() / cache_key(variant) / "entry.json"
    return json.loads(path.read_text()) if path.exists() else None


def compile_all(variants: list[Variant], workers: int) -> None:
    """Compiles what the cache lacks, with a line of progress for each; the first failure names its variant."""
    missing = [variant for variant in variants if cached_entry(variant) is None]
    cached = len(variants) - len(missing)
    print(f"kernels: {len(variants)} wanted, {cached} cached, {len(missing)} to compile", flush=True)
    if not missing:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cutlass.cute"])
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1)
    names = {variant: kernel_name(variant) for variant in missing}
    futures = {pool.submit(compile_into_cache, variant): names[variant] for variant in missing}
    for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
        try:
            entry, seconds = future.result()
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            raise SystemExit(f"kernel {futures[future]} failed to compile: {error}") from error
        bar = "#" * (20 * done // len(futures))
        print(
            f"[{bar:20}] {done}/{len(futures)} {entry['name']}: {seconds:.1f} s, {entry['registers']} registers,"
            f" {entry['dynamic_smem_bytes']} bytes of shared memory",
            flush=True,
        )
    pool.shutdown()


def install(variants: list[Variant], out: Path) -> None:
    """Copies the cached kernels to `out`, writes the manifest last, and removes kernels that are no longer listed."""
    out.mkdir(parents=True, exist_ok=True)
    entries, files = [], {"manifest.json"}
    for variant in variants:
        if (entry := cached_entry(variant)) is None:
            continue
        for file in (entry["image"], entry["ptx"]):
            source = cache_directory() / cache_key(variant) / file
            if not (out / file).exists() or (out / file).read_bytes() != source.read_bytes():
                shutil.copyfile(source, out / file)
            files.add(file)
        entries.append(entry)
    manifest = {
        "format": MANIFEST_FORMAT,
        "package_version": package_version(),
        "toolchain": toolchain(),
        "kernels": entries,
    }
    partial = out / ".manifest.json"
    partial.write_text(json.dumps(manifest, indent=1) + "\n")
    partial.replace(out / "manifest.json")
    for path in out.iterdir():
        if path.name not in files and path.name.endswith((".cubin", ".ptx.gz")):
            path.unlink()
    print(f"{len(entries)} kernels in {out}")


def package_version() -> str:
    """Version of the package in pyproject.toml, next to this folder."""
    project = SOURCES.parent / "pyproject.toml"
    match = re.search(r'^version\s*=\s*"([^"]+)"', project.read_text(), re.MULTILINE) if project.exists() else None
    return match[1] if match else "0.1.0"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for cubins, PTX and manifest.json")
    parser.add_argument("--only", metavar="PATTERN", help="compile only kernels whose name matches; cached others stay")
    parser.add_argument("--workers", type=int, default=2, help="compiling processes (default 2)")
    options = parser.parse_args(arguments)
    wanted = VARIANTS
    if options.only:
        wanted = [v for v in VARIANTS if fnmatch.fnmatch(kernel_name(v), f"*{options.only}*")]
        if not wanted:
            sys.exit(f"no kernel matches {options.only!r}")
    compile_all(wanted, options.workers)
    install(VARIANTS, options.out)


if __name__ == "__main__":
    main()
