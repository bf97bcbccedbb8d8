# SPDX-License-Identifier: MIT
"""Tiny random models of three kinds beside their formulas in float64, written here with numpy alone: what is captured, and
every number that msa-analyze makes of it. Gemma 3 has a layer with a window and one without, and one group of heads;
SmolLM2's kind (Llama) and Qwen2.5's have several groups, and the latter biases. Needs PyTorch and transformers."""

import subprocess
from dataclasses import dataclass

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: requirements-capture.txt")

from test_capture_models import BIN, needs_programs  # noqa: E402

from msalab.capture import TransformersModel, capture  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402

TOKENS, WINDOW, BLOCK, K, DIM, SCALAR, EPS = 160, 40, 8, 4, 32, 20, 1e-6
AT = np.arange(TOKENS)
SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": DIM,
         "rms_norm_eps": EPS, "initializer_range": 0.3}


@dataclass(frozen=True)
class Kind:
    """What the formulas need. is_gemma: its norms, scales and activation."""

    config: str
    model: str
    heads: int
    groups: int
    more: dict
    thetas: tuple
    windows: tuple = (None, None)
    scale: float = DIM ** -0.5
    is_gemma: bool = False

    def make(self):
        torch.manual_seed(5)
        config = getattr(transformers, self.config)(
            **SIZES, num_attention_heads=self.heads, num_key_value_heads=self.groups, **self.more)
        made = getattr(transformers, self.model)(config).eval()
        for name, one in made.named_parameters():
            if name.endswith(("norm.weight", "proj.bias")):  # of ones or zeros, which would hide errors
                torch.nn.init.normal_(one, one.mean().item(), 0.3)
        return made


def rope(theta):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


