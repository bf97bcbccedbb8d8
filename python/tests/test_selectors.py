# SPDX-License-Identifier: MIT
"""Selectors on tensors choose the blocks that the programs choose, and a fitted Index Branch read
from its file gives the index queries and keys that msa-fit-indexer wrote. Needs PyTorch, the
compiled module, and the programs."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")
import h5py  # noqa: E402

from msalab import indexer, selectors  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402
from msalab.nn import rotation  # noqa: E402

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
SAMPLE = ROOT / "data/sample.h5"
BLOCK, TOP_K = 32, 8
NAMES = ("oracle", "mean-key", "quest", "window")


def run(program, *arguments):
    if not (BIN / program).exists():
        pytest.skip(f"no {program} in {BIN}: ./msalab build")
    subprocess.run([BIN / program, *map(str, arguments)], check=True, capture_output=True)


def sample():
    with ActivationsReader(SAMPLE) as file:
        return file.layers[0], file.layer(file.layers[0])


def test_the_programs_choose_the_same_blocks(tmp_path):
    run("msa-analyze", SAMPLE, "--out", tmp_path / "out", "--block-size", BLOCK, "--top-k", TOP_K,
        "--selectors", ",".join(NAMES))
    number, layer = sample()
    q, k = (torch.as_tensor(values.astype(np.float32)) for values in (layer.q, layer.k))
    with h5py.File(tmp_path / "out/results.h5") as file:
        chosen = {name: file[f"select/{name}/{number}/ids"][()] for name in NAMES}
    for name, expected in chosen.items():
        found = selectors.select(name, q, k, selectors.Rule(BLOCK, TOP_K),
                                 softmax_scale=layer.softmax_scale).numpy()
        # Scores are sums in another order: those of two blocks may be closer than their rounding.
        other = (found != expected).any(-1).mean()
        assert other == 0 if name == "window" else other < 1e-3, name


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_some_queries_at_a_time_choose_the_same_blocks(name, monkeypatch):
    rng = np.random.default_rng(2)
    q, k = (torch.as_tensor(rng.standard_normal((count, heads, 16), np.float32)) for count, heads in ((110, 4), (150, 2)))
    rule, real, sizes = selectors.Rule(16, 4, 1), selectors.SCORES[name], []
    monkeypatch.setitem(selectors.SCORES, name, lambda q, k, *more, **how: (sizes.append((len(q), len(k))), real(
        q, k, *more, **how))[1])
    whole = selectors.select(name, q, k, rule)
    monkeypatch.setattr(selectors, "SCORES_AT_ONCE", 2 * 10 * 40)  # groups, blocks, queries
    assert torch.equal(selectors.select(name, q, k, rule), whole)
    assert sizes == [(110, 150), (40, 80), (40, 120), (30, 150)]


@pytest.mark.parametrize("norm", ["none", "rms"])
def test_a_fitted_index_branch_is_read_as_it_was_fitted(tmp_path, norm):
    run("msa-fit-indexer", SAMPLE, "--out", tmp_path / "fit", "--block-size", BLOCK, "--top-k",
        TOP_K, "--steps", 2, "--warmup-steps", 1, "--eval-every", 2, "--index-norm", norm, "--train",
        ":1344", "--eval", "1344:")
    number, layer = sample()
    branch = indexer.read(tmp_path / "fit")[number]
    x = torch.as_tensor(layer.x.astype(np.float32))
    turns = rotation(torch.arange(len(x)), branch.frequencies, torch.float32)
    with ActivationsReader(tmp_path / "fit/indexer.h5") as file:
        written = file.layer(number)
    for name, found in zip(("index_q", "index_k"), branch(x, turns)):
        expected = getattr(written, name).astype(np.float32)
        # A product sums d_model terms, each rounded once; the file holds bfloat16.
        bound = x.shape[1] * 2.0 ** -24 * np.abs(expected).max()
        np.testing.assert_allclose(found.numpy(), expected, rtol=2.0 ** -8, atol=bound)
