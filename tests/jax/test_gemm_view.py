"""Contractions in labels, and their view as one strided GEMM, checked against NumPy by reading through the view."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from jax_clc.contraction import Contraction
from jax_clc.gemm_view import GemmView, MatrixView, NotAGemm, gemm_view


def contraction(text: str) -> Contraction:
    operands, out = text.split("->")
    names = {letter: i for i, letter in enumerate(dict.fromkeys(operands.replace(",", "")))}
    a, b = operands.split(",")
    return Contraction(*(tuple(names[letter] for letter in letters) for letters in (a, b, out)))


def _matrix(
    array: np.ndarray, view: MatrixView, batch: int, axes: str, sizes: dict[str, int], row_multiple: int
) -> np.ndarray:
    """The buffer, copied and padded as the view says, read through its strides as [l, axes[0], axes[1]]."""
    if view.permutation is not None:
        array = np.ascontiguousarray(array.transpose(view.permutation))
    array = array.reshape(view.shape)
    grown = view.with_rows_of(row_multiple)
    missing = [(0, new - old) for old, new in zip(view.shape, grown.shape, strict=True)]
    array = np.pad(array, missing, constant_values=np.nan)
    batch_stride, outer_stride = grown.strides(batch)
    step = {view.major: 1, "l": batch_stride}
    order = ("l", *axes)
    strides = [array.itemsize * step.get(axis, outer_stride) for axis in order]
    return as_strided(array, [sizes[axis] for axis in order], strides)


def evaluate(
    view: GemmView, a: np.ndarray, b: np.ndarray, out_shape: tuple[int, ...], row_multiple: int = 1
) -> np.ndarray:
    """What a GEMM that knows only sizes, majors and strides would compute."""
    sizes = {"l": view.batch, "m": view.m, "n": view.n, "k": view.k}
    first, second = (b, a) if view.exchanged else (a, b)
    product = np.einsum(
        "lmk,lkn->lmn",
        _matrix(first, view.a, view.batch, "mk", sizes, row_multiple),
        _matrix(second, view.b, view.batch, "kn", sizes, row_multiple),
    )
    grown = view.d.with_rows_of(row_multiple)
    batch_stride, outer_stride = grown.strides(view.batch)
    buffer = np.full(grown.shape, np.nan)
    as_strided(buffer, product.shape, [8 * batch_stride, 8 * outer_stride, 8])[...] = product
    result = buffer[..., : view.d.shape[-1]]
    assert not np.isnan(result).any(), "an element of D was not written"
    if view.d.permutation is None:
        return result.reshape(out_shape)
    source = [0] * len(out_shape)
    for i, axis in enumerate(view.d.permutation):
        source[axis] = out_shape[i]
    return result.reshape(source).transpose(view.d.permutation)


NO_COPIES = (
    "mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "mk,kn->nm",
    "lmk,lkn->lmn", "lkm,lkn->lmn", "lmk,lnk->lnm", "mlk,lkn->mln", "mlk,lnk->lmn",
    "bsd,dhe->bshe", "bshe,dhe->bsd", "bsd,bshe->dhe", "pqk,pqkn->pqn",
    "vmk,kn->vmn", "mk,vkn->vmn", "mk,vkn->mvn", "mk,knv->mnv", "mkv,kn->vmn", "k,kn->n", "mk,k->m", "m,n->mn",
    "lk,lkn->ln",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_COPIES)
def test_common_contractions_need_no_copy(text: str) -> None:
    shape = {"b": 2, "s": 3, "d": 4, "h": 5, "e": 6, "l": 2, "m": 3, "n": 4, "k": 5, "v": 2, "p": 2, "q": 3}
    a, b = text.split("->")[0].split(",")
    view = gemm_view(contraction(text), [shape[x] for x in a], [shape[x] for x in b])
    assert view.copies == (), view


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        ("bqhd,bkhd->bhqk", ("a", "b")),
        ("kml,kn->lnm", ("b",)),
        ("mabk,kn->bamn", ("a",)),
        ("kml,knl->mnl", ("a", "b", "d")),
    ],
)
def test_copies_are_made_where_strides_cannot_say_it(text: str, copies: tuple[str, ...]) -> None:
    """`copies` names the GEMM's operands: a result that is m-contiguous has exchanged them."""
    shape = {"b": 2, "q": 3, "h": 4, "d": 5, "k": 6, "m": 3, "n": 7, "l": 5, "a": 2}
    a, b = text.split("->")[0].split(",")
    assert gemm_view(contraction(text), [shape[x] for x in a], [shape[x] for x in b]).copies == copies


