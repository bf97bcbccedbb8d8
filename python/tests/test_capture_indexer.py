# SPDX-License-Identifier: MIT
"""msalab capture --indexer: Index Branches beside the activations of a model that has none. Needs PyTorch,
transformers and the compiled module."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from msalab import indexer  # noqa: E402
from msalab.capture import fitted  # noqa: E402
from msalab.capture.__main__ import main  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402
from msalab.nn import rotation  # noqa: E402

WIDTH, GROUPS, DIM, TOKENS = 32, 2, 16, 40
RULE = {"block_size": 8, "top_k": 3, "forced_first": 0, "forced_local": 1}


def fit_of(seed, norm, width=WIDTH):
    draw = np.random.default_rng(seed)
    w_q, w_k = (draw.normal(size=(rows, width)).astype(np.float32) for rows in (GROUPS * DIM, DIM))
    norms = [draw.uniform(0.5, 2, DIM).astype(np.float32) for _ in "qk"] if norm else [None, None]
    return fitted.Fitted(GROUPS, w_q, w_k, *norms, fitted.plain_frequencies(8, 1e4), 1e4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of three layers, and token ids."""
    folder = tmp_path_factory.mktemp("capture")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=GROUPS, head_dim=16, max_position_embeddings=64)).save_pretrained(folder / "model")
    for number in (1, 2):
        np.save(folder / f"tokens{number}.npy", np.random.default_rng(number).integers(0, 64, TOKENS // number))
    return folder


def captured(folder, out, fits, *words):
    (folder / fitted.TRAINED).write_bytes(fitted.packed(fits, RULE, folder))
    return main(["capture", *map(str, [folder / "model", "--tokens", folder / "tokens1.npy", "--tokens",
                                       folder / "tokens2.npy", "--indexer", folder, "--out", out, *words])])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_what_the_index_branches_make_of_the_hidden_states(folder, tmp_path, capsys, norm, dtype):
    fits = {number: fit_of(number, norm) for number in (0, 2)}
    assert not captured(folder, tmp_path / "a.h5", fits, "--dtype", dtype)
    assert "layers [1] have no Index Branch of their own" in capsys.readouterr().err
    branches, ulp = indexer.read(folder), {"float32": 2.0 ** -24, "bfloat16": 2.0 ** -8}[dtype]
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert list(file.layers) == [0, 2]  # those that have one
        for number in file.layers:
            layer = file.layer(number)
            x = torch.from_numpy(layer.x.astype(np.float32))
            positions = torch.cat([torch.arange(TOKENS), torch.arange(TOKENS // 2)])  # of two sequences
            turns = rotation(positions, branches[number].frequencies, torch.float32)
            for name, want in zip(("index_q", "index_k"), branches[number](x, turns)):
                found = getattr(layer, name)
                # A sum of WIDTH products, a norm and a rotation in float32, and the rounding of what is kept.
                bound = (4 * WIDTH * 2.0 ** -24 + ulp) * float(want.abs().max())
                np.testing.assert_allclose(found.astype(np.float32), want.numpy(), rtol=0, atol=bound)
            assert (layer.own_block_size, layer.own_top_k) == (8, 3)
            np.testing.assert_array_equal(layer.weights["w_index_q"], fits[number].w_q)
            assert ("index_k_norm" in layer.weights) == norm


@pytest.mark.parametrize("fits, words, error", [
    ({7: fit_of(0, True)}, [], "has Index Branches of layers [7]; those of"),
    ({0: fit_of(0, True)}, ["--layers", "0,1"], "has no Index Branch of layers [1]; it has those of [0]"),
    ({0: fit_of(0, True, 24)}, [], "layer 0: the Index Branch has 2 groups and takes 24 channels, the model has 2 and 32"),
])
def test_others_are_refused(folder, tmp_path, capsys, fits, words, error):
    assert captured(folder, tmp_path / "a.h5", fits, *words)
    assert error in capsys.readouterr().err and not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("thetas", [(1e4, 1e4), (1e4, None), (None, None), (1e4, 5e5)])
def test_layers_keep_their_own_frequencies(tmp_path, thetas):
    """msa-fit-indexer chooses RoPE pairs layer by layer: what msalab train writes of them is not said once."""
    fits = {}
    for number, theta in enumerate(thetas):
        fit = fit_of(number, norm=True)
        own = fitted.plain_frequencies(8, theta) if theta else np.asarray([1, 0.3, 0.1, 0.01]) / (1 + number)
        fits[number] = replace(fit, frequencies=own, theta=theta)
    (tmp_path / fitted.TRAINED).write_bytes(fitted.packed(fits, RULE, "here"))
    read = fitted.read(tmp_path)
    for number, fit in fits.items():
        np.testing.assert_array_equal(read[number].frequencies, fit.frequencies)
