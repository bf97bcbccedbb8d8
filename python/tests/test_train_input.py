# SPDX-License-Identifier: MIT
"""What msalab train refuses of options, texts and models, before the first step; and that no document of a row sees
another one, whatever kinds of layers the model has."""

import json
from argparse import Namespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_train import BLOCK, CONTEXT, SIZES, make_model, tiny, torch, train, transformers  # noqa: F401

from msalab import selectors
from msalab.capture.layer import CaptureError
from msalab.training import attention as attentions
from msalab.training import learner
from msalab.training import run as running

HYBRID = {"hidden_size": 64, "tie_word_embeddings": False}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16,
         "mamba_chunk_size": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {"num_hidden_layers": 4, "hybrid_layer_ids": [1, 3], "layer_types": ["mamba", "hybrid"] * 2}
MODELS = {
    "Qwen3Next": LINEAR | EXPERTS | {"shared_expert_intermediate_size": 16},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Bamba": MAMBA | {"attn_layer_indices": [1]},
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "use_mamba_kernels": False},
    "FalconH1": MAMBA | {"mamba_d_ssm": 128},
    "Zamba2": {"mamba_d_state": 16, "mamba_headdim": 16, "n_mamba_heads": 8, "mamba_ngroups": 1, "attention_head_dim": 32,
               "use_mem_rope": True, "num_mem_blocks": 1, "pad_token_id": 0, **SHARED},
    "MiniMax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4, "block_size": 16},
}


def make_hybrid(kind):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | HYBRID | MODELS[kind])
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def attached(model):
    options = Namespace(dense_layers=[], attention="dense")
    attention = attentions.Attention("dense", selectors.Rule(BLOCK, 3), frozenset(), True)
    attentions.attach(*attentions.trainable(model, options)[:2], model, attention, {})
    return attention


@pytest.mark.parametrize("kind", MODELS)
def test_documents_of_a_row_have_the_loss_and_gradients_that_they_have_alone(kind):
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 256, 41))
    model, cu = make_hybrid(kind), [0, 9, 10, 30, 41]
    alone = 0.0
    for begin, end in zip(cu, cu[1:]):
        if end - begin > 1:
            logits = model(tokens[None, begin:end], use_cache=False).logits[0, :-1]
            alone = alone + torch.nn.functional.cross_entropy(logits, tokens[begin + 1:end], reduction="sum")
    alone.backward()
    own = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    attention = attached(model)
    attentions.check_documents(model, attention)
    positions = torch.cat([torch.arange(end - begin) for begin, end in zip(cu, cu[1:])])
    attention.begin(cu, positions, False)
    logits = model(tokens[None], position_ids=positions[None], use_cache=False).logits[0]
    targets = torch.cat([torch.cat([tokens[begin + 1:end], torch.tensor([-100])]) for begin, end in zip(cu, cu[1:])])
    packed = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    packed.backward()
    assert float(packed.detach()) == pytest.approx(float(alone.detach()), rel=1e-5)
    for name, one in model.named_parameters():
        if name in own:
            assert (one.grad - own[name]).norm() <= 1e-3 * own[name].norm() + 1e-5, name


def test_a_model_that_mixes_documents_is_refused_by_name(monkeypatch):
    model = make_hybrid("Lfm2")
    monkeypatch.setattr(attentions, "_carriers", lambda *_: [])
    with pytest.raises(CaptureError, match="Lfm2ForCausalLM carries state from one document of a row to the next"):
        attentions.check_documents(model, attached(model))


