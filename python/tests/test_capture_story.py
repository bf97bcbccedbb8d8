# SPDX-License-Identifier: MIT
"""The three commands of the README on models with every kind of RoPE: capture, fit, analyse, without
an option that says what RoPE it is. Needs PyTorch and transformers (requirements-capture.txt)."""

import json

import h5py
import numpy as np
import pytest
from test_capture_models import (FAMILIES, SIZES, make_model, needs_programs,  # noqa: F401
                                 run_program, sequences, torch, transformers)
from test_capture_rope import FACTOR, LIMIT, SCALED, captured_layers, keys_before_rope

from msalab import results
from msalab.capture.__main__ import main
from msalab.capture.reader import ActivationsReader
from msalab.capture.rope import apply_rope, frequencies, positions

FAMILIES["cohere"] = ("CohereConfig", "CohereForCausalLM", {})
FAMILIES["glm"] = ("GlmConfig", "GlmForCausalLM", {"partial_rotary_factor": 0.5})
LLAMA_31 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# One head: an Index Branch can compute its very logits.
ONE = {"num_attention_heads": 1, "num_key_value_heads": 1}
MODELS = {
    "llama-3.1": lambda: make_model("llama", torch.bfloat16, max_position_embeddings=131072,
                                    rope_parameters=LLAMA_31, **ONE),
    **{family: lambda family=family: make_model(family, **ONE)
       for family in ("gpt_oss", "cohere", "glm")},
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=97, n_embd=64, n_layer=4, n_head=4, initializer_range=0.25)),
    **{kind: lambda kind=kind: make_model(
        "llama", max_position_embeddings=LIMIT, rope_parameters={
            "rope_type": kind, "rope_theta": 1e4, "factor": FACTOR, **SCALED[kind]}, **ONE)
       for kind in SCALED},
}


@pytest.mark.parametrize("family, layout, rotary_dim", [
    ("llama", None, 16), ("cohere", "interleaved", 16), ("glm", "interleaved", 8)])
def test_the_layout_of_rope_is_recorded(tmp_path, sequences, family, layout, rotary_dim):
    model = make_model(family)
    layers, cu_seqlens = captured_layers(tmp_path, model, sequences, layers=[2])
    assert (layers[0].rope_layout, layers[0].rotary_dim) == (layout, rotary_dim)
    before = keys_before_rope(model, 2, sequences)
    theta = layers[0].rope_theta
    for interleaved in (False, True):
        turned = apply_rope(before, positions(cu_seqlens), frequencies(rotary_dim, theta), 1.0,
                            interleaved)
        right = np.allclose(turned, layers[0].k, atol=1e-3)
        assert right == (interleaved == (layout == "interleaved"))


def story(tmp_path, model, *fit_options, tokens=400):
    """Runs the three commands; what the fit says of its layers."""
    model.save_pretrained(tmp_path / "model")
    ids = np.random.default_rng(1).integers(3, SIZES["vocab_size"], tokens)
    (tmp_path / "tokens.json").write_text(json.dumps(ids.tolist()))
    assert main(["capture", str(tmp_path / "model"), "--tokens", str(tmp_path / "tokens.json"),
                 "--max-tokens", str(tokens),  # more than some models have positions
                 "--layers", "1,3", "--out", str(tmp_path / "mine.h5")]) == 0
    run_program("msa-fit-indexer", tmp_path / "mine.h5", "--out", tmp_path / "fit", *fit_options)
    run_program("msa-analyze", tmp_path / "fit/indexer.h5", "--out", tmp_path / "mine",
                "--block-size", 16, "--top-k", 4, "--selectors", "index,oracle,mean-key,window",
                "--queries", "300:")
    selectors = results.open(tmp_path / "mine", "msa-analyze")["selectors"]
    assert set(selectors.select("layer", "selector").rows()) == {
        (layer, selector) for layer in (1, 3)
        for selector in ("index", "oracle", "mean-key", "window")}
    with h5py.File(tmp_path / "fit/results.h5") as file:
        return {layer: file[f"fit/{layer}/held_out/kl"][:] for layer in (1, 3)}


@needs_programs
@pytest.mark.parametrize("kind", MODELS)
def test_three_commands(tmp_path, kind):
    """The first weights come of queries and keys before RoPE: where it is undone as the model did
    it, they are nearly the model's own. (GPT-2 has four heads and no RoPE.)"""
    of_random = 1 if kind == "gpt2" else 0.05
    short = ("--steps", 2, "--block-size", 16, "--top-k", 4, "--index-dim", 32)
    started = story(tmp_path, MODELS[kind](), *short)
    run_program("msa-fit-indexer", tmp_path / "mine.h5", "--out", tmp_path / "normal", *short,
                "--init", "normal")
    with h5py.File(tmp_path / "normal/results.h5") as file:
        for layer, kl in started.items():
            assert kl[0] < of_random * file[f"fit/{layer}/held_out/kl"][0]


@needs_programs
@pytest.mark.parametrize("family", ["cohere", "glm"])
def test_a_start_in_the_wrong_layout_is_worse(tmp_path, family):
    short = ("--steps", 2, "--block-size", 16, "--top-k", 4, "--index-dim", 32)
    right = story(tmp_path, MODELS[family](), *short)
    with h5py.File(tmp_path / "mine.h5", "r+") as file:
        for layer in right:
            del file[f"layers/{layer}"].attrs["rope_layout"]
    run_program("msa-fit-indexer", tmp_path / "mine.h5", "--out", tmp_path / "wrong", *short)
    with h5py.File(tmp_path / "wrong/results.h5") as file:
        for layer, kl in right.items():
            assert kl[0] < 0.05 * file[f"fit/{layer}/held_out/kl"][0]


def test_convert_says_and_follows_the_layout(tmp_path):
    heads = np.random.default_rng(2).standard_normal((50, 2, 16)).astype(np.float32)
    np.savez(tmp_path / "a.npz", **{f"layers.0.{name}": heads for name in "qkv"})
    arguments = ["--rotary-dim", "8", "--rope-theta", "100", "--interleaved"]
    for state, out in (("post_rope", "post.h5"), ("pre_rope", "pre.h5")):
        assert main(["convert", str(tmp_path / "a.npz"), "--state", state, *arguments, "--out",
                     str(tmp_path / out)]) == 0
    assert main(["convert", str(tmp_path / "pre.h5"), "--apply-rope", "--out",
                 str(tmp_path / "rotated.h5")]) == 0
    for name in ("post.h5", "pre.h5", "rotated.h5"):
        with ActivationsReader(tmp_path / name) as file:
            layer = file.layer(0)
        assert layer.rope_layout == "interleaved"
    np.testing.assert_array_equal(
        layer.k, apply_rope(heads, np.arange(50), frequencies(8, 100.0), 1.0, True))
