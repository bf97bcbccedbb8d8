# SPDX-License-Identifier: MIT
"""What msalab.capture finds out about the attention of transformers models: which RoPE, latent keys and
values, a selection of its own. Needs PyTorch and transformers (requirements-capture.txt)."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from test_capture_models import (BLOCK, SEED, SIZES, TOP_K, WINDOW, attention, make_model,  # noqa: F401
                                 needs_programs, own_answers, run_program, sequences, torch, transformers)

from msalab.capture import ActivationsWriter, CaptureError, TransformersModel, capture, to_numpy
from msalab.capture.__main__ import main
from msalab.capture.layer import Layer
from msalab.capture.reader import ActivationsReader
from msalab.capture.rope import apply_rope, frequencies, positions
from msalab.capture.rotary import Turned, describe

LIMIT = 64  # tokens of the window that a scaled RoPE was made for
FACTOR = 8.0
ORIGINAL = {"original_max_position_embeddings": LIMIT}
SCALED = {
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "yarn": ORIGINAL, "linear": {}, "dynamic": {},
    "longrope": {**ORIGINAL, "short_factor": [1.0 + c / 8 for c in range(8)],
                 "long_factor": [2.0 + c for c in range(8)]},
}


def scaled_model(kind):
    return make_model("llama", max_position_embeddings=LIMIT, rope_parameters={
        "rope_type": kind, "rope_theta": 1e4, "factor": FACTOR, **SCALED[kind]})


def captured_layers(tmp_path, model, sequences, **options):
    capture(TransformersModel(model), sequences, tmp_path / "a.h5", overwrite=True, **options)
    with ActivationsReader(tmp_path / "a.h5") as file:
        return [file.layer(number) for number in file.layers], file.cu_seqlens


@torch.no_grad()
def keys_before_rope(model, number, sequences):
    taken = []
    hook = model.model.layers[number].self_attn.k_proj.register_forward_hook(
        lambda _, __, result: taken.append(to_numpy(result[0].unflatten(-1, (-1, 16)))))
    for tokens in sequences:
        model(torch.as_tensor(tokens)[None], use_cache=False)
    hook.remove()
    return np.concatenate(taken)


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_rope_can_be_applied_from_the_file(tmp_path, sequences, kind):
    """transformers forms angles of p radians in float32, off by a rounding of their size."""
    sequences = [tokens[:-1] for tokens in sequences] if kind == "yarn" else sequences[:1]
    model = scaled_model(kind)
    layers, cu_seqlens = captured_layers(tmp_path, model, sequences, layers=[2])
    layer, before = layers[0], keys_before_rope(model, 2, sequences)
    assert (layer.q_state, layer.rotary_dim, layer.rope_theta) == ("post_rope", 16, None)
    assert json.loads(layer.rope_scaling)["rope_type"] == kind
    assert json.loads(layer.rope_scaling)["rope_theta"] == 1e4
    assert not np.allclose(layer.rope_inv_freq, frequencies(16, 1e4), rtol=1e-3)
    assert (layer.rope_attention_factor == 1) == (kind not in ("yarn", "longrope"))
    got = apply_rope(before, positions(cu_seqlens), layer.rope_inv_freq,
                     layer.rope_attention_factor)
    error = np.abs(layer.k).max() * (max(map(len, sequences)) + 8) * 2.0 ** -23
    np.testing.assert_allclose(got, layer.k, rtol=0, atol=error)
    # and by the command line, from a file of keys and queries stored before RoPE
    with ActivationsWriter(tmp_path / "pre.h5", model_id="m", model_config=model.config.
                           to_json_string(), producer="", cu_seqlens=cu_seqlens) as writer:
        writer.write(2, 0, replace(layer, k=before, k_state="pre_rope"))
        writer.finish()
    assert main(["convert", str(tmp_path / "pre.h5"), "--apply-rope", "--out",
                 str(tmp_path / "post.h5")]) == 0
    with ActivationsReader(tmp_path / "post.h5") as file:
        np.testing.assert_allclose(file.layer(2).k, layer.k, rtol=0, atol=error)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_are_those_of_the_length_that_ran(tmp_path, sequences, kind):
    """Up to LIMIT tokens and above it they differ; one file cannot hold both."""
    short = [sequences[1][:40]]
    (near, *_), _ = captured_layers(tmp_path, scaled_model(kind), short)
    (far, *_), _ = captured_layers(tmp_path, scaled_model(kind), sequences[:1])
    if kind == "dynamic":
        np.testing.assert_allclose(near.rope_inv_freq, frequencies(16, 1e4), rtol=1e-6)
        length = len(sequences[0])
        base = 1e4 * (FACTOR * length / LIMIT - (FACTOR - 1)) ** (16 / 14)
        np.testing.assert_allclose(far.rope_inv_freq, frequencies(16, base), rtol=1e-5)
    else:
        for layer, name in ((near, "short_factor"), (far, "long_factor")):
            np.testing.assert_allclose(layer.rope_inv_freq * np.array(SCALED[kind][name]),
                                       frequencies(16, 1e4), rtol=1e-6)
    with pytest.raises(CaptureError, match=r"(?s)layer 0: rope_inv_freq is .*files of their own"):
        captured_layers(tmp_path, scaled_model(kind), [*short, sequences[0]])


def test_rope_of_gpt_oss_is_yarn(tmp_path, sequences):
    layers, _ = captured_layers(tmp_path, make_model("gpt_oss"), sequences)
    for layer in layers:
        assert json.loads(layer.rope_scaling)["rope_type"] == "yarn"
        assert layer.rope_inv_freq.shape == (8,) and layer.rope_attention_factor > 1


def test_frequencies_rounded_with_the_model_are_recorded(tmp_path, sequences):
    """model.to(bfloat16) rounds them, and the model rotates with what is left."""
    layers, _ = captured_layers(tmp_path, make_model("llama", torch.bfloat16), sequences)
    inv_freq = layers[0].rope_inv_freq
    assert layers[0].rope_theta is None
    np.testing.assert_array_equal(inv_freq, to_numpy(
        torch.tensor(frequencies(16, 1e4)).float().bfloat16().float()))


def other_model(name, **options):
    """A model of another family, and whether its tiny configuration could be made."""
    torch.manual_seed(SEED)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}Model")(config)


MIXED = ["sliding_attention", "full_attention"] * 2
WITHOUT_ROPE = {  # which layers have RoPE
    "cohere2": (lambda: other_model("Cohere2", **SIZES, sliding_window=WINDOW, layer_types=MIXED),
                [True, False] * 2),
    "exaone4": (lambda: make_model("exaone4"), [True, False] * 2),
    "smollm3": (lambda: make_model("smollm3"), [True, False] * 2),
    "llama4": (lambda: make_model("llama4"), [True, False] * 2),
    "gpt2": (lambda: other_model("GPT2", vocab_size=97, n_embd=64, n_layer=2, n_head=4),
             [False] * 2),
    "opt": (lambda: other_model("OPT", vocab_size=97, hidden_size=64, ffn_dim=96,
                                word_embed_proj_dim=64, num_hidden_layers=2,
                                num_attention_heads=4), [False] * 2),
    "jamba": (lambda: other_model("Jamba", vocab_size=97, hidden_size=64, intermediate_size=96,
                                  num_hidden_layers=4, num_attention_heads=4, num_experts=2,
                                  num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1,
                                  use_mamba_kernels=False), [False] * 2),
    "llama": (lambda: make_model("llama"), [True] * 4),
}


@pytest.mark.parametrize("family", WITHOUT_ROPE)
def test_layers_without_rope_say_so(tmp_path, sequences, family):
    make, expected = WITHOUT_ROPE[family]
    layers, _ = captured_layers(tmp_path, make(), sequences)
    assert [layer.q_state for layer in layers] == ["post_rope" if has else "none"
                                                   for has in expected]
    for layer in layers:
        assert layer.k_state == layer.q_state
        if layer.q_state == "none":
            assert layer.rotary_dim == 0
            assert layer.rope_theta is layer.rope_inv_freq is layer.rope_scaling is None
        else:
            assert (layer.rotary_dim, layer.rope_theta) == (
                16, transformers.Llama4TextConfig().rope_parameters["rope_theta"]
                if family == "llama4" else layer.rope_theta)


LATENT = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32,
          "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
          "pad_token_id": 0, "moe_intermediate_size": 32}


@pytest.mark.parametrize("name, options", [
    ("DeepseekV2", {"first_k_dense_replace": 2}), ("DeepseekV3", {"first_k_dense_replace": 2}),
    ("DeepseekV32", {"first_k_dense_replace": 2, "index_n_heads": 2, "index_head_dim": 16,
                     "index_topk": 8}),
    ("Glm4MoeLite", {"mlp_layer_types": ["dense"] * 2}),
    ("GlmMoeDsa", {"mlp_layer_types": ["dense"] * 2, "index_n_heads": 2, "index_head_dim": 16,
                   "index_topk": 8})])
def test_latent_attention_is_refused(tmp_path, sequences, name, options):
    """Queries, keys and values have equal sizes, so that nothing else would refuse them."""
    model = TransformersModel(other_model(name, **LATENT | options), "a-model")
    with pytest.raises(CaptureError) as error:
        capture(model, sequences, tmp_path / "a.h5", layers=[1])
    for words in ("layer 1 of a-model", f"{name}Attention has kv_lora_rank", "latent attention"):
        assert words in str(error.value)
    assert not os.listdir(tmp_path)


def test_layers_that_select_keys_are_marked(tmp_path, sequences):
    layers, _ = captured_layers(tmp_path, make_model("minimax_m3"), sequences)
    assert [layer.own_attention for layer in layers] == [None, "sparse"] * 2
    assert [layer.own_block_size for layer in layers] == [None, BLOCK] * 2
    assert [layer.own_top_k for layer in layers] == [None, TOP_K] * 2
    for family in ("qwen3", "mistral", "gemma3", "gpt_oss", "llama4"):
        layers, _ = captured_layers(tmp_path, make_model(family), sequences)
        assert [layer.own_attention for layer in layers] == [None] * 4


def test_a_mask_that_hides_more_than_the_window_marks_the_layer(tmp_path, sequences):
    model = make_model("gemma3")

    def hide(_, args, kwargs):
        mask = torch.ones(kwargs["hidden_states"].shape[1], dtype=torch.bool).diag()
        return args, kwargs | {"attention_mask": mask[None, None]}

    module = model.model.layers[1].self_attn
    with_mask = module.register_forward_pre_hook(hide, with_kwargs=True)
    layers, _ = captured_layers(tmp_path, model, sequences)
    with_mask.remove()
    assert [layer.own_attention for layer in layers] == [None, "sparse", None, None]


@needs_programs
def test_programs_read_what_is_recorded(tmp_path, sequences):
    for model in (scaled_model("llama3"), make_model("minimax_m3"), make_model("smollm3")):
        captured_layers(tmp_path, model, sequences)
        run_program("msa-inspect", tmp_path / "a.h5", "--stats")
        run_program("msa-analyze", tmp_path / "a.h5", "--out", tmp_path / "r", "--overwrite",
                    "--block-size", BLOCK, "--top-k", TOP_K)


@pytest.mark.parametrize("model, words", [
    (lambda: other_model("Mpt", vocab_size=97, d_model=64, n_layers=2, n_heads=4),
     "no layer of MptModel attends through transformers' attention interface"),
    (lambda: other_model("ViT", hidden_size=64, num_hidden_layers=1, num_attention_heads=4),
     "does not run on token ids alone")])
def test_models_outside_the_interface_are_sent_to_the_adapter(model, words):
    with pytest.raises(CaptureError) as error:
        TransformersModel(model())
    for word in (words, "ModuleAdapter", "python/README.md"):
        assert word in str(error.value)


@pytest.fixture
def folder(tmp_path):
    make_model("qwen3").save_pretrained(tmp_path / "model")
    np.save(tmp_path / "t.npy", np.arange(3, 40))
    return ["capture", str(tmp_path / "model"), "--tokens", str(tmp_path / "t.npy"), "--out",
            str(tmp_path / "a.h5")]


@pytest.mark.parametrize("device", ["foo", "cuda:99", "meta"])
def test_a_device_that_cannot_be_used_is_named(folder, tmp_path, capsys, device):
    assert main([*folder, "--device", device]) == 2
    assert f"error: device {device} cannot be used: " in capsys.readouterr().err
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("option, value, words", [
    ("--attention", "no_such_kernel", "cannot be loaded"),
    ("--attention", "flash_attention_2", "cannot be loaded")])
def test_what_cannot_be_loaded_is_named(folder, capsys, option, value, words):
    assert main([*folder, option, value]) == 2
    assert words in capsys.readouterr().err


def test_damaged_models_are_named(folder, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    weights = tmp_path / "model/model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, weights, {"format": "pt"})
    assert main(folder) == 2
    error = capsys.readouterr().err
    assert "1 weights are missing" in error and "layers.1.self_attn.k_proj.weight" in error
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(folder) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    (tmp_path / "model/config.json").write_text('{"model_type": 5}')
    assert main(folder) == 2
    assert "cannot be loaded" in capsys.readouterr().err


def test_loading_a_language_model_makes_no_report(folder, caplog):
    """Of its head, which is in the file and not in the decoder."""
    transformers.AutoModel.from_pretrained(folder[1])
    assert "LOAD REPORT" in caplog.text
    caplog.clear()
    assert main(folder) == 0
    assert "LOAD REPORT" not in caplog.text


@pytest.mark.parametrize("interleaved, theta", [(True, 1e4), (False, 1e4), (True, 5e5)])
def test_rope_without_a_buffer_of_frequencies_is_measured(interleaved, theta):
    """As GPT-J's, which makes cosine and sine itself."""
    at_zero = np.random.default_rng(2).standard_normal((4, 16)).astype(np.float32)
    here = apply_rope(at_zero[None], np.ones(1), frequencies(8, theta), 1, interleaved)[0]
    heads = np.zeros((1, 4, 16), np.float32)
    for parameters, known in (({"rope_theta": theta}, True), ({}, theta == 1e4),
                              ({"rope_theta": 2e4}, False)):
        layer = Layer(heads, heads, heads, 1.0)
        describe(layer, None, parameters, Turned(8, here, at_zero))
        expected = (8, theta, "interleaved" if interleaved else None) if known else (None,) * 3
        assert (layer.rotary_dim, layer.rope_theta, layer.rope_layout) == expected


