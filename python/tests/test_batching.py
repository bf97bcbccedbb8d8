# SPDX-License-Identifier: MIT
"""msalab check-batching: the ways cover the queries, equal where they must be, and told where they are not."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from test_capture_files import Fake, random_layer  # noqa: E402

from msalab import batching  # noqa: E402
from msalab.capture.capture import capture  # noqa: E402
from msalab.rule import Rule  # noqa: E402

LENGTHS, RULE = (70, 0, 1, 45), Rule(8, 4, 1, 1)
CU = np.cumsum([0, *LENGTHS])
HERE = [name for name in batching.present() if name != "cuda" or pytest.importorskip("torch")]


def operands(integers, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (CU[-1], 2, 16), (CU[-1], 16)
    if integers:  # few values, so that products are exact in every type and many scores tie
        return tuple(rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def checked(integers, **changes):
    return list(batching.check(3, *operands(integers), CU, RULE, HERE, chunk=16, rows=5, **changes))


def test_every_way_has_the_queries_it_says():
    ways = batching.ways(CU, 16, 5)
    every = np.arange(CU[-1])
    for way, calls in ways.items():
        tokens = np.concatenate([call.tokens for call in calls])
        if way.startswith("decode"):
            wanted = [token for begin, end in zip(CU, CU[1:]) for token in range(max(begin, end - 5), end)]
            assert sorted(tokens) == wanted
        else:
            assert np.array_equal(tokens, every), way
    assert [len(calls) for calls in ways.values()] == [1, 3, 5 + 1 + 3, 5 + 1 + 5, 5, 3]


def test_integer_operands_give_the_same_ids_in_every_way():
    found = checked(integers=True)
    ways = {(of.backend, of.way) for of in found}
    assert len(found) == len(ways) == len(HERE) * 9 - 1
    assert {of.backend for of in found} == set(HERE) >= {"reference", "cpu"}
    for of in found:
        assert (of.rows_that_differ, of.ids_that_differ, of.margin) == (0, 0, None), of


def test_other_element_types_differ_by_their_rounding_and_ways_do_not():
    found = checked(integers=False)
    index_q, index_k = operands(False)
    norms = np.linalg.norm(index_q, axis=-1).max() * np.linalg.norm(index_k, axis=-1).max() / 4
    for of in found:
        element = of.way.removeprefix(f"{batching.ONE_CALL}, ")
        if element in ("bf16", "f16"):  # both blocks' scores may be off, of both operands
            roundoff = {"bf16": 2 ** -9, "f16": 2 ** -12}[element]
            assert of.margin is None or of.margin <= 2 * 2.1 * 2 * roundoff * norms
        elif element != "int8":
            assert of.margin is None or of.margin <= 2 * (16 + 3) * 2 ** -23 * norms
    coarse = [of for of in found if of.way.endswith("int8")]
    assert all(0 < of.rows_that_differ <= of.ids_that_differ and 0 < of.of_scores < 0.2 for of in coarse)


@pytest.mark.parametrize("wrong", ["decode, one query", "3 shards"])
def test_a_way_that_selects_otherwise_is_told(monkeypatch, wrong):
    """As faults of an engine: a cache that has lost its first key, and queries a place too early."""
    ways = batching.ways

    def faulty(cu, chunk, rows):
        made = ways(cu, chunk, rows)
        if wrong.startswith("decode"):
            made[wrong] = [batching._behind_a_prefix(call.keys.start + 1, token, token + 1)
                           for call in made[wrong] for token in call.tokens if token > call.keys.start]
        else:
            made[wrong] = [replace(batching._beside_all_keys(cu, np.maximum(call.tokens - 1, 0)),
                                   tokens=call.tokens) for call in made[wrong]]
        return made

    monkeypatch.setattr(batching, "ways", faulty)
    for of in checked(integers=False):
        if of.way == wrong:
            assert of.rows_that_differ > 0 and of.margin > 0.05, of


def test_the_command_reads_a_capture(tmp_path, capsys):
    path = tmp_path / "a.h5"
    capture(Fake(lambda tokens, number: random_layer(tokens, seed=number, index_dim=16 if number else 0)),
            [range(60), range(90)], path)
    options = ["--block-size", "8", "--top-k", "3", "--chunk", "16", "--rows", "2"]
    assert batching.main([str(path), *options, "--layers", "1,2", "--backends", "cpu,reference", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {of["layer"] for of in found} == {1, 2} and {of["backend"] for of in found} == {"cpu", "reference"}
    assert {of["against"] for of in found} == {"one call", "one call on cpu"}
    few = [*options, "--max-tokens", "70", "--backends", "cpu"]  # the first sequence
    assert batching.main([str(path), *few, "--layers", "1", "--json"]) == 0
    assert [of["rows"] for of in json.loads(capsys.readouterr().out)[:5]] == [120, 120, 4, 4, 120]
    assert batching.main([str(path), *few]) == 0
    told = capsys.readouterr().out
    assert told.count("chunks of 16") == 3 and "margin: the most by" in told
    assert batching.main([str(path), "--layers", "0"]) == 2
    assert "no layer has index_q and index_k" in capsys.readouterr().err
    assert batching.main([str(path), "--layers", "9"]) == 2
    with pytest.raises(SystemExit):
        batching.main([str(path), "--backends", "abacus"])
    assert "--backends names abacus; there are: " in capsys.readouterr().err
