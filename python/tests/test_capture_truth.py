# SPDX-License-Identifier: MIT
"""A tiny random Gemma 3, one layer with a window and one without, beside its formulas in float64, written here with
numpy alone: what is captured, and every number that msa-analyze makes of it. Needs PyTorch and transformers."""

import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: requirements-capture.txt")

from test_capture_models import BIN, needs_programs  # noqa: E402

from msalab.capture import TransformersModel, capture  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402

TOKENS, WINDOW, BLOCK, K, DIM, HEADS, SCALAR, EPS = 160, 40, 8, 4, 32, 4, 20, 1e-6
THETA = {"sliding_attention": 1e4, "full_attention": 1e6}
CONFIG = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": DIM,
          "num_attention_heads": HEADS, "num_key_value_heads": 1, "query_pre_attn_scalar": SCALAR, "rms_norm_eps": EPS,
          "sliding_window": WINDOW, "layer_types": list(THETA), "initializer_range": 0.3,
          "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in THETA.items()}}
AT = np.arange(TOKENS)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    made = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**CONFIG)).eval()
    for name, one in made.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(one, std=0.3)
    return made


@pytest.fixture(scope="module")
def captured(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "a.h5"
    capture(TransformersModel(model), [AT * 31 % 97], path)
    return path


def norm(x, weight):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + EPS) * (1 + weight)


def turned(x, theta):
    angle = AT[:, None, None] * theta ** (-np.arange(0, DIM, 2) / DIM)
    first, second = x[..., :DIM // 2], x[..., DIM // 2:]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                           second * np.cos(angle) + first * np.sin(angle)], -1)


def seen(layer):
    behind = AT[:, None] - AT
    return (behind >= 0) & (behind < (WINDOW if layer == 0 else TOKENS))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attended(q, k, where):
    """Probabilities [H, N, N]."""
    return softmax(np.where(where, np.einsum("qhd,kd->hqk", q, k) * SCALAR ** -0.5, -np.inf))


def forward(model):
    """Layer -> x, q, k, v."""
    weights = {name.removeprefix("model."): one.detach().double().numpy() for name, one in model.state_dict().items()}
    # transformers rounds this factor to the type of the weights.
    hidden = weights["embed_tokens.weight"][AT * 31 % 97] * float(np.float32(CONFIG["hidden_size"] ** 0.5))
    made = {}
    for layer, theta in enumerate(THETA.values()):
        def of(name, layer=layer):
            return weights[f"layers.{layer}.{name}.weight"]

        x = norm(hidden, of("input_layernorm"))
        q, k, v = ((x @ of(f"self_attn.{side}_proj").T).reshape(TOKENS, -1, DIM) for side in "qkv")
        q, k = (turned(norm(one, of(f"self_attn.{side}_norm")), theta) for side, one in (("q", q), ("k", k)))
        made[layer] = x, q, k, v
        heads = np.einsum("hqk,kd->qhd", attended(q, k[:, 0], seen(layer)), v[:, 0])
        out = heads.reshape(TOKENS, -1) @ of("self_attn.o_proj").T
        hidden = hidden + norm(out, of("post_attention_layernorm"))
        x = norm(hidden, of("pre_feedforward_layernorm"))
        gate = x @ of("mlp.gate_proj").T
        gelu = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
        out = (gelu * (x @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
        hidden = hidden + norm(out, of("post_feedforward_layernorm"))
    return made


def test_what_is_captured_is_what_the_formulas_give(model, captured):
    with ActivationsReader(captured) as file:
        for layer, own in forward(model).items():
            found = file.layer(layer)
            assert found.sliding_window == (WINDOW if layer == 0 else None)
            assert found.softmax_scale == pytest.approx(SCALAR ** -0.5)
            for name, one in zip("xqkv", own):
                error = np.linalg.norm(getattr(found, name) - one) / np.linalg.norm(one)
                assert error < 1e-5, (layer, name, error)  # float32, two layers


def chosen(scores):
    """The K best of the blocks that a query sees, its own among them: bool [N, B]."""
    own, blocks = AT // BLOCK, np.arange(TOKENS // BLOCK)
    scores = np.where(blocks > own[:, None], -np.inf, scores)
    scores[AT, own] = np.inf
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return ((blocks[:, None] == best[:, None]).any(-1)) & (blocks <= own[:, None])


def entropy(weights):
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean()


def measured(layer, q, k, v):
    """Selector or "dense" -> the metrics of results.h5, means over its heads."""
    dense = attended(q, k, seen(layer))
    blocks = TOKENS // BLOCK
    mass = dense.reshape(HEADS, TOKENS, blocks, BLOCK).sum(-1).mean(0)
    counted, best = AT // BLOCK + 1 > K, chosen(mass)
    newest = np.tile(np.arange(blocks, dtype=float), (TOKENS, 1))
    newest[:, 0] = np.inf  # window keeps the first block
    scores = {"oracle": mass, "window": newest, "mean-key": q.sum(1) @ k.reshape(blocks, BLOCK, DIM).mean(1).T}
    found = {"dense": {"sink_mass": dense[:, counted, 0].mean(), "entropy": entropy(dense)}}
    full = np.einsum("hqk,kd->qhd", dense, v)
    for name, score in scores.items():
        ids = chosen(score)
        sparse = attended(q, k, np.repeat(ids, BLOCK, 1) & seen(layer))
        lost = np.einsum("hqk,kd->qhd", sparse, v) - full
        size = [np.sqrt((one[counted] ** 2).sum((0, 2))) for one in (lost, full)]
        found[name] = {
            "block_recall": ((ids & best).sum(1) / best.sum(1))[counted].mean(),
            "score_recall": ((mass * (ids & best)).sum(1) / (mass * best).sum(1))[counted].mean(),
            "mass_kept": (mass * ids).sum(1)[counted].mean(), "oracle_mass": (mass * best).sum(1)[counted].mean(),
            "output_error": (size[0] / size[1]).mean(), "sink_mass_sparse": sparse[:, counted, 0].mean(),
            "entropy_sparse": entropy(sparse)}
    return found


@needs_programs
@pytest.mark.parametrize("layer", [0, 1])
def test_every_number_of_an_analysis_is_what_the_formulas_give(captured, tmp_path, layer):
    subprocess.run([BIN / "msa-analyze", captured, "--out", tmp_path / "out", "--layers", str(layer), "--block-size",
                    str(BLOCK), "--top-k", str(K), "--selectors", "oracle,mean-key,window", "--sample-queries", "0"],
                   check=True, capture_output=True)
    with ActivationsReader(captured) as file:
        of = file.layer(layer)
    expected = measured(layer, *(getattr(of, name).astype(float)[:, slice(None) if name == "q" else 0]
                                 for name in "qkv"))
    with h5py.File(tmp_path / "out/results.h5") as file:
        assert file["metrics"].keys() == expected.keys()
        for selector, metrics in expected.items():
            for name, value in metrics.items():
                found = file[f"metrics/{selector}/{layer}/{name}"][:].mean()
                assert found == pytest.approx(value, rel=2e-5, abs=2e-6), (selector, name)