def test_gptj_is_captured_with_its_rope_or_refused(tmp_path):
    """Since transformers 5.24 it attends through the interface."""
    torch.manual_seed(1)
    model = transformers.GPTJModel(transformers.GPTJConfig(
        vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8,
        bos_token_id=1, eos_token_id=2)).eval()
    try:
        captured = TransformersModel(model)
    except CaptureError as error:
        assert "attends through transformers' attention interface" in str(error)
        return
    capture(captured, [range(40)], tmp_path / "gptj.h5")
    with ActivationsReader(tmp_path / "gptj.h5") as file:
        found = file.layer(1)
    assert (found.rotary_dim, found.rope_theta, found.rope_layout) == (8, 1e4, "interleaved")


def make_zamba2(**changes):
    """Its attention modules are told at each call which layer they are of."""
    torch.manual_seed(1)
    return transformers.Zamba2Model(transformers.Zamba2Config(**{
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
        "attention_head_dim": 32, "intermediate_size": 48, "mamba_d_state": 8, "mamba_headdim": 16, "n_mamba_heads": 4,
        "mamba_ngroups": 1, "hybrid_layer_ids": [1, 3], "layer_types": ["mamba", "hybrid"] * 2, "use_mem_rope": True,
        "num_mem_blocks": 1} | changes)).eval()


def test_modules_that_are_told_their_layer_have_its_number(tmp_path):
    model, tokens = make_zamba2(), np.arange(40)
    layers, cu_seqlens = captured_layers(tmp_path, model, [tokens])
    modules = {number: model.layers[number].shared_transformer.self_attn for number in (1, 3)}
    outputs, _ = own_answers(model, modules, [tokens])
    assert len(layers) == 2
    for layer, expected in zip(layers, outputs.values()):
        assert (layer.rope_theta, layer.rotary_dim) == (1e4, 32)
        assert np.abs(attention(layer, cu_seqlens) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_module_of_several_layers_has_no_number():
    model = make_zamba2()
    model.layers[3].shared_transformer = model.layers[1].shared_transformer
    with pytest.raises(CaptureError, match="Zamba2Attention has layer_idx -1, which is no number"):
        TransformersModel(model)