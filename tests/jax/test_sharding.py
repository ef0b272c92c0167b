"""Products split over a mesh of eight devices: the values, and exactly the collectives that the table promises.

Where `lax.dot_general` needs the same or more, the table says what we do; nothing is gathered that a row does not name.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import why_no_emulated_device
from hlo import collectives
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_clc
from jax_clc.contraction import Contraction
from jax_clc.matmul import dot_general, einsum, matmul
from jax_clc.partitioning import refined_meshes, split_labels

GATHER, REDUCE, SCATTER, PERMUTE, EXCHANGE = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
)
M, N, K, L = 16, 64, 32, 8


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices("cpu")[:8])


@pytest.fixture(scope="module")
def explicit_mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:8])


def integers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(jnp.bfloat16)


def put(array, mesh, spec):
    return jax.device_put(array, NamedSharding(mesh, spec))


def exact(a, b):
    return np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32)).astype(jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One row: how a, b and the result (None: open) are split, and the collectives that follow."""

    name: str
    a: P
    b: P
    out: P | None
    expected: dict[str, int]
    batched: bool = False
    gathers_weights: bool = False
    """Weights split over the data's axis are gathered, as that layout is meant; lax may move the data instead."""

    def __str__(self) -> str:
        return self.name


TABLE = [
    Layout("replicated", P(), P(), None, {}),
    Layout("data", P("x"), P(), None, {}),
    Layout("data_two_axes", P(("x", "y")), P(), None, {}),
    Layout("tensor_columns", P(), P(None, "y"), None, {}),
    Layout("data_and_tensor", P("x"), P(None, "y"), None, {}),
    Layout("tensor_rows", P(None, "x"), P("x"), None, {REDUCE: 1}),
    Layout("data_and_tensor_rows", P("x", "y"), P("y"), None, {REDUCE: 1}),
    Layout("k_over_two_axes", P(None, ("x", "y")), P(("x", "y")), None, {REDUCE: 1}),
    Layout("k_then_rows_of_result", P(None, "x"), P("x"), P("x"), {SCATTER: 1}),
    Layout("k_then_columns_of_result", P(None, "x"), P("x"), P(None, "x"), {SCATTER: 1}),
    Layout("k_over_two_then_one", P(None, ("x", "y")), P(("x", "y")), P("x"), {SCATTER: 1, REDUCE: 1}),
    Layout("k_over_two_then_both", P(None, ("x", "y")), P(("x", "y")), P("y", "x"), {SCATTER: 2}),
    Layout("k_over_two_then_two_in_one", P(None, ("x", "y")), P(("x", "y")), P(None, ("y", "x")), {SCATTER: 1}),
    Layout("sequence_parallel", P("x", "y"), P("y"), P("x", "y"), {SCATTER: 1}),
    Layout("fully_sharded", P("x"), P("x"), None, {GATHER: 1}, gathers_weights=True),
    Layout("fully_sharded_and_tensor", P("x", "y"), P("x", "y"), None, {GATHER: 2}),
    Layout("only_a_split_over_k", P(None, "x"), P(), None, {REDUCE: 1}),
    Layout("only_b_split_over_k", P(), P("x"), None, {REDUCE: 1}),
    Layout("result_split_only", P(), P(), P("x", "y"), {}),
    Layout("same_axis_twice", P("x"), P(None, "x"), None, {GATHER: 1}),
    Layout("whole_result_wanted", P("y"), P(), P(), {GATHER: 1}),
    Layout("batch", P("x"), P("x"), None, {}, batched=True),
    Layout("batch_and_rows", P("x", "y"), P("x"), None, {}, batched=True),
    Layout("batch_and_k", P("x", None, "y"), P("x", "y"), None, {REDUCE: 1}, batched=True),
    Layout("batch_and_k_scattered", P("x", None, "y"), P("x", "y"), P("x", "y"), {SCATTER: 1}, batched=True),
]  # fmt: skip