GEMMA_THETA = {"sliding_attention": 1e4, "full_attention": 1e6}
KINDS = {
    "gemma3": Kind("Gemma3TextConfig", "Gemma3ForCausalLM", 4, 1,
                   {"query_pre_attn_scalar": SCALAR, "sliding_window": WINDOW, "layer_types": list(GEMMA_THETA),
                    "rope_parameters": {kind: rope(theta)["rope_parameters"] for kind, theta in GEMMA_THETA.items()}},
                   tuple(GEMMA_THETA.values()), (WINDOW, None), SCALAR ** -0.5, True),
    "smollm2": Kind("LlamaConfig", "LlamaForCausalLM", 6, 3, rope(1e5) | {"tie_word_embeddings": True}, (1e5, 1e5)),
    "qwen": Kind("Qwen2Config", "Qwen2ForCausalLM", 6, 2, rope(1e6) | {"tie_word_embeddings": True}, (1e6, 1e6)),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def model(kind):
    return kind.make()


@pytest.fixture(scope="module")
def captured(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "a.h5"
    capture(TransformersModel(model), [AT * 31 % 97], path)
    return path


def norm(kind, x, weight):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + EPS) * (kind.is_gemma + weight)


def turned(x, theta):
    angle = AT[:, None, None] * theta ** (-np.arange(0, DIM, 2) / DIM)
    first, second = x[..., :DIM // 2], x[..., DIM // 2:]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                           second * np.cos(angle) + first * np.sin(angle)], -1)


def activated(kind, gate):
    if kind.is_gemma:
        return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
    return gate / (1 + np.exp(-gate))


def seen(kind, layer):
    behind = AT[:, None] - AT
    return (behind >= 0) & (behind < (kind.windows[layer] or TOKENS))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def of_heads(kind, of_groups):
    """Each group's for each of its heads: the first axis."""
    return np.repeat(of_groups, kind.heads // kind.groups, 0)


def attended(kind, q, k, where):
    """Probabilities [H, N, N]. where: of all heads, or of each."""
    return softmax(np.where(where, np.einsum("qhd,hkd->hqk", q, of_heads(kind, k.swapaxes(0, 1))) * kind.scale, -np.inf))


def weighted(kind, weights, v):
    return np.einsum("hqk,hkd->qhd", weights, of_heads(kind, v.swapaxes(0, 1)))


def forward(kind, model):
    """Layer -> x, q, k, v."""
    weights = {name.removeprefix("model."): one.detach().double().numpy() for name, one in model.state_dict().items()}
    hidden = weights["embed_tokens.weight"][AT * 31 % 97]
    if kind.is_gemma:  # transformers rounds this factor to the type of the weights
        hidden = hidden * float(np.float32(SIZES["hidden_size"] ** 0.5))
    made = {}
    for layer, theta in enumerate(kind.thetas):
        def of(name, layer=layer):
            return weights[f"layers.{layer}.{name}.weight"]

        def normed(one, name, layer=layer):
            return norm(kind, one, of(name, layer))

        x = normed(hidden, "input_layernorm")
        q, k, v = ((x @ of(f"self_attn.{side}_proj").T + weights.get(f"layers.{layer}.self_attn.{side}_proj.bias", 0))
                   .reshape(TOKENS, -1, DIM) for side in "qkv")
        if kind.is_gemma:
            q, k = (normed(one, f"self_attn.{side}_norm") for side, one in (("q", q), ("k", k)))
        q, k = turned(q, theta), turned(k, theta)
        made[layer] = x, q, k, v
        out = weighted(kind, attended(kind, q, k, seen(kind, layer)), v).reshape(TOKENS, -1) @ of("self_attn.o_proj").T
        hidden = hidden + (normed(out, "post_attention_layernorm") if kind.is_gemma else out)
        x = normed(hidden, "pre_feedforward_layernorm" if kind.is_gemma else "post_attention_layernorm")
        out = (activated(kind, x @ of("mlp.gate_proj").T) * (x @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
        hidden = hidden + (normed(out, "post_feedforward_layernorm") if kind.is_gemma else out)
    return made


def test_what_is_captured_is_what_the_formulas_give(kind, model, captured):
    with ActivationsReader(captured) as file:
        for layer, own in forward(kind, model).items():
            found = file.layer(layer)
            assert found.sliding_window == kind.windows[layer]
            assert found.softmax_scale == pytest.approx(kind.scale)
            for name, one in zip("xqkv", own):
                error = np.linalg.norm(getattr(found, name) - one) / np.linalg.norm(one)
                assert error < 1e-5, (layer, name, error)  # float32, two layers


def chosen(scores):
    """Of each group, the K best of the blocks that a query sees, its own among them: bool [G, N, B]."""
    own, blocks = AT // BLOCK, np.arange(TOKENS // BLOCK)
    scores = np.where(blocks > own[:, None], -np.inf, scores)
    scores[:, AT, own] = np.inf
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :K]
    return (blocks[:, None] == best[..., None, :]).any(-1) & (blocks <= own[:, None])


def entropy(weights):
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean()


def measured(kind, layer, q, k, v):
    """Selector or "dense" -> the metrics of results.h5, means over its groups or heads."""
    where, blocks = seen(kind, layer), TOKENS // BLOCK
    dense = attended(kind, q, k, where)
    mass = dense.reshape(kind.groups, -1, TOKENS, blocks, BLOCK).sum(-1).mean(1)
    counted, best = AT // BLOCK + 1 > K, chosen(mass)
    newest = np.tile(np.arange(blocks, dtype=float), (kind.groups, TOKENS, 1))
    newest[:, :, 0] = np.inf  # window keeps the first block
    mean_key = np.einsum("qgd,bgd->gqb", q.reshape(TOKENS, kind.groups, -1, DIM).sum(2),
                         k.reshape(blocks, BLOCK, kind.groups, DIM).mean(1))
    found = {"dense": {"sink_mass": dense[:, counted, 0].mean(), "entropy": entropy(dense)}}
    full = weighted(kind, dense, v)
    for name, score in {"oracle": mass, "window": newest, "mean-key": mean_key}.items():
        ids = chosen(score)
        sparse = attended(kind, q, k, of_heads(kind, np.repeat(ids, BLOCK, -1)) & where)
        lost = weighted(kind, sparse, v) - full
        size = [np.sqrt((one[counted] ** 2).sum((0, 2))) for one in (lost, full)]
        found[name] = {
            "block_recall": ((ids & best).sum(-1) / best.sum(-1))[:, counted].mean(),
            "score_recall": ((mass * (ids & best)).sum(-1) / (mass * best).sum(-1))[:, counted].mean(),
            "mass_kept": (mass * ids).sum(-1)[:, counted].mean(), "oracle_mass": (mass * best).sum(-1)[:, counted].mean(),
            "output_error": (size[0] / size[1]).mean(), "sink_mass_sparse": sparse[:, counted, 0].mean(),
            "entropy_sparse": entropy(sparse)}
    return found


@needs_programs
@pytest.mark.parametrize("layer", [0, 1])
def test_every_number_of_an_analysis_is_what_the_formulas_give(kind, captured, tmp_path, layer):
    subprocess.run([BIN / "msa-analyze", captured, "--out", tmp_path / "out", "--layers", str(layer), "--block-size",
                    str(BLOCK), "--top-k", str(K), "--selectors", "oracle,mean-key,window", "--sample-queries", "0"],
                   check=True, capture_output=True)
    with ActivationsReader(captured) as file:
        of = file.layer(layer)
    expected = measured(kind, layer, *(getattr(of, name).astype(float) for name in "qkv"))
    with h5py.File(tmp_path / "out/results.h5") as file:
        assert file["metrics"].keys() == expected.keys()
        for selector, metrics in expected.items():
            for name, value in metrics.items():
                found = file[f"metrics/{selector}/{layer}/{name}"][:].mean()
                assert found == pytest.approx(value, rel=2e-5, abs=2e-6), (selector, name)