def test_scalar_products_are_not_gemms() -> None:
    with pytest.raises(NotAGemm, match="no m or n axis"):
        gemm_view(contraction("k,k->"), [4], [4])
    with pytest.raises(NotAGemm, match="no m or n axis"):
        gemm_view(contraction("lk,lk->l"), [3, 4], [3, 4])


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Contraction, dict[int, int]]:
    kinds = draw(st.lists(st.sampled_from("lmnk"), min_size=1, max_size=6))
    sizes = {label: draw(st.integers(1, 4)) for label in range(len(kinds))}
    members = {"a": "lmk", "b": "lkn", "out": "lmn"}
    parts = {
        name: tuple(draw(st.permutations([label for label, kind in enumerate(kinds) if kind in wanted])))
        for name, wanted in members.items()
    }
    return Contraction(**parts), sizes


@settings(max_examples=600)
@given(contractions(), st.sampled_from([1, 8]), st.randoms(use_true_random=False))
def test_view_computes_the_contraction(case, row_multiple, random) -> None:
    c, sizes = case
    a, b = (np.array([random.randint(-4, 4) for _ in range(int(np.prod([sizes[x] for x in labels], dtype=int)))], float)
            .reshape([sizes[x] for x in labels]) for labels in (c.a, c.b))  # fmt: skip
    expected = np.einsum(a, c.a, b, c.b, c.out)
    try:
        view = gemm_view(c, a.shape, b.shape)
    except NotAGemm:
        assert expected.size == max([1, *(sizes[x] for x in c.batch)]) or all(
            sizes[x] == 1 or x in c.batch for x in c.out
        )
        return
    np.testing.assert_array_equal(evaluate(view, a, b, expected.shape, row_multiple), expected)


@settings(max_examples=300)
@given(contractions(), st.data())
def test_backward_and_batched_contractions(case, data) -> None:
    c, sizes = case
    assert set(c.wrt_a().out) == set(c._renumbered().a) or len(c.wrt_a().out) == len(c.a)
    a_axis = data.draw(st.none() | st.integers(0, len(c.a)))
    b_axis = data.draw(st.integers(0, len(c.b))) if a_axis is None else data.draw(st.none() | st.integers(0, len(c.b)))
    batched, position = c.batched(a_axis, b_axis)
    a = np.arange(np.prod([sizes[x] for x in c.a], dtype=int) * 1.0).reshape([sizes[x] for x in c.a])
    b = np.arange(np.prod([sizes[x] for x in c.b], dtype=int) * 1.0).reshape([sizes[x] for x in c.b])
    stack_a = a if a_axis is None else np.stack([a, a + 1, a * 2], a_axis)
    stack_b = b if b_axis is None else np.stack([b, b - 1, b * 3], b_axis)
    pairs = [(x if a_axis is not None else a, y if b_axis is not None else b)
             for x, y in zip((a, a + 1, a * 2), (b, b - 1, b * 3), strict=True)]  # fmt: skip
    expected = np.stack([np.einsum(x, c.a, y, c.b, c.out) for x, y in pairs], position)
    np.testing.assert_array_equal(np.einsum(stack_a, batched.a, stack_b, batched.b, batched.out), expected)
