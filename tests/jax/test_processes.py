"""What crosses processes: saved programs, the persistent compilation cache, and computations over several processes."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_clc.export
from jax_clc import native
from jax_clc.matmul import matmul

sys.path.append(str(Path(__file__).parent.parent / "planning"))
import synthetic_manifest  # noqa: E402

PACKAGE_FOLDER = Path(native.__file__).parents[1]
"""Where the package under test lies, installed or in the source folder: other processes are to import the same one."""
saves_programs = pytest.mark.skipif(
    importlib.util.find_spec("flatbuffers") is None,
    reason="jax.export serializes with flatbuffers, which is not installed",
)


def start_python(code: str, *arguments: str, **environment: str) -> subprocess.Popen:
    path = os.pathsep.join([str(PACKAGE_FOLDER), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def output_of(process: subprocess.Popen) -> str:
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path / "cubins")))
    jax.clear_caches()
    yield
    jax.clear_caches()


A, B = np.arange(64 * 32).reshape(64, 32) % 5 - 2, np.arange(32 * 128).reshape(32, 128) % 3 - 1


def operands():
    return jnp.asarray(A, jnp.bfloat16), jnp.asarray(B, jnp.bfloat16)


LOAD_AND_RUN = """
import sys, numpy as np, jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 8)
import jax_clc.export
exported = jax_clc.export.deserialize(open(sys.argv[1], "rb").read())
a, b = np.arange(64 * 32).reshape(64, 32) % 5 - 2, np.arange(32 * 128).reshape(32, 128) % 3 - 1
a, b = jnp.asarray(a, jnp.bfloat16), jnp.asarray(b, jnp.bfloat16)
if exported.nr_devices > 1:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    a, b = jax.device_put(a, sharding), jax.device_put(b, sharding)
out = np.asarray(jax.jit(exported.call)(a, b), np.float32)
print(np.array_equal(out, (np.asarray(a, np.float32) @ np.asarray(b, np.float32))))
"""


@saves_programs
def test_a_program_saved_without_a_gpu_names_a_kernel_for_every_family(shipped) -> None:
    exported = jax_clc.export.export(jax.jit(matmul), platforms=("cuda",))(*operands())
    text = exported.mlir_module()
    assert text.count("@jax_clc.gemm.v1(") == 1 and "sm90_" in text and "sm100_" in text
    assert len(exported.serialize()) < 20_000


def test_saving_needs_the_helper(shipped) -> None:
    with pytest.raises(ValueError, match="jax_clc.gemm.v1"):
        jax.export.export(jax.jit(matmul), platforms=("cuda",))(*operands())


@saves_programs
def test_a_program_saved_for_both_platforms_runs_in_another_process(shipped, tmp_path) -> None:
    exported = jax_clc.export.export(jax.jit(matmul), platforms=("cpu", "cuda"))(*operands())
    assert "jax_clc.gemm.v1" in exported.mlir_module()
    _needs_extension()
    (tmp_path / "program").write_bytes(exported.serialize())
    assert output_of(start_python(LOAD_AND_RUN, str(tmp_path / "program"))).split() == ["True"]


def _needs_extension() -> None:
    try:
        native.extension()
    except native.NativeError as error:
        pytest.skip(f"no extension for this Python: {error}")


def _sharded(call):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:8])

    def body(a, b):
        return jax.lax.psum(call(a, b), "x")

    return jax.shard_map(body, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P())


@saves_programs
def test_a_shard_map_program_keeps_its_kernels_when_saved(shipped, tmp_path) -> None:
    exported = jax_clc.export.export(jax.jit(_sharded(matmul)), platforms=("cuda",))(*operands())
    assert exported.nr_devices == 8 and exported.mlir_module().count("@jax_clc.gemm.v1(") == 1
    exported = jax_clc.export.export(jax.jit(_sharded(matmul)), platforms=("cpu",))(*operands())
    (tmp_path / "program").write_bytes(exported.serialize())
    assert output_of(start_python(LOAD_AND_RUN, str(tmp_path / "program"))).split() == ["True"]


def test_a_program_that_xla_splits_is_saved_without_our_rule(shipped) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:8])
    sharding = jax.sharding.NamedSharding(mesh, P("x"))
    exported = jax_clc.export.export(jax.jit(matmul, in_shardings=(sharding, None)), platforms=("cuda",))(*operands())
    assert "CustomSPMDPartitioning" not in exported.mlir_module() and "dot_general" in exported.mlir_module()


def test_gradients_can_be_saved(shipped) -> None:
    loss = lambda a, b: (matmul(a, b) ** 2).astype(jnp.float32).sum()  # noqa: E731
    exported = jax_clc.export.export(jax.jit(jax.grad(loss, (0, 1))), platforms=("cuda",))(*operands())
    assert exported.mlir_module().count("@jax_clc.gemm.v1(") == 3


@saves_programs
def test_a_saved_program_of_another_version_is_named_in_the_error(shipped, monkeypatch) -> None:
    with monkeypatch.context() as future:
        future.setattr(native, "TARGET", "jax_clc.gemm.v7")
        saved = jax_clc.export.export(jax.jit(lambda a, b: matmul(a, b)), platforms=("cuda",))(*operands()).serialize()
    with pytest.raises(ValueError, match=r"calls jax_clc.gemm.v7; jax_clc .* provides jax_clc.gemm.v1"):
        jax_clc.export.deserialize(saved)


CACHED = """
import sys, jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
import jax_clc
a, b = jnp.ones((64, 32), jnp.bfloat16), jnp.ones((32, 128), jnp.bfloat16)
jax.block_until_ready((a, b))
found.clear()
jax.jit(jax.grad(lambda a, b: (jax_clc.matmul(a, b) ** 2).astype(jnp.float32).sum(), (0, 1)))(a, b)
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec
jax.jit(jax.shard_map(jax_clc.matmul, mesh=mesh, in_specs=(spec("x"), spec()), out_specs=spec("x")))(a, b)
print(found.count("/jax/compilation_cache/cache_hits"), found.count("/jax/compilation_cache/cache_misses"))
"""


def test_the_persistent_cache_hits_in_a_second_process(tmp_path) -> None:
    first = output_of(start_python(CACHED, str(tmp_path))).split()
    second = output_of(start_python(CACHED, str(tmp_path))).split()
    assert first[0] == "0" and int(first[1]) >= 2
    assert second == [first[1], "0"]


SPLIT_AND_CACHED = """
import sys, jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
import jax_clc
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
a, b = (jax.device_put(jnp.ones((64, 64), jnp.bfloat16), NamedSharding(mesh, spec)) for spec in (P("x"), P()))
jax.block_until_ready((a, b))
for schedule in sys.argv[2:]:
    found.clear()
    jax.block_until_ready(jax.jit(lambda a, b: jax_clc.matmul(a, b, schedule=schedule))(a, b))
    print(found.count("/jax/compilation_cache/cache_hits"))