@pytest.mark.parametrize("layout", TABLE, ids=str)
def test_layout_gives_exactly_its_collectives(mesh, layout) -> None:
    batch = (L,) if layout.batched else ()
    a, b = integers(*batch, M, K), integers(*batch, K, N, seed=1)
    placed = put(a, mesh, layout.a), put(b, mesh, layout.b)
    options = {} if layout.out is None else {"out_shardings": NamedSharding(mesh, layout.out)}
    out = jax.jit(matmul, **options)(*placed)
    np.testing.assert_array_equal(np.asarray(out, np.float32), exact(a, b).astype(np.float32))
    assert collectives(matmul, *placed, **options) == layout.expected
    if not layout.gathers_weights:
        assert collectives(jnp.matmul, *placed, **options).get(GATHER, 0) >= layout.expected.get(GATHER, 0), (
            "we gather more than lax"
        )
    if layout.out is not None:
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, layout.out), out.ndim)


def _layer_gradient(call, a, b):
    return jax.grad(lambda a, b: (call(a, b) ** 2).astype(jnp.float32).sum(), (0, 1))(a, b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(P("x"), P(), {REDUCE: 1}), (P("x"), P(None, "y"), {REDUCE: 2}), (P("x", "y"), P("y"), {REDUCE: 2})],
    ids=["data", "data_and_tensor", "tensor_rows"],
)
def test_gradients_reduce_what_the_forward_product_split(mesh, a, b, expected) -> None:
    arrays = integers(M, K), integers(K, N, seed=1)
    placed = [put(x, mesh, spec) for x, spec in zip(arrays, (a, b), strict=True)]
    ours, theirs = (jax.jit(functools.partial(_layer_gradient, call))(*placed) for call in (matmul, jnp.matmul))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(other, np.float32))
    assert collectives(functools.partial(_layer_gradient, matmul), *placed) == expected


def test_gradients_of_32_bit_results_are_split_like_others(mesh) -> None:
    """The widened cotangent is read narrow, so that the rule for 16-bit operands serves it."""

    def run(call):
        wide = lambda a, b: call(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16)  # noqa: E731
        return jax.jit(functools.partial(_layer_gradient, wide))

    placed = put(integers(M, K), mesh, P("x", "y")), put(integers(K, N, seed=1), mesh, P("y"))
    assert run(matmul).lower(*placed).as_text().count("CustomSPMDPartitioning") == 3
    for mine, other in zip(run(matmul)(*placed), run(jnp.matmul)(*placed), strict=True):
        assert mine.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(other, np.float32))


def test_megatron_mlp_needs_one_reduction_each_way(mesh) -> None:
    def mlp(call, x, first, second):
        return call(jax.nn.relu(call(x, first)), second)

    x, first, second = integers(M, K), integers(K, N, seed=1), integers(N, K, seed=2) // 2
    placed = put(x, mesh, P("x")), put(first, mesh, P(None, "y")), put(second, mesh, P("y"))
    assert collectives(functools.partial(mlp, matmul), *placed) == {REDUCE: 1}
    ours, theirs = (jax.jit(functools.partial(mlp, call))(*placed) for call in (matmul, jnp.matmul))
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))


@pytest.mark.parametrize("shape", [(2, 8, K), (4, 4, K), (1, 16, K)])
def test_an_operand_split_over_part_of_a_mesh_axis_is_as_in_lax(shape) -> None:
    """The reshape leaves axes split over a half or a quarter of the mesh's only axis."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    flat, b = put(integers(16 * K), mesh, P("x")), put(integers(K, N, seed=1), mesh, P())
    run = lambda call: lambda flat, b: call(flat.reshape(shape), b)  # noqa: E731
    whole = {
        "out_shardings": NamedSharding(mesh, P())
    }  # jax 0.9.1 cannot name a result's sharding over part of an axis
    ours, theirs = (jax.jit(run(call), **whole)(flat, b) for call in (matmul, jnp.matmul))
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
    assert collectives(run(matmul), flat, b, **whole) == collectives(run(jnp.matmul), flat, b, **whole)


@pytest.mark.parametrize("what", ["rows", "k"])
def test_sizes_that_the_mesh_does_not_divide_are_as_in_lax(what) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:8])
    a, b = integers(M, K), integers(K, N, seed=1)
    if what == "rows":
        run = lambda call: lambda a, b: call(jnp.concatenate([a, a[:3]]), b)  # noqa: E731
        placed = put(a, mesh, P("x")), put(b, mesh, P())
    else:
        run = lambda call: lambda a, b: call(jnp.concatenate([a, a[:, :3]], 1), jnp.concatenate([b, b[:3]]))  # noqa: E731
        placed = put(a, mesh, P(None, "x")), put(b, mesh, P("x"))
    ours, theirs = (jax.jit(run(call))(*placed) for call in (matmul, jnp.matmul))
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
    assert collectives(run(matmul), *placed) == collectives(run(jnp.matmul), *placed)


@pytest.mark.parametrize("preferred", [None, jnp.float32])
def test_operands_of_two_dtypes_are_as_in_lax(mesh, preferred) -> None:
    a, b = put(integers(M, K), mesh, P("x")), put(integers(K, N).astype(np.float16), mesh, P(None, "y"))
    numbers = (((1,), (0,)), ((), ()))
    ours, theirs = (
        jax.jit(functools.partial(call, dimension_numbers=numbers, preferred_element_type=preferred))(a, b)
        for call in (dot_general, jax.lax.dot_general)
    )
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_strict_mode_is_a_value_error_on_a_mesh_too(mesh, monkeypatch) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", "1")
    a, b = put(integers(M, K), mesh, P("x")), put(integers(K, N), mesh, P())
    with pytest.raises(ValueError, match="strict mode forbids"):
        jax.jit(lambda a, b: matmul(a, b))(a, b)  # not traced before


def test_a_mesh_axis_that_does_not_divide_is_jaxs_own_error(mesh) -> None:
    with pytest.raises(ValueError, match="evenly divide|divisible"):
        jax.jit(matmul, in_shardings=(NamedSharding(mesh, P("y")), None))(integers(6, K), integers(K, N))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_runs_one_devices_product(mesh, check_vma) -> None:
    def body(call, a, b):
        return jax.lax.psum(call(a, b), "y")

    arrays = put(integers(M, K), mesh, P("x", "y")), put(integers(K, N, seed=1), mesh, P("y"))
    specs = dict(mesh=mesh, in_specs=(P("x", "y"), P("y")), out_specs=P("x"), check_vma=check_vma)
    ours, theirs = (jax.shard_map(functools.partial(body, call), **specs) for call in (matmul, jnp.matmul))
    np.testing.assert_array_equal(np.asarray(jax.jit(ours)(*arrays), np.float32), exact(*arrays).astype(np.float32))
    assert collectives(ours, *arrays) == {REDUCE: 1}
    for mine, other in zip(_layer_gradient(ours, *arrays), _layer_gradient(theirs, *arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(other, np.float32))


@pytest.mark.parametrize(("dtype", "call"), [(jnp.bfloat16, "jax_clc.gemm.v1"), (jnp.float32, "dot_general")])
def test_shard_map_is_lowered_on_a_mesh_without_devices(dtype, call) -> None:
    mesh = AbstractMesh((4,), ("x",))
    layer = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    loss = jax.grad(lambda a, b: layer(a, b).astype(jnp.float32).sum(), (0, 1))
    a, b = (jax.ShapeDtypeStruct((512, 512), dtype, sharding=NamedSharding(mesh, spec)) for spec in (P("x"), P()))
    for function, count in ((layer, 1), (loss, 2)):
        text = jax.jit(function).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count(call) == count


def test_shard_map_over_some_axes_is_lax_on_a_mesh_without_devices() -> None:
    mesh = AbstractMesh((2, 2), ("x", "y"))
    layer = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    a = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    b = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    text = jax.jit(layer).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
    assert "dot_general" in text
    assert "jax_clc" not in text


def test_shard_map_operands_that_vary_over_different_axes(mesh) -> None:
    a, b = integers(M, K), integers(K, N, seed=1)
    run = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P(None, "y")), out_specs=P("x", "y"))
    np.testing.assert_array_equal(np.asarray(run(a, b), np.float32), exact(a, b).astype(np.float32))


def test_scan_inside_shard_map_with_a_varying_carry(mesh) -> None:
    def body(a, b):
        return jax.lax.scan(lambda c, _: (matmul(c, b), None), a, None, length=2)[0]

    a, b = integers(M, 8), integers(8, 8, seed=1)
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))
    np.testing.assert_array_equal(np.asarray(run(a, b), np.float32), exact(exact(a, b), b).astype(np.float32))


def test_shard_map_over_some_axes_leaves_the_others_to_xla(mesh) -> None:
    arrays = put(integers(M, K), mesh, P("x", "y")), put(integers(K, N, seed=1), mesh, P("y"))
    ours, theirs = (
        jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}))
        for call in (matmul, jnp.matmul)
    )
    np.testing.assert_array_equal(np.asarray(ours(*arrays), np.float32), np.asarray(theirs(*arrays), np.float32))
    assert collectives(ours, *arrays) == collectives(theirs, *arrays)


def test_pmap() -> None:
    a, b = integers(8, M, K), integers(8, K, N, seed=1)
    out = jax.pmap(matmul, devices=jax.devices("cpu")[:8])(a, b)
    np.testing.assert_array_equal(np.asarray(out, np.float32), exact(a, b).astype(np.float32))


def test_vmap_with_a_spmd_axis(mesh) -> None:
    a, b = put(integers(L, M, K), mesh, P("x")), put(integers(L, K, N, seed=1), mesh, P("x"))
    run = jax.vmap(matmul, spmd_axis_name="x")
    np.testing.assert_array_equal(np.asarray(jax.jit(run)(a, b), np.float32), exact(a, b).astype(np.float32))
    assert collectives(run, a, b) == {}


EXPLICIT = {
    "data_and_tensor": (lambda matmul, einsum, a, b: matmul(a, b), P("x"), P(None, "y")),
    "out_sharding": (lambda matmul, einsum, a, b: matmul(a, b, out_sharding=P("x", "y")), P(None, "x"), P("x")),
    "unreduced": (
        lambda matmul, einsum, a, b: jax.sharding.reshard(
            matmul(a, b, out_sharding=P(None, None, unreduced={"x"})), P(None, None)),
        P(None, "x"), P("x"),
    ),
    "einsum": (lambda matmul, einsum, a, b: einsum("mk,kn->nm", a, b), P("x"), P(None, "y")),
    "einsum_out_sharding": (
        lambda matmul, einsum, a, b: einsum("mk,kn->nm", a, b, out_sharding=P("y", None)), P(None, "x"), P("x"),
    ),
    "gradient": (lambda matmul, einsum, a, b: _layer_gradient(matmul, a, b), P("x"), P(None, "y")),
    "gradient_out_sharding": (
        lambda matmul, einsum, a, b: _layer_gradient(functools.partial(matmul, out_sharding=P("x", "y")), a, b),
        P(None, "x"), P("x"),
    ),
    "vmap": (lambda matmul, einsum, a, b: jax.vmap(matmul, (0, None))(a[:, None], b), P(), P(None, "y")),
    "ambiguous_k": (lambda matmul, einsum, a, b: matmul(a, b), P(None, "x"), P("x")),
    "k_split_differently": (lambda matmul, einsum, a, b: matmul(a, b), P(None, "x"), P("y")),
    "axis_used_twice": (lambda matmul, einsum, a, b: matmul(a, b), P("x"), P(None, "x")),
    "bad_out_sharding": (lambda matmul, einsum, a, b: matmul(a, b, out_sharding=P("z")), P("x"), P()),
}  # fmt: skip


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_meshes_give_jaxs_types_values_and_errors(explicit_mesh, name, compile_it) -> None:
    run, a_spec, b_spec = EXPLICIT[name]
    with jax.set_mesh(explicit_mesh):
        a, b = put(integers(M, K), explicit_mesh, a_spec), put(integers(K, N, seed=1), explicit_mesh, b_spec)

        def outcome(matmul, einsum):
            call = functools.partial(run, matmul, einsum)
            try:
                return [
                    (jax.typeof(x), np.asarray(x, np.float32))
                    for x in jax.tree.leaves((jax.jit(call) if compile_it else call)(a, b))
                ]
            except Exception as error:
                return type(error), str(error).splitlines()[0]

        ours, theirs = outcome(matmul, einsum), outcome(jnp.matmul, jnp.einsum)
        if isinstance(theirs, tuple):
            assert ours == theirs
            return
        assert not isinstance(ours, tuple), ours
        for (mine_type, mine), (other_type, other) in zip(ours, theirs, strict=True):
            assert mine_type == other_type
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", ["out_sharding", "einsum_out_sharding", "axis_used_twice_but_told"])
def test_partly_explicit_meshes_give_jaxs_types_and_values(name) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    operands, subscripts, spec = {
        "out_sharding": ((P(None, "x"), P("x")), "mk,kn->mn", P("x")),
        "einsum_out_sharding": ((P(None, "x"), P("x")), "mk,kn->nm", P("x")),
        "axis_used_twice_but_told": ((P("x"), P(None, "x")), "mk,kn->mn", P("x")),
    }[name]
    with jax.set_mesh(mesh):
        a, b = (put(integers(*shape), mesh, operand) for shape, operand in zip(((M, K), (K, N)), operands, strict=True))
        for transform in (lambda f: f, jax.jit):
            ours, theirs = (
                transform(functools.partial(call, subscripts, out_sharding=spec))(a, b) for call in (einsum, jnp.einsum)
            )
            assert jax.typeof(ours) == jax.typeof(theirs)
            np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))


def test_dot_general_batch_axes_on_an_explicit_mesh(explicit_mesh) -> None:
    numbers = (((2,), (1,)), ((0,), (0,)))
    with jax.set_mesh(explicit_mesh):
        a, b = put(integers(L, M, K), explicit_mesh, P("x", "y")), put(integers(L, K, N, seed=1), explicit_mesh, P("x"))
        ours, theirs = dot_general(a, b, numbers), jax.lax.dot_general(a, b, numbers)
        assert jax.typeof(ours) == jax.typeof(theirs)
        np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
        assert collectives(functools.partial(dot_general, dimension_numbers=numbers), a, b) == {}


def test_a_mesh_of_one_device_is_no_split(explicit_mesh) -> None:
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:1])
        with jax.set_mesh(mesh):
            a, b = put(integers(M, K), mesh, P("x", "y")), put(integers(K, N, seed=1), mesh, P(None, "y"))
            out = matmul(a, b, **({} if kind == AxisType.Auto else {"out_sharding": P("x", None)}))
            np.testing.assert_array_equal(np.asarray(out, np.float32), exact(a, b).astype(np.float32))


PLAIN = Contraction((0, 1), (1, 2), (0, 2))
SIZES = {0: 16, 1: 32, 2: 64}


def test_no_mesh_axis_is_ever_used_twice() -> None:
    choices = [(), ("x",), ("y",), ("x", "y")]
    for am in choices:
        for ak in choices:
            if set(am) & set(ak):
                continue
            for bk in choices:
                for bn in choices:
                    for om in choices:
                        for on in choices:
                            if set(bk) & set(bn) or set(om) & set(on):
                                continue
                            split = split_labels(
                                PLAIN, SIZES, {"x": 2, "y": 4}, {0: am, 1: ak}, {1: bk, 2: bn}, {0: om, 2: on}
                            )
                            used = [axis for taken in split.axes.values() for axis in taken]
                            assert len(used) == len(set(used))
                            done = [axis for taken in split.scattered.values() for axis in taken]
                            assert sorted([*done, *split.reduced]) == sorted(split.axes[1]), (
                                "every axis of k is summed once"
                            )


def test_refined_meshes_keep_the_order_of_devices(mesh) -> None:
    for refined in refined_meshes(mesh):
        assert [d.id for d in refined.devices.flat] == [d.id for d in mesh.devices.flat]
    assert dict(refined_meshes(mesh)[1].shape) == {"x.0": 2, "y.0": 2, "y.1": 2}


@pytest.mark.emulated
@pytest.mark.parametrize(
    "layout", [row for row in TABLE if row.name in ("data_and_tensor", "k_then_rows_of_result")], ids=str
)
def test_every_shard_runs_our_kernel_on_the_emulated_device(mesh, monkeypatch, layout) -> None:
    missing = why_no_emulated_device("sm_90a")
    if missing:
        pytest.skip(missing)
    monkeypatch.setenv("JAX_CLC_STRICT", "1")
    a, b = integers(M, K), integers(K, N, seed=1)
    options = {} if layout.out is None else {"out_shardings": NamedSharding(mesh, layout.out)}
    with jax_clc.emulated("sm_90a", sm_count=2) as device:
        out = jax.jit(matmul, **options)(put(a, mesh, layout.a), put(b, mesh, layout.b)).block_until_ready()
        np.testing.assert_array_equal(np.asarray(out, np.float32), exact(a, b).astype(np.float32))
        assert len(device.reports) == 8, "one launch for each device of the mesh"
