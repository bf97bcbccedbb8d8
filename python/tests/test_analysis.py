# SPDX-License-Identifier: MIT
"""Measures on arrays: closed forms, and the very numbers that msa-analyze writes."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msalab._msalab")

import h5py  # noqa: E402

import msalab  # noqa: E402
from msalab import analysis  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
BK = 8
ON_KEY_31 = {"cu_seqlens_q": [0, 1], "cu_seqlens_k": [0, 32], "block_size": BK}  # blocks 0 to 3


def ids_of(*rows):
    """[Nq, Hkv, k] int32"""
    return np.array(rows, np.int32)


def test_definitions_are_those_of_the_programs_table():
    table = analysis.metrics()
    assert table["mass_kept"] == ("mass_kept", "mass kept", "probability", "group", (
        "sum of P_b over Î: share of the dense attention probability on the chosen blocks; small gaps "
        "may hide large losses of the model (docs/smollm2.md)"))
    source = (ROOT / "analysis/metrics.cpp").read_text()
    assert [source.index(f'{{"{name}", ') for name in table] == sorted(
        source.index(f'{{"{name}", ') for name in table)
    for function, names in ((analysis.recall, ("block_recall", "score_recall", "mass_kept",
                                               "oracle_mass")),
                            (analysis.entropy, ("entropy_dense", "entropy_sparse")),
                            (analysis.popularity, ("queries_per_block",))):
        for name in names:
            line = f"{name} ({table[name].unit}): {table[name].definition}."
            assert line in function.__doc__.splitlines()
    analysis.metrics().clear()
    assert analysis.metrics() == table


def test_recall_by_hand():
    ids, oracle = ids_of([[0, 3], [1, 3]]), ids_of([[1, 3], [1, 3]])
    mass = np.array([[[0.125, 0.5, 0.125, 0.25], [0, 0.75, 0.125, 0.125]]], np.float32)
    found = analysis.recall(ids, mass, oracle, **ON_KEY_31)
    assert {name: values.tolist() for name, values in found.items()} == {
        "block_recall": [0.5, 1], "score_recall": [0.25 / 0.75, 1], "mass_kept": [0.375, 0.875],
        "oracle_mass": [0.75, 0.875]}
    assert found["mass_kept"].dtype == np.float64
    # The oracle that is not given is the choice by mass.
    chosen = analysis.recall(ids, mass, **ON_KEY_31)
    assert all((chosen[name] == found[name]).all() for name in found)
    without = analysis.recall(ids, mass, oracle, exclude_local=True, **ON_KEY_31)
    assert without["block_recall"].tolist() == [0, 1] and without["score_recall"].tolist() == [0, 1]
    assert (without["mass_kept"] == found["mass_kept"]).all()


def test_rows_that_are_trivial_blind_or_not_a_number():
    ids, mass = ids_of([[0, 3]]), np.array([[[0.5, 0.25, np.nan, 0.25]]], np.float32)
    found = analysis.recall(ids, mass, ids_of([[0, 2]]), **ON_KEY_31)
    assert np.isnan(found["block_recall"][0]) and np.isnan(found["oracle_mass"][0])
    assert found["mass_kept"].tolist() == [0.75]  # block 2 has no influence there
    nothing = analysis.recall(ids, mass * 0, ids_of([[0, 3]]), **ON_KEY_31)
    assert nothing["block_recall"].tolist() == nothing["score_recall"].tolist() == [1]
    # Two blocks are visible to the query and two are kept: trivial.
    trivial = {"cu_seqlens_q": [0, 1], "cu_seqlens_k": [0, 16], "block_size": BK}
    mass = np.array([[[0.25, 0.75]]], np.float32)
    assert np.isnan(analysis.recall(ids_of([[0, 1]]), mass, **trivial)["mass_kept"][0])
    kept = analysis.recall(ids_of([[0, 1]]), mass, all_rows=True, **trivial)["mass_kept"]
    assert kept.tolist() == [1]
    # A query before the first key sees nothing, and counts nowhere.
    blind = {"cu_seqlens_q": [0, 2], "cu_seqlens_k": [0, 1], "block_size": BK}
    q = np.zeros((2, 2, 16), np.float32)
    assert analysis.entropy(q, q[:1, :1], **blind).tolist() == [0, 0]
    assert analysis.sink_mass(q, q[:1, :1], **blind).tolist() == [1, 1]
    none = {"cu_seqlens_q": [0, 0], "cu_seqlens_k": [0, 1]}
    assert np.isnan(analysis.entropy(q[:0], q[:1, :1], **none)).all()


@pytest.mark.parametrize("weight", [0, 2])
def test_uniform_attention_has_closed_forms(weight):
    """With a learnable sink that weighs as much as so many keys."""
    n = 20
    sinks = np.full(2, np.log(weight), np.float32) if weight else None
    q = np.zeros((n, 2, 16), np.float32)
    k = np.random.default_rng(0).standard_normal((n, 1, 16)).astype(np.float32)
    seen = np.arange(n) + 1
    places = seen + weight
    options = {"sinks": sinks, "block_size": BK}

    def near(found, expected):
        assert found.shape == (2,) and found.dtype == np.float64
        np.testing.assert_allclose(found, np.mean(expected), rtol=1e-6)

    near(analysis.sink_mass(q, k, **options), 1 / places)
    near(analysis.sink_mass(q, k, tokens=4, **options), np.minimum(seen, 4) / places)
    of_sink = weight / places * np.log(weight or 1)
    near(analysis.entropy(q, k, **options), np.log(places) - of_sink)
    # Over the query's own block alone, the tokens of other blocks have no probability.
    ids = (np.arange(n, dtype=np.int32) // BK).reshape(n, 1, 1)
    seen = np.arange(n) % BK + 1
    places = seen + weight
    of_sink = weight / places * np.log(weight or 1)
    near(analysis.sink_mass(q, k, ids, **options), np.where(np.arange(n) < BK, 1 / places, 0))
    near(analysis.entropy(q, k, ids, **options), np.log(places) - of_sink)
    # A window of two tokens: the sequence's first token is seen by two queries.
    near(analysis.sink_mass(q, k, window=2, sinks=sinks),
         [1 / (1 + weight), 1 / (2 + weight)] + [0] * (n - 2))
    assert np.isnan(analysis.entropy(q, k, softcap=5.0)).all()


def test_output_error_is_relative_and_dead_heads_have_none():
    dense = np.random.default_rng(1).standard_normal((32, 3, 16)).astype(np.float32)
    dense[:, 2] = 0
    out = dense.copy()
    out[:, 0] *= 1.5
    out[:16] = 7  # two blocks of 8 are visible at most: trivial with k = 2
    found = analysis.output_error(out, dense, 2, block_size=BK)
    np.testing.assert_allclose(found[:2], [0.5, 0], rtol=1e-7)
    assert np.isnan(found[2])
    assert analysis.output_error(out, dense, 2, block_size=BK, all_rows=True)[1] > 1


def test_overlap_by_hand():
    ids = ids_of([[0, 3], [1, 3]], [[1, 3], [1, 3]])
    at = {"layout": msalab.layout([0, 2], [0, 32], [30, 31]), "block_size": BK}
    assert analysis.group_overlap(ids, **at).tolist() == [[1, 2 / 3], [2 / 3, 1]]  # 1/3 and 1
    assert np.isnan(analysis.group_overlap(ids[:, :, :0], block_size=BK, cu_seqlens_q=[0, 2],
                                           cu_seqlens_k=[0, 0])).all()
    other = ids_of([[-1], [1]], [[1], [3]])  # another k
    assert analysis.layer_overlap([ids, other], **at).tolist() == [[1, 0.375], [0.375, 1]]
    empty = np.full((2, 2, 2), -1, np.int32)
    assert analysis.layer_overlap([empty, ids], **at).tolist() == [[1, 0], [0, 1]]


def test_popularity_and_how_even_it_is():
    ids = ids_of([[0, 2], [1, 2]], [[0, 2], [2, -1]], [[0, 1], [-1, -1]])
    at = {"cu_seqlens_q": [0, 2, 2, 3], "cu_seqlens_k": [0, 24, 24, 40], "block_size": BK}
    counts = analysis.popularity(ids, **at)
    assert counts.dtype == np.int64
    assert counts.tolist() == [[2, 0, 2, 1, 1], [0, 1, 2, 0, 0]]
    assert analysis.lorenz_curve(counts).tolist() == [[0, 0, 1 / 6, 2 / 6, 4 / 6, 1],
                                                      [0, 0, 0, 0, 1 / 3, 1]]
    # The mean absolute difference over twice the mean.
    expected = [np.abs(row[:, None] - row).mean() / (2 * row.mean()) for row in counts]
    np.testing.assert_allclose(analysis.gini(counts), expected, rtol=1e-12)
    assert analysis.gini(np.array([[0, 9, 0, 0], [0, 0, 0, 0]])).tolist() == [0.75, 0]


@pytest.mark.parametrize("call, said", [
    (lambda ids, mass: analysis.recall(ids, mass, ids[:, :, ::-1].copy(), **ON_KEY_31),
     r"^oracle_ids\[0, 0, 1\] is 0, must be above the id before it"),
    (lambda ids, mass: analysis.recall(ids + 3, mass, **ON_KEY_31),
     r"^ids\[0, 0, 1\] is 6, must be a visible block \(the query sees 4 blocks\)"),
    (lambda ids, mass: analysis.recall(ids, mass[:, :, :3].copy(), ids, **ON_KEY_31),
     r"mass has shape \[1, 2, 3\], must be \[Nq, Hkv, B\] = \[1, 2, 4\]"),
    (lambda ids, mass: analysis.recall(ids, mass.astype(float), ids, **ON_KEY_31),
     "mass is float64, must be float32"),
    (lambda ids, mass: analysis.recall(ids[0], mass, **ON_KEY_31),
     r"ids has shape \[2, 2\], must be \[Nq, Hkv, k\]"),
    (lambda ids, mass: analysis.group_overlap(ids.astype(np.int64), **ON_KEY_31),
     "ids is int64, must be int32"),
    (lambda ids, mass: analysis.popularity(ids, **{**ON_KEY_31, "block_size": 0}),
     "block_size is 0, must be"),
    (lambda ids, mass: analysis.layer_overlap([]), "selections is empty"),
    (lambda ids, mass: analysis.layer_overlap([ids, ids[:, :1].copy()], **ON_KEY_31),
     r"ids has shape \[1, 1, 2\], must be \[Nq, Hkv, k\] = \[1, 2, 2\]"),
    (lambda ids, mass: analysis.sink_mass(mass, mass, tokens=0), "tokens is 0, must be at least 1"),
    (lambda ids, mass: analysis.output_error(mass, mass, 0), "top_k is 0, must be at least 1"),
    (lambda ids, mass: analysis.output_error(np.zeros((1, 2, 16), np.float32), mass, 1),
     r"dense_out has shape \[1, 2, 4\], must be \[Nq, Hq, dh\] = \[1, 2, 16\]"),
    (lambda ids, mass: analysis.gini(mass[0]), "counts holds .* must be integers"),
    (lambda ids, mass: analysis.gini(np.array([[1, -2]])),
     r"counts\[0\] holds -2, must not be negative"),
])
def test_bad_input_is_refused_by_name(call, said):
    ids, mass = ids_of([[0, 3], [1, 3]]), np.full((1, 2, 4), 0.25, np.float32)
    with pytest.raises(msalab.InputError, match=said):
        call(ids, mass)


def test_tensors_give_tensors_of_the_same_numbers():
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    q, k = torch.randn(40, 4, 16, requires_grad=True), torch.randn(40, 2, 16)
    ids = msalab.msa_topk_select(msalab.msa_block_mass(q, k, block_size=BK), 3, block_size=BK)
    arrays = [tensor.detach().numpy() for tensor in (q, k, ids)]
    for name in ("sink_mass", "entropy"):
        found, expected = (getattr(analysis, name)(*operands, block_size=BK)
                           for operands in ((q, k, ids), arrays))
        assert found.dtype == torch.float64 and not found.requires_grad
        assert (found.numpy() == expected).all()
    mass = msalab.msa_block_mass(q, k, block_size=BK)
    assert torch.equal(analysis.recall(ids, mass, block_size=BK)["mass_kept"],
                       analysis.recall(ids, mass, block_size=BK)["oracle_mass"])
    counts = analysis.popularity(ids, block_size=BK)
    assert counts.dtype == torch.int64 and counts.sum() == (ids >= 0).sum()
    assert analysis.gini(counts).shape == (2,)


def test_the_numbers_are_those_of_msa_analyze(tmp_path):
    if not (BIN / "msa-analyze").exists():
        pytest.skip(f"no msa-analyze in {BIN}: ./msalab build")
    first, last, k_blocks, names = 400, 460, 8, ("mean-key", "window")
    subprocess.run([BIN / "msa-analyze", ROOT / "data/sample.h5", "--out", tmp_path / "out",
                    "--block-size", "32", "--top-k", str(k_blocks), "--selectors", ",".join(names),
                    "--queries", f"{first}:{last}", "--backend", "cpu"], check=True,
                   capture_output=True)
    with ActivationsReader(ROOT / "data/sample.h5") as file:
        number = file.layers[0]
        layer = file.layer(number)
    q, k, v = (np.ascontiguousarray(x, np.float32) for x in (layer.q[first:last], layer.k, layer.v))
    packed = {"layout": msalab.layout([0, last - first], [0, len(k)], range(first, last))}
    blocks = {**packed, "block_size": 32}
    scale = {"softmax_scale": layer.softmax_scale}
    mass = msalab.msa_block_mass(q, k, **blocks, **scale)
    dense_out = msalab.dense_attention(q, k, v, **packed, **scale)
    with h5py.File(tmp_path / "out/results.h5") as file:
        dense = file[f"metrics/dense/{number}"]
        assert (analysis.sink_mass(q, k, **packed, **scale) == dense["sink_mass"][()]).all()
        assert (analysis.sink_mass(q, k, tokens=4, **packed, **scale)
                == dense["sink_mass_first_tokens"][()]).all()
        assert (analysis.entropy(q, k, **packed, **scale) == dense["entropy"][()]).all()
        for name in names:
            written, ids = file[f"metrics/{name}/{number}"], file[f"select/{name}/{number}/ids"][()]
            out = msalab.msa_sparse_attention(q, k, v, ids, **blocks, **scale)
            found = analysis.recall(ids, mass, **blocks)
            found["output_error"] = analysis.output_error(out, dense_out, k_blocks, **blocks)
            found["sink_mass_sparse"] = analysis.sink_mass(q, k, ids, **blocks, **scale)
            found["entropy_sparse"] = analysis.entropy(q, k, ids, **blocks, **scale)
            assert set(written) - set(found) == {"tied", "tied_by_rounding", "all_tied"}
            for metric, values in found.items():
                assert (values == written[metric][()]).all(), (name, metric)
                said = written[metric].attrs["description"].decode()
                assert said == analysis.metrics()[metric].definition
            popular = file[f"popularity/{name}/{number}/queries_per_block"]
            counts = analysis.popularity(ids, **blocks)
            assert (counts == popular[()]).all()
            assert analysis.gini(counts).mean() == pytest.approx(popular.attrs["gini"], rel=1e-14)