"""


def test_the_persistent_cache_tells_programs_on_a_mesh_apart_by_what_they_ask_for(tmp_path) -> None:
    assert output_of(start_python(SPLIT_AND_CACHED, str(tmp_path), "static", "static")).split() == ["0", "1"]
    assert output_of(start_python(SPLIT_AND_CACHED, str(tmp_path), "nonpersistent", "static")).split() == ["0", "1"]


DISTRIBUTED = """
import sys, numpy as np, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import jax_clc
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
a, b = np.arange(16 * 32).reshape(16, 32) % 5 - 2, np.arange(32 * 64).reshape(32, 64) % 3 - 1
def place(x, spec):
    x = x.astype(jnp.bfloat16)
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])
def right(out):
    whole = (a @ b).astype(np.float32).astype(jnp.bfloat16).astype(np.float32)
    return all(np.array_equal(np.asarray(s.data, np.float32), whole[s.index]) for s in out.addressable_shards)
results = [
    right(jax.jit(jax_clc.matmul)(place(a, P("x")), place(b, P(None, "y")))),
    right(jax.jit(jax_clc.matmul)(place(a, P("y", "x")), place(b, P("x")))),
    right(jax.jit(jax.shard_map(lambda a, b: jax.lax.psum(jax_clc.matmul(a, b), ("x", "y")), mesh=mesh,
                                in_specs=(P(None, ("x", "y")), P(("x", "y"))), out_specs=P()))(
        place(a, P(None, ("x", "y"))), place(b, P(("x", "y"))))),
]
print(jax.process_count(), *results)
"""


def test_two_processes_of_four_devices_compute_one_product(monkeypatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)  # gRPC would look for 127.0.0.1 behind the proxy, until its time is up
    with socket.socket() as reserved:  # no other process is given the port; gRPC's server shares it
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        processes = [
            start_python(DISTRIBUTED, address, str(i), JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo") for i in range(2)
        ]
        try:
            outputs = [output_of(process).splitlines()[-1].split() for process in processes]
        finally:
            for process in processes:  # one whose partner has failed waits for minutes
                process.kill()
    assert outputs == [["2", "True", "True", "True"]] * 2
