"""plan(): one kernel for each family, honest errors, padding, the SM limit, and attributes as the contract has them."""

import json
from pathlib import Path

import numpy as np
import pytest
import synthetic_manifest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_clc.planning import GemmProblem, catalog, constraints, plan, planner, reference_devices, tuned_choices
from jax_clc.planning.device_model import device_model

P = GemmProblem.compact


def test_one_choice_for_each_family_that_ships():
    made = plan(P(4096, 4096, 4096))
    assert list(made.choices) == ["sm_90a", "sm_100f"]
    assert made.fallback_reason is None
    assert made.choices["sm_100f"].schedule == "clc"


def test_attributes_are_exactly_those_of_the_contract():
    attributes = plan(P(512, 1024, 256, batch=3), sm_limit=8).attributes()
    assert list(attributes) == [
        "abi", "l", "m", "n", "k", "a_major", "b_major", "a_strides", "b_strides", "d_strides", "kernels", "swapped",
        "raster_group", "raster_along", "split_k", "sm_limit",
    ]  # fmt: skip
    for name in ("abi", "l", "m", "n", "k", "sm_limit"):
        assert attributes[name].dtype == np.int64
    assert (attributes["l"], attributes["m"], attributes["sm_limit"]) == (3, 512, 8)
    assert attributes["a_strides"].tolist() == [512 * 256, 256]
    names = attributes["kernels"].split(",")
    assert len(names) == 2
    for name in ("swapped", "raster_group", "raster_along", "split_k"):
        assert attributes[name].shape == (2,)
        assert attributes[name].dtype == np.int64


@pytest.mark.parametrize("a_major", ["k", "m"])
@pytest.mark.parametrize("b_major", ["k", "n"])
def test_majors_of_the_choice_are_those_of_the_operands(a_major, b_major):
    made = plan(P(256, 512, 384, a_major=a_major, b_major=b_major))
    for choice in made.choices.values():
        kernel = catalog.find(choice.kernel)
        if choice.swapped:
            assert (kernel.a_major, kernel.b_major) == ("k" if b_major == "k" else "m", "k" if a_major == "k" else "n")
        else:
            assert (kernel.a_major, kernel.b_major) == (a_major, b_major)


def test_a_swapped_kernel_is_called_as_swapped():
    name = next(k.name for k in catalog.kernels("sm_90a") if k.swapped and (k.a_major, k.b_major) == ("m", "k"))
    choice = plan(P(256, 4096, 512), kernel=name).choices["sm_90a"]
    assert choice.swapped
    assert plan(P(256, 4096, 512), kernel=name).attributes()["swapped"].tolist() == [1]


def test_no_kernel_for_the_dtypes_is_a_fallback_with_the_reason():
    made = plan(P(64, 64, 64, dtype="float32"))
    assert "computes f32 x f32 -> f32" in made.fallback_reason
    assert "lax.dot_general" in str(made)
    with pytest.raises(ValueError, match="f32 x f32"):
        made.attributes()


def test_a_family_without_a_kernel_is_told_and_the_others_are_served():
    made = plan(P(64, 64, 64, dtype="float16"))
    assert list(made.choices) == ["sm_90a"]
    assert "f16 x f16" in made.unserved["sm_100f"]


def test_unknown_schedule_and_limit_below_one_are_value_errors():
    with pytest.raises(ValueError, match="schedule='random' does not exist; choose from auto"):
        plan(P(8, 8, 8), schedule="random")
    with pytest.raises(ValueError, match="sm_limit=0"):
        plan(P(8, 8, 8), sm_limit=0)


def test_a_kernel_that_does_not_exist_lists_those_that_fit():
    with pytest.raises(ValueError, match=r"'nope' does not exist for 64 x 64 x 64(?s:.*)Kernels that fit: sm"):
        plan(P(64, 64, 64), kernel="nope")


def test_a_kernel_that_does_not_fit_says_why():
    name = "sm90_bf16_bf16_f32_bf16_kkn_128x256x64_c2x1_s4_static"
    with pytest.raises(ValueError, match=r"needs k-major and n-major"):
        plan(P(64, 64, 64), kernel=name)
    with pytest.raises(ValueError, match=r"it computes bf16 x bf16 -> bf16, not f16"):
        plan(P(64, 64, 64, dtype="float16", b_major="k"), kernel=name)


