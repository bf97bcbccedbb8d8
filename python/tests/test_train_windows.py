# SPDX-License-Identifier: MIT
"""msalab train on models some of whose layers have a sliding window: these keep it, the others become sparse."""

import json

import numpy as np
import pytest
from test_train import ALL, CONTEXT, SIZES, attached, gradients, rows_of, tiny, torch, train, transformers  # noqa: F401
from test_train import assert_first_loss, assert_losses_of_the_cpu, first_batch, needs_gpu, values_of  # noqa: F401

import msalab.transformers as mt
from msalab.training import attention as attentions

WINDOW = 20
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
KINDS = {
    "Gemma3Text": MIXED | {"query_pre_attn_scalar": 16},
    "GptOss": MIXED | {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False,
                       "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Ministral": MIXED,
}


def make(kind):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | KINDS[kind])
    how = {"experts_implementation": "eager"} if kind == "GptOss" else {}  # the grouped one has no float64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", **how).float()
    for name, one in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(one)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_with_all_blocks_gradients_are_those_of_the_model_itself(kind):
    """Of windows and of sinks, too: no farther from those in double precision than four times the model's own."""
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 256, CONTEXT))
    exact = gradients(make(kind).double(), None, tokens)
    own = gradients(make(kind), None, tokens)
    model = make(kind)
    attention = attached(model, "msa", ALL)
    assert [layer.window for layer in attention.layers] == [WINDOW, None]
    assert [layer.selects for layer in attention.layers] == [False, True]
    found = gradients(model, attention, tokens)
    for name, one in exact.items():
        assert (found[name] - one).norm() <= 4 * (own[name] - one).norm() + 1e-9, name
    attention.layers[0].window = WINDOW - 1  # another window is not within
    other = gradients(model, attention, tokens)
    assert any((other[name] - one).norm() > 100 * (own[name] - one).norm() + 1e-6 for name, one in exact.items())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("at_once", [1024, 7])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_query_sees_its_window_and_its_document(monkeypatch, at_once, with_sinks, device):
    monkeypatch.setattr(attentions, "AT_ONCE", at_once)
    torch.manual_seed(0)
    cu, window = [0, 1, 6, 40, 64], 9
    q, k, v = (torch.randn(64, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    sinks = torch.randn(4, requires_grad=True) if with_sinks else None
    given = (None if one is None else one.to(device) for one in (q, k, v, sinks))
    found = attentions.in_window(*(next(given) for _ in "qkv"), window, cu, softmax_scale=0.3, sinks=next(given)).cpu()
    document = torch.bucketize(torch.arange(64), torch.tensor(cu[1:]), right=True)
    behind = torch.arange(64)[:, None] - torch.arange(64)
    seen = (document[:, None] == document) & (behind >= 0) & (behind < window)
    q2, k2, v2 = (one.detach().double().requires_grad_() for one in (q, k, v))
    logits = torch.einsum("qhd,khd->hqk", q2, k2.repeat_interleave(2, 1)) * 0.3
    logits = logits.masked_fill(~seen, float("-inf"))
    if with_sinks:
        sinks2 = sinks.detach().double().requires_grad_()
        logits = torch.cat([logits, sinks2[:, None, None].expand(-1, 64, 1)], -1)
    expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1)[..., :64], v2.repeat_interleave(2, 1))
    assert torch.allclose(found.double(), expected, atol=1e-6 if device == "cpu" else 1e-5)
    along = torch.randn_like(found)
    (found * along).sum().backward()
    (expected * along).sum().backward()
    for one, other in ((q, q2), (k, k2), (v, v2), *([(sinks, sinks2)] if with_sinks else [])):
        assert torch.allclose(one.grad.double(), other.grad, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_model_that_runs_the_folder(tiny, tmp_path, kind, capsys):  # noqa: F811
    """As in test_train.py; the documents of a row are apart in windows as well."""
    make(kind).save_pretrained(tiny / kind)
    rates = ["--lr", 1e-30, "--index-lr", 1e-30]
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0, *rates, model=kind) == 0
    assert "note: layers [0] have a sliding window, which they keep" in capsys.readouterr().err
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a/model")
    assert json.loads((tmp_path / "a/model/config.json").read_text())["layer_types"] == MIXED["layer_types"]
    mt.register()
    mt.configure(model, indexer=tmp_path / "a/model")
    model.set_attn_implementation(mt.NAME)
    tokens, cu, _ = first_batch(tiny)
    assert max(np.diff(cu)) > WINDOW
    assert_first_loss(tmp_path / "a", model, tokens, cu)


@pytest.mark.parametrize("how", [[], ["--compile"], ["--checkpointing"]])
def test_a_windowed_model_learns(tiny, tmp_path, how, monkeypatch):  # noqa: F811
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="eager"))  # compiles no kernels
    make("Gemma3Text").save_pretrained(tiny / "gemma")
    assert train(tiny, tmp_path / "a", "--steps", 12, "--warmup-steps", 2, "--log-every", 1, *how, model="gemma") == 0
    loss = values_of(tmp_path / "a", "loss")
    assert loss[-1] < loss[0] - 0.5
    assert values_of(tmp_path / "a", "kl_loss", "1") and not values_of(tmp_path / "a", "kl_loss", "0")


@needs_gpu
def test_on_a_gpu_the_losses_are_those_of_the_cpu(tiny, tmp_path):  # noqa: F811
    make("Ministral").save_pretrained(tiny / "ministral")
    assert_losses_of_the_cpu(tiny, tmp_path, "ministral")


def test_a_model_of_windows_alone_has_nothing_to_select(tiny, tmp_path, capsys):  # noqa: F811
    config = transformers.MistralConfig(**SIZES | {"sliding_window": 40})
    transformers.MistralForCausalLM(config).save_pretrained(tiny / "windows")
    assert train(tiny, tmp_path / "a", model="windows") == 2
    assert "no layer is left to select: each is in --dense-layers or has a sliding window" in capsys.readouterr().err
    assert train(tiny, tmp_path / "a", "--attention", "dense", "--steps", 1, model="windows") == 0