def test_a_hybrid_model_is_trained_by_any_number_of_rows(tiny, tmp_path):  # noqa: F811
    make_hybrid("Lfm2").save_pretrained(tiny / "hybrid")
    how = ["--steps", 2, "--warmup-steps", 0, "--log-every", 1]
    losses = []
    for rows in (1, 2):
        assert train(tiny, tmp_path / str(rows), *how, "--rows", rows, model="hybrid") == 0
        lines = (tmp_path / str(rows) / "curves.csv").read_text().splitlines()
        losses.append([float(line.split(",")[4]) for line in lines if ",loss,," in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("words, why", [
    (["--weight-decay", "nan"], "--weight-decay is nan, must be a number of at least 0"),
    (["--weight-decay", "-1"], "--weight-decay is -1.0, must be a number of at least 0"),
    (["--weight-decay", "inf"], "--weight-decay is inf, must be"),
    (["--kl-weight", "inf"], "--kl-weight is inf, must be"),
    (["--kl-weight", "nan"], "--kl-weight is nan, must be"),
    (["--top-k", 99999999999, "--steps", 1, "--warmup-steps", 0], "error: "),
    (["--top-k", 10 ** 20, "--steps", 1, "--warmup-steps", 0], "error: ")])
def test_numbers_that_will_not_do_are_named(tiny, tmp_path, capsys, words, why):  # noqa: F811
    assert train(tiny, tmp_path / "a", *words) == 2
    assert why in capsys.readouterr().err


JSONL = {"bytes": b'{"text": "good"}\n{"text": "\xff"}\n', "surrogate": b'{"text": "good"}\n{"text": "\\ud800"}\n',
         "nested": b'{"text": "good"}\n' + b"[" * 300000 + b"\n"}


@pytest.mark.parametrize("kind", JSONL)
def test_lines_that_hold_no_text_are_named(tiny, tmp_path, capsys, kind):  # noqa: F811
    (tiny / f"{kind}.jsonl").write_bytes(JSONL[kind])
    assert train(tiny, tmp_path / "a", text=f"{kind}.jsonl") == 2
    assert f'{kind}.jsonl: line 2 must be an object with a string "text": ' in capsys.readouterr().err


@pytest.mark.parametrize("dtype, value", [("int64", 2 ** 32 + 5), ("int64", -5), ("int64", -100), ("int64", 2 ** 31),
                                          ("uint64", 2 ** 64 - 1), ("int32", -1), ("uint32", 2 ** 32 - 1)])
def test_tokens_beyond_their_range_are_named_with_their_place(tiny, tmp_path, capsys, dtype, value):  # noqa: F811
    tokens = np.arange(4 * CONTEXT).astype(dtype) % 200
    tokens[70] = value
    save_file({"tokens": tokens, "begins": np.array([0, 50])}, tiny / "ids.safetensors")
    assert train(tiny, tmp_path / "a", text="ids.safetensors") == 2
    assert f"ids.safetensors: token 70 is {value}, must be from 0 to {2 ** 31 - 1}" in capsys.readouterr().err


def test_begins_that_are_no_integers_are_named(tiny, tmp_path, capsys):  # noqa: F811
    save_file({"tokens": np.arange(256), "begins": np.array([0, 50.5])}, tiny / "floats.safetensors")
    assert train(tiny, tmp_path / "a", text="floats.safetensors") == 2
    assert "begins must be integers" in capsys.readouterr().err


def test_a_text_without_a_target_is_refused(tiny, tmp_path, capsys):  # noqa: F811
    (tiny / "letters.txt").write_text("\0".join("abcd" * CONTEXT))
    assert train(tiny, tmp_path / "a", text="letters.txt") == 2
    assert "each document of the text has one token: there is none to foretell" in capsys.readouterr().err


def test_what_the_configuration_says_is_refused_before_a_weight_is_read(tiny, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(running, "load", lambda *_: pytest.fail("weights are read"))
    for name, config, why in (
            ("mistral", transformers.MistralConfig(**SIZES | {"sliding_window": 40}), "no layer is left to select"),
            ("mamba", transformers.Mamba2Config(vocab_size=256, hidden_size=64, num_heads=8, head_dim=16,
                                                num_hidden_layers=1), "no layer of Mamba2ForCausalLM attends")):
        config.save_pretrained(tiny / name)
        assert train(tiny, tmp_path / "a", model=name) == 2
        assert why in capsys.readouterr().err
    make_model().save_pretrained(tiny / "lora")
    (tiny / "lora/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    assert train(tiny, tmp_path / "a", model="lora") == 2
    assert "lora: is an adapter (LoRA), and no whole model: merge it first" in capsys.readouterr().err


def test_attention_that_gets_its_mask_by_name_is_trained():
    torch.manual_seed(0)
    of = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1,
          "layer_types": ["full_attention"] * 2}
    model = transformers.AfmoeForCausalLM(transformers.AfmoeConfig(**SIZES | of)).eval()
    attentions.check_documents(model, attached(model))


def test_a_model_whose_get_decoder_is_no_decoder_is_refused_by_name(tiny, tmp_path, capsys):  # noqa: F811
    of = {"global_rope_theta": 1e4, "layer_types": ["full_attention"] * 2, "pad_token_id": 0}
    transformers.ModernBertDecoderForCausalLM(transformers.ModernBertDecoderConfig(**SIZES | HYBRID | of)).save_pretrained(
        tiny / "modern")
    assert train(tiny, tmp_path / "a", model="modern") == 2
    said = capsys.readouterr().err
    assert "ModernBertDecoderForCausalLM changes the logits of its language head" in said


def test_weights_that_are_no_numbers_are_told_by_the_first_step(tiny, tmp_path, capsys):  # noqa: F811
    model = make_model()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tiny / "nan")
    assert train(tiny, tmp_path / "a", model="nan") == 3
    assert "step 0: the loss is nan" in capsys.readouterr().err
    assert not list((tmp_path / "a").iterdir())


def test_layers_that_share_weights_are_trained_together(tiny, tmp_path, monkeypatch):  # noqa: F811
    make_hybrid("Zamba2").save_pretrained(tiny / "zamba2")
    for name, unit in (("whole", learner.UNIT), ("apart", 1)):
        monkeypatch.setattr(learner, "UNIT", unit)
        assert train(tiny, tmp_path / name, "--steps", 2, "--warmup-steps", 1, model="zamba2") == 0
    own, made = (load_file(folder / "model.safetensors") for folder in (tiny / "zamba2", tmp_path / "whole/model"))
    assert own.keys() == made.keys()
    name = "layers.1.shared_transformer.self_attn.q_proj.weight"
    assert not np.array_equal(own[f"model.{name}"], made[f"model.{name}"])
    branches = load_file(tmp_path / "whole/model/indexer.safetensors")
    assert {key.split(".")[2] for key in branches} == {"1", "3"}
    for file in ("model.safetensors", "indexer.safetensors"):
        assert (tmp_path / "whole/model" / file).read_bytes() == (tmp_path / "apart/model" / file).read_bytes()