def test_clc_cannot_be_limited_and_says_so():
    with pytest.raises(ValueError, match=r"sm_limit=8 cannot bound it") as error:
        plan(P(4096, 4096, 4096), schedule="clc", sm_limit=8)
    assert "Schedules that fit: dynamic, static" in str(error.value)


@pytest.mark.parametrize("limit", [2, 8, 131])
def test_sm_limit_bounds_the_grid_and_leaves_static_and_dynamic(limit):
    for choice in plan(P(4096, 4096, 4096), sm_limit=limit).choices.values():
        assert choice.schedule in ("static", "dynamic")
        assert choice.grid[0] <= limit


def test_nonpersistent_and_clc_launch_every_tile_and_workers_no_more_than_fit():
    problem = P(4096, 4096, 512)
    for schedule in ("nonpersistent", "static", "dynamic", "clc"):
        for family, choice in plan(problem, schedule=schedule).choices.items():
            kernel = catalog.find(choice.kernel)
            tiles = -(-4096 // kernel.cluster_tile[0]) * -(-4096 // kernel.cluster_tile[1])
            ctas, sms = tiles * kernel.cluster_size, {"sm_90a": 132, "sm_100f": 148}[family]
            assert choice.grid[0] == (min(ctas, sms) if kernel.launch_grid == "workers" else ctas)


def test_unaligned_operands_are_padded_and_sizes_stay():
    made = plan(P(8190, 8190, 8190))
    assert made.pads == {"a": 8192, "b": 8192, "d": 8192}
    assert made.problem.a_strides == (8190 * 8192, 8192)
    attributes = made.attributes()
    assert (attributes["m"], attributes["n"], attributes["k"]) == (8190, 8190, 8190)
    assert attributes["d_strides"].tolist() == [8190 * 8192, 8192]
    assert "rows of 8192 elements" in str(made)


def test_a_pinned_element_copy_kernel_needs_no_padding():
    name = next(
        k.name for k in catalog.kernels("sm_90a")
        if not k.aligned_operands and (k.a_major, k.b_major, k.d_major) == ("k", "n", "n")
    )  # fmt: skip
    made = plan(P(63, 65, 67), kernel=name)
    assert made.pads == {}
    assert made.choices["sm_90a"].kernel == name


def test_without_element_copies_every_family_is_padded(tmp_path, monkeypatch):
    entries = [e for e in synthetic_manifest.entries() if e["operand_copies"] == "tma"]
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, entries)))
    made = plan(P(64, 64, 7))
    assert made.pads == {"a": 64}
    assert list(made.choices) == ["sm_90a", "sm_100f"]


@pytest.mark.parametrize("m", [64, 1])
def test_a_result_stored_from_registers_is_padded(tmp_path, monkeypatch, m):
    entry = synthetic_manifest.entry("sm_90a", "nonpersistent", cta_tile=(64, 64, 64), copies="registers")
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, [entry])))
    problem = P(m, 63, 64, b_major="k")
    assert plan(problem).pads == {"d": 64}
    kernel = catalog.find(entry["name"])
    _, reason = constraints.first_failure(kernel, problem, constraints.PROBLEM_CONSTRAINTS)
    assert reason.startswith("d's ") and reason.endswith("not a multiple of 16, and it moves d 16 bytes at a time")


def test_long_k_with_few_tiles_is_split_and_its_scratch_holds_every_partial():
    choice = plan(P(128, 128, 131072)).choices["sm_90a"]
    assert choice.split_k > 1
    assert choice.scratch_bytes == choice.split_k * 128 * 128 * 4
    assert plan(P(8192, 8192, 8192)).choices["sm_90a"].split_k == 1


def test_aligned_products_take_plain_kernels():
    for sizes in ((4096, 4096, 4096), (2048, 2048, 2048), (1024, 512, 8192)):
        kernel = catalog.find(plan(P(*sizes), schedule="static").choices["sm_90a"].kernel)
        assert kernel.aligned_operands == frozenset("abd")
        assert not kernel.split_k or plan(P(*sizes), schedule="static").choices["sm_90a"].split_k > 1


def test_no_split_is_left_without_a_k_block():
    kernel = next(k for k in catalog.kernels() if k.split_k)
    for k in (1, 64, 65, 640, 1000, 131072):
        steps = -(-k // kernel.cta_tile[2])
        for factor in planner._split_factors(kernel, P(128, 128, k)):
            per_part = -(-steps // factor)
            assert (factor - 1) * per_part < steps or factor == 1


def test_scratch_of_the_plan_is_enough_for_every_family():
    made = plan(P(4096, 4096, 4096), sm_limit=100)
    assert made.scratch_bytes == max(c.scratch_bytes for c in made.choices.values())


def test_no_split_makes_the_kernels_count_of_k_blocks_leave_32_bits():
    kernel = next(k for k in catalog.kernels() if k.split_k)
    k = constraints.MAX_SIZE
    factors = planner._split_factors(kernel, P(16, 16, k))
    assert factors[-1] > 1 and factors[-1] * -(-k // kernel.cta_tile[2]) <= constraints.MAX_SIZE


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
def test_a_size_that_leaves_32_bits_when_it_is_rounded_up_falls_back_with_its_name_and_the_limit(name):
    sizes = {"batch": 1, "m": 8, "n": 8, "k": 8}
    assert plan(P(**{**sizes, name: constraints.MAX_SIZE})).fallback_reason is None
    for size in (constraints.MAX_SIZE + 1, 2**31 - 63, 2**31 - 1, 2**31):
        reason = plan(P(**{**sizes, name: size})).fallback_reason
        assert reason is not None and f"takes {name} = {size}, beyond the limit of {constraints.MAX_SIZE}" in reason


def test_more_tiles_than_are_counted_in_32_bits_fall_back_with_their_number_and_the_limit():
    problem = P(129, 257, 8, batch=2**30)
    reason = plan(problem).fallback_reason
    assert reason is not None and f"counts all tiles of {problem.sizes_text} within the limit of" in reason
    kernel = next(k for k in catalog.kernels("sm_90a") if k.cluster_tile == (64, 128) and not k.swapped)
    checks = [c for c in constraints.PROBLEM_CONSTRAINTS if c.violation is constraints._tiles]
    _, why = constraints.first_failure(kernel, problem, checks)
    assert why == f"it would compute {2**30 * 9} tiles, beyond the limit of {constraints.MAX_SIZE}"


def test_empty_products_are_planned_without_dividing_by_zero():
    for sizes in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        assert plan(P(*sizes)).fallback_reason is None
    assert plan(P(8, 8, 8, batch=0)).choices["sm_90a"].grid == (0, 1, 1)


def test_a_device_without_sms_is_an_error():
    with pytest.raises(ValueError, match="sm_count=0: a device has at least 1 SM"):
        device_model("sm_90a", sm_count=0)


def test_a_device_at_hand_can_be_planned_for_alone():
    made = plan(P(4096, 4096, 4096), devices=[device_model("sm_90a", sm_count=8, name="emulated")], schedule="static")
    assert list(made.choices) == ["sm_90a"]
    assert made.choices["sm_90a"].grid[0] == 8
    assert "predicted for emulated" in str(made)


def test_the_plan_reads_in_sixty_columns():
    for made in (plan(P(4096, 4096, 4096)), plan(P(8190, 8190, 8190)), plan(P(64, 64, 64, dtype="float32"))):
        assert max(len(line) for line in str(made).splitlines()) <= 60
    text = str(plan(P(4096, 4096, 4096)))
    for word in ("grid", "waves", "scratch", "predicted", "why", "schedule", "sm_90a", "sm_100f"):
        assert word in text


def test_planning_is_quick_enough_to_trace_with():
    import time

    start = time.process_time()
    for size in range(20):
        plan(P(4096 + 8 * size, 4096, 4096))
    assert (time.process_time() - start) / 20 < 0.1


@settings(max_examples=60)
@given(
    st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 5),
    st.sampled_from("km"), st.sampled_from("kn"), st.sampled_from([None, 1, 7, 131]),
)  # fmt: skip
def test_every_choice_fits_the_problem_it_is_called_on(m, n, k, batch, a_major, b_major, limit):
    made = plan(P(m, n, k, batch=batch, a_major=a_major, b_major=b_major), sm_limit=limit)
    assert made.fallback_reason is None
    for choice in made.choices.values():
        kernel = catalog.find(choice.kernel)
        assert kernel.swapped == choice.swapped
        for operand in "abd":
            if made.problem.misalignment(operand):
                own = {"a": "b", "b": "a"}.get(operand, operand) if choice.swapped else operand
                assert own not in kernel.aligned_operands
    assert planner.plan(P(m, n, k, batch=batch, a_major=a_major, b_major=b_major), sm_limit=limit) == made


def _table(path, key, kernel):
    row = {"kernel": kernel, "raster_group": 4, "raster_along": 1, "split_k": 1, "measured_us": 12.5}
    path.write_text(json.dumps({"format": 1, "device": "NVIDIA H100", "family": "sm_90a", "choices": {key: row}}))
    return str(path)


def test_a_table_of_tuned_choices_decides_for_its_device(tmp_path, monkeypatch):
    problem = P(4096, 4096, 4096)
    name = "sm90_bf16_bf16_f32_bf16_knn_64x128x64_c1x1_s4_nonpersistent"
    monkeypatch.setenv("JAX_CLC_TUNED", _table(tmp_path / "own.json", tuned_choices.problem_key(problem), name))
    made = plan(problem)
    choice = made.choices["sm_90a"]
    assert (choice.kernel, choice.raster_group, choice.raster_along, choice.predicted_us) == (name, 4, 1, 12.5)
    assert "own.json" in choice.reason
    assert made.choices["sm_100f"].schedule == "clc"
    assert plan(problem, schedule="static").choices["sm_90a"].schedule == "static"
    emulated = plan(problem, devices=[device_model("sm_90a", sm_count=8)])
    assert emulated.choices["sm_90a"].kernel != name


def test_a_candidate_can_be_forced_for_measuring():
    problem, other = P(4096, 4096, 4096), P(4096, 4096, 4104)
    name = "sm90_bf16_bf16_f32_bf16_knn_64x128x64_c1x1_s4_nonpersistent"
    forced = tuned_choices.TunedChoice(name, 2, 1, 1, 0.0, "", "")
    before = plan(problem), plan(other)
    with tuned_choices.forcing("sm_90a", problem, forced):
        choice = plan(problem).choices["sm_90a"]
        assert (choice.kernel, choice.raster_group, choice.raster_along) == (name, 2, 1)
        assert plan(other) == before[1]
    assert (plan(problem), plan(other)) == before


def test_a_measured_choice_with_its_padding_wins_over_predictions_with_less_of_it():
    """A measured time has the copies in it: a model that hopes for less must not outbid it."""
    problem = P(2050, 2050, 2050)
    padded = plan(problem, schedule="nonpersistent")
    choice = padded.choices["sm_90a"]
    forced = tuned_choices.TunedChoice(choice.kernel, 8, 0, 1, 1e6, "a GPU", "own.json")
    with tuned_choices.forcing("sm_90a", padded.problem, forced):
        made = plan(problem, devices=reference_devices(("sm_90a",)))
    assert (made.choices["sm_90a"].kernel, made.pads) == (choice.kernel, padded.pads)


@pytest.mark.parametrize("a_major, b_major", [("k", "n"), ("m", "k")])
def test_parts_of_k_are_a_batch_of_the_same_operands(a_major, b_major):
    problem = P(64, 128, 65536, a_major=a_major, b_major=b_major)
    called = problem.in_parts_of_k(16)
    assert (called.batch, called.k, called.out_dtype) == (16, 4096, "float32")
    for operand, shape in (("a", (64, 65536)), ("b", (65536, 128))):
        contiguous_first = problem.major(operand) == shape_axes(operand)[0]
        whole = np.arange(shape[0] * shape[1]).reshape(shape, order="F" if contiguous_first else "C")
        batch, outer = called.strides(operand)
        axis = 1 if operand == "a" else 0
        for part in (0, 5, 15):
            corner = np.take(whole, part * 4096, axis=axis)
            assert corner[0] == part * batch
            assert corner[1] - corner[0] == (outer if problem.major(operand) == "k" else 1)


def shape_axes(operand):
    return {"a": "mk", "b": "kn"}[operand]


def test_few_tiles_with_a_long_k_may_be_computed_in_parts():
    problem = P(256, 256, 65536, b_major="k")
    assert planner.parts_of_k(problem) == [4, 8, 16, 32]
    for other in (P(4096, 4096, 65536), P(256, 256, 4096), P(256, 256, 65536, batch=2), P(256, 256, 65536 + 1)):
        assert planner.parts_of_k(other) == []
    name = "sm90_bf16_bf16_f32_f32_kkn_128x256x64_c2x1_s4_static"
    forced = tuned_choices.TunedChoice(name, 8, 0, 1, 9.0, "a GPU", "own.json", 16)
    with tuned_choices.forcing("sm_90a", problem, forced):
        made = plan(problem, devices=reference_devices(("sm_90a",)))
        assert (made.k_parts, made.choices["sm_90a"].kernel, made.problem) == (16, name, problem)
        assert [made.attributes()[x] for x in "lmnk"] == [16, 256, 256, 4096]
        assert "16 parts" in str(made)
        assert plan(problem, schedule="static").k_parts == 1


def test_a_tuned_kernel_that_no_longer_ships_is_ignored(tmp_path, monkeypatch):
    problem = P(4096, 4096, 4104)  # in no table that ships
    before = plan(problem).choices["sm_90a"].kernel
    monkeypatch.setenv("JAX_CLC_TUNED", _table(tmp_path / "own.json", tuned_choices.problem_key(problem), "gone"))
    assert plan(problem).choices["sm_90a"].kernel == before


def test_an_unreadable_table_is_a_value_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_CLC_TUNED", str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match=r"missing\.json"):
        plan(P(8, 8, 8))


@pytest.mark.parametrize(
    "field, value",
    [("raster_group", 0), ("raster_group", 8.5), ("raster_group", 2**40), ("raster_group", 2**30),
     ("raster_group", constraints.MAX_RASTER_GROUP + 1), ("raster_group", True), ("raster_along", 7), ("split_k", 0),
     ("k_parts", "4"), ("measured_us", "fast"), ("measured_us", None), ("measured_us", float("inf")),
     ("measured_us", float("nan")), pytest.param("measured_us", 10**400, id="measured_us-10**400"),
     ("kernel", 5), ("kernel", None), ("kernel", ["x"])],
)  # fmt: skip
def test_a_table_whose_entry_no_kernel_may_get_is_a_value_error_that_names_it(field, value, tmp_path, monkeypatch):
    path = tmp_path / "own.json"
    content = json.loads(Path(_table(path, "the key", "kernel")).read_text())
    content["choices"]["the key"][field] = value
    path.write_text(json.dumps(content))
    monkeypatch.setenv("JAX_CLC_TUNED", str(path))
    with pytest.raises(ValueError, match=rf"own\.json cannot be read: entry 'the key': the field '{field}' is"):
        plan(P(8, 8, 8))


@pytest.mark.parametrize(
    "change",
    [lambda c: c.update(choices=[c["choices"]]), lambda c: c.update(choices={"key": 5}),
     lambda c: c["choices"]["key"].pop("split_k"), lambda c: c.update(family=5), lambda c: c.update(device=["x"]),
     lambda c: c.update(format=2)],
)  # fmt: skip
def test_a_table_of_another_form_is_a_value_error_that_names_it(change, tmp_path, monkeypatch):
    path = tmp_path / "own.json"
    content = json.loads(Path(_table(path, "key", "kernel")).read_text())
    change(content)
    path.write_text(json.dumps(content))
    monkeypatch.setenv("JAX_CLC_TUNED", str(path))
    with pytest.raises(ValueError, match=r"own\.json cannot be read: "):
        plan(P(8, 8, 8))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "9" * 5000])
def test_a_table_that_is_no_json_object_is_a_value_error_that_names_it(text, tmp_path, monkeypatch):
    path = tmp_path / "own.json"
    path.write_text(text)
    monkeypatch.setenv("JAX_CLC_TUNED", str(path))
    with pytest.raises(ValueError, match=r"own\.json cannot be read: "):
        plan(P(8, 8, 8))


def test_the_widest_raster_group_of_a_table_is_taken(tmp_path, monkeypatch):
    problem, name = P(4096, 4096, 4096), "sm90_bf16_bf16_f32_bf16_knn_64x128x64_c1x1_s4_nonpersistent"
    path = Path(_table(tmp_path / "own.json", tuned_choices.problem_key(problem), name))
    path.write_text(path.read_text().replace('"raster_group": 4', f'"raster_group": {constraints.MAX_RASTER_GROUP}'))
    monkeypatch.setenv("JAX_CLC_TUNED", str(path))
    assert plan(problem).choices["sm_90a"].raster_group == constraints.MAX_RASTER_GROUP
