# SPDX-License-Identifier: MIT
"""msalab.transformers on models with small random weights: with all blocks selected a model's
logits are its own; with fewer they are those of a masked softmax; decoding, padding and batches
change nothing; what cannot be had is refused. Needs PyTorch, transformers and the compiled
module."""

import copy
import inspect
import types
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_advice import make_advice  # noqa: E402
from make_indexer import make_indexer  # noqa: E402
from test_capture_models import FAMILIES, OTHERS, QSA, SHARING, SIZES, make_model  # noqa: E402
from transformers.modeling_utils import AttentionInterface  # noqa: E402

import msalab  # noqa: E402
import msalab.transformers as mt  # noqa: E402
from msalab import indexer, selectors  # noqa: E402
from msalab.capture.__main__ import main as convert  # noqa: E402
from msalab.conform import bounds  # noqa: E402
from msalab.nn import rotation  # noqa: E402
from msalab.selectors import Choice, Rule  # noqa: E402

mt.register()
CACHE = ("cache" if "cache" in inspect.signature(transformers.LlamaModel.forward).parameters
         else "past_key_values")  # its name since 5.24, and before
TOKENS, BLOCK, TOP_K, ALL = 150, 16, 3, 10  # ALL: blocks of TOKENS
GROUPS = SIZES["num_key_value_heads"]
FULL = ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "exaone4", "smollm3",
        "minimax_m2")


MORE = {"gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM", {
    "sliding_window": 40, "num_kv_shared_layers": 2, "global_head_dim": 512, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": SIZES["vocab_size"],
    "layer_types": ["sliding_attention", "full_attention"] * 2})}


def model_of(family, **changes):
    if family == "mistral":
        changes.setdefault("sliding_window", None)
    model = make_model(family, families=FAMILIES | MORE, **changes).eval()
    model.set_experts_implementation("eager")  # the others refuse double precision
    return model


def tokens_of(count=TOKENS, seed=7):
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.integers(3, SIZES["vocab_size"], count))[None]


@torch.no_grad()
def logits_of(model, ids, **options):
    return model(ids, use_cache=False, **options).logits.double()


def assert_as_exact(model, ids, found, own=None):
    """`found` differs from the model's logits in double precision by no more than four times what
    its own single precision does: attention is rounded otherwise, the rest is the same."""
    own = logits_of(model, ids) if own is None else own
    exact = logits_of(model.double(), ids)
    model.float()
    assert (found - exact).abs().max() <= 4 * (own - exact).abs().max()


@contextmanager
def attending(model, name):
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    yield
    model.set_attn_implementation(before)


def configured(model, **options):
    layers = mt.configure(model, **{"block_size": BLOCK, "top_k": TOP_K, **options})
    model.set_attn_implementation(mt.NAME)
    return layers


@contextmanager
def masked_reference(model, chosen):
    """Attention as a masked softmax in double precision, over the blocks chosen[layer] [n, Hkv, k],
    or over all where None."""
    def attend(module, query, key, value, mask, scaling=None, softcap=None, s_aux=None,
               sliding_window=None, **_):
        length, group = query.shape[2], query.shape[1] // key.shape[1]
        q, k, v = query[0].double(), key[0].double(), value[0].double()
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        logits = q @ k.transpose(1, 2) * scaling
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        at = torch.arange(length)
        seen = at[:, None] >= at
        if sliding_window:
            seen &= at[:, None] - at < sliding_window
        seen = seen.expand(len(q), -1, -1)
        ids = chosen[module.layer_idx]
        if ids is not None:
            of_group = (ids.long()[:, :, :, None] == at // BLOCK).any(2).transpose(0, 1)
            seen = seen & of_group.repeat_interleave(group, 0)
        logits = logits.masked_fill(~seen, -torch.inf)
        if s_aux is not None:
            logits = torch.cat([logits, s_aux.double()[:, None, None].expand(-1, length, 1)], -1)
        weights = logits.softmax(-1)[..., :length]
        return (weights @ v).transpose(0, 1)[None].to(query.dtype), None

    AttentionInterface.register("masked_reference", attend)
    with attending(model, "masked_reference"):
        yield


def observed(chosen):
    def observe(layer, ids):
        chosen[layer] = ids
    return observe


@pytest.mark.parametrize("family", FULL)
def test_with_all_blocks_the_logits_are_the_models_own(family):
    model, ids = model_of(family), tokens_of()
    own = logits_of(model, ids)
    with attending(model, mt.NAME):
        sparse = configured(model, top_k=ALL)
        found = logits_of(model, ids)
    assert sparse
    assert_as_exact(model, ids, found, own)
    with attending(model, mt.NAME):  # and the test would see it if they were not
        configured(model, top_k=1)
        assert (logits_of(model, ids) - own).abs().max() > 100 * (found - own).abs().max()


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("selector", ["pinned", "mean-key"])
def test_selected_blocks_are_those_of_a_masked_softmax(family, selector):
    model, ids, chosen = model_of(family), tokens_of(), {}

    def pinned(q, k, block_size, **_):
        generator = torch.Generator().manual_seed(len(q))
        return torch.rand((len(q), k.shape[1], -(-len(k) // block_size)), generator=generator)

    with attending(model, mt.NAME):
        configured(model, selector=pinned if selector == "pinned" else selector,
                   observe=observed(chosen))
        found = logits_of(model, ids)
    with masked_reference(model, chosen):
        expected = logits_of(model, ids)
        assert_as_exact(model, ids, found, expected)
        expected_of_all = dict.fromkeys(chosen)
    with masked_reference(model, expected_of_all):
        assert (logits_of(model, ids) - expected).abs().max() > 1e-3


def test_minimax_m3_with_its_own_indexer_is_that_of_transformers():
    model, ids = model_of("minimax_m3"), tokens_of()
    own = logits_of(model, ids)
    with attending(model, mt.NAME):
        assert configured(model, selector="own") == [1, 3]
        found = logits_of(model, ids)
    assert_as_exact(model, ids, found, own)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "minimax_m3"])
def test_generates_with_all_blocks_what_the_model_generates(family):
    model, ids = model_of(family), tokens_of(40)
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    own = model.generate(ids, **options)
    with attending(model, mt.NAME):
        configured(model, top_k=ALL, selector="own" if family == "minimax_m3" else None)
        found = model.generate(ids, **options)
    assert found.tolist() == own.tolist()


SHARED = {0: (1, 2)}  # layers that take the ids of layer 0; layer 3 has its own


@pytest.mark.parametrize("selector", ["mean-key", "quest", "window", "oracle", "index", "index shared", "quest:every=2",
                                      "index:leaders=0+3"])
@torch.no_grad()
def test_decoding_from_a_cache_is_what_prefill_computes(selector, tmp_path):
    model, ids, split = model_of("qwen3"), tokens_of(), 61
    options = {"selector": selector}
    if selector.startswith("index"):
        own, shared_by = ((0, 3), SHARED) if selector == "index shared" else (range(4), {})
        options = {"indexer": make_indexer(tmp_path / "results.h5", own, groups=GROUPS, dim=16,
                                           model_dim=SIZES["hidden_size"], shared_by=shared_by)}
        if ":" in selector:
            options["selector"] = selector
    with attending(model, mt.NAME):
        configured(model, **options)
        whole = logits_of(model, ids)
        steps, cache = [], None
        for begin, end in ((0, split), (split, split + 20), *((t, t + 1)
                                                              for t in range(split + 20, TOKENS))):
            out = model(ids[:, begin:end], **{CACHE: cache}, use_cache=True)
            cache = cache_of(out)
            steps.append(out.logits.double())
    found = torch.cat(steps, 1)
    assert_as_exact(model, ids, found - whole + logits_of(model, ids))


def test_layers_that_share_an_indexer_attend_to_the_ids_of_its_own_layer(tmp_path):
    model, ids = model_of("qwen3"), tokens_of()
    sizes = {"groups": GROUPS, "dim": 16, "model_dim": SIZES["hidden_size"]}
    shared = make_indexer(tmp_path / "shared.h5", (0, 3), **sizes, shared_by=SHARED)
    found, alone = {}, {}
    with attending(model, mt.NAME):
        assert configured(model, indexer=shared, observe=observed(found)) == [0, 1, 2, 3]
        logits_of(model, ids)
        configured(model, indexer=shared, dense_layers=(1, 2), observe=observed(alone))
        logits_of(model, ids)
    assert (found[0] == alone[0]).all() and (found[1] == found[0]).all() and (found[2] == found[0]).all()
    assert (found[3] != found[0]).any()

    def refused(text, **options):
        with pytest.raises(msalab.InputError, match=text):
            configured(model, indexer=shared, **options)

    refused("layer 1 takes the ids of layer 0, which does not select", dense_layers=(0,))
    index, other = (Choice("index", Rule(BLOCK, top_k)) for top_k in (3, 4))
    refused("layer 2 takes the ids of layer 0, which does not select", selector=None, block_size=None,
            top_k=None, advice={0: index, 1: index, 2: other, 3: other})
    block = model.model.layers[1]
    with attending(model, mt.NAME), torch.no_grad():
        configured(model, indexer=shared)
        hidden = torch.zeros(1, 20, SIZES["hidden_size"])
        with pytest.raises(msalab.InputError, match="layer 1 takes the ids of layer 0, which did not run"):
            block(hidden, attention_mask=mt._spans(1, 20, 20), position_embeddings=model.model.rotary_emb(
                hidden, torch.arange(20)[None]))


@pytest.mark.parametrize("selector", ["mean-key", "oracle", "index"])
def test_layers_attend_to_the_ids_of_the_last_one_that_selects(selector, tmp_path):
    model, ids, own = model_of("qwen3"), tokens_of(), {}
    options = {}
    if selector == "index":  # those that take ids need no Index Branch
        options = {"indexer": make_indexer(tmp_path / "some.h5", (0, 2, 3), groups=GROUPS, dim=16,
                                           model_dim=SIZES["hidden_size"])}
    with attending(model, mt.NAME):
        for sharing, sources in (("every=2", (0, 0, 2, 2)), ("leaders=0+3", (0, 0, 0, 3)), ("every=4", (0, 0, 0, 0))):
            assert configured(model, selector=f"{selector}:{sharing}", observe=observed(own), **options) == [0, 1, 2, 3]
            logits_of(model, ids)
            assert all((own[layer] == own[source]).all() for layer, source in enumerate(sources))
            assert all((own[layer] != own[layer - 1]).any() for layer in range(1, 4) if sources[layer] == layer)
        configured(model, selector=f"{selector}:every=4", observe=observed(own), dense_layers=(0,),
                   **({"indexer": make_indexer(tmp_path / "one.h5", [1], groups=GROUPS, dim=16,
                                               model_dim=SIZES["hidden_size"])} if options else {}))
        logits_of(model, ids)
        assert own[0] is None and (own[3] == own[1]).all()


def test_refuses_sharing_that_cannot_be():
    model = model_of("llama")
    for wrong in ("every=1", "every=", "every=2+3", "leaders=", "leaders=3+1", "leaders=1+1", "leaders=a", "ever=2", ""):
        refused(model, f"selector is 'quest:{wrong}'; layers share ids by quest:every=N".replace("+", "[+]"),
                selector=f"quest:{wrong}")
    refused(model, r"layers \[7\] are to lead, must be of those that select, \[0, 1, 2, 3\]", selector="quest:leaders=0+7")
    refused(model, r"layers \[0\] are to lead", selector="quest:leaders=0+2", dense_layers=(0,))
    refused(model, r"layer 0 is to take the ids of a layer before it, .* \[1\]", selector="quest:leaders=1")
    refused(model_of("minimax_m3"), "selector \"own\" has its layers as the model has them", selector="own:every=2")
    one, other = (Choice("quest", Rule(BLOCK, top_k), every=2) for top_k in (3, 4))
    refused(model, "layer 1 takes the ids of layer 0, which .* selects otherwise", selector=None, block_size=None, top_k=None,
            advice={0: one, 1: other, 2: one, 3: one})


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("selector", ["mean-key", "index"])
def test_padding_changes_nothing(side, selector, tmp_path):
    model = model_of("llama")
    options = {"selector": selector}
    if selector == "index":
        options = {"indexer": make_indexer(tmp_path / "results.h5", range(4), groups=GROUPS, dim=16,
                                           model_dim=SIZES["hidden_size"])}
    lengths = (TOKENS, 97)
    rows = [tokens_of(length, seed=length) for length in lengths]
    ids, mask = torch.zeros((2, TOKENS), dtype=torch.long), torch.zeros((2, TOKENS), dtype=torch.long)
    places = [slice(TOKENS - length, None) if side == "left" else slice(length)
              for length in lengths]
    for row, place in enumerate(places):
        ids[row, place], mask[row, place] = rows[row][0], 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with attending(model, mt.NAME):
        configured(model, **options)
        found = logits_of(model, ids, attention_mask=mask, position_ids=positions)
        alone = [logits_of(model, row) for row in rows]
    for row, place in enumerate(places):
        own = logits_of(model, rows[row])
        assert_as_exact(model, rows[row], found[row, place][None] - alone[row] + own, own)
        with pytest.raises(AssertionError):
            assert_as_exact(model, rows[row], found[1 - row, place][None] - alone[row] + own, own)


def test_dense_layers_attend_to_everything():
    model, ids, chosen = model_of("llama"), tokens_of(), {}
    with attending(model, mt.NAME):
        assert configured(model, dense_layers=(0, 2), observe=observed(chosen)) == [1, 3]
        logits_of(model, ids)
    assert [chosen[layer] is None for layer in range(4)] == [True, False, True, False]
    ids_of = chosen[1]
    assert ids_of.shape == (TOKENS, GROUPS, TOP_K)


def test_layers_with_a_window_keep_it():
    model, ids, chosen = model_of("gemma3"), tokens_of(), {}
    with attending(model, mt.NAME):
        assert configured(model, observe=observed(chosen)) == [1, 3]
        logits_of(model, ids)
    assert chosen[0] is None and chosen[1] is not None
    with pytest.raises(msalab.InputError, match="no layer is left to select"):
        configured(model_of("mistral", sliding_window=40))


def gemma4():
    """Its last two layers attend to the keys of earlier ones, at the positions whose logits are
    asked for alone."""
    return model_of("gemma4")


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_layers_that_share_keys_attend_as_the_model_does(kept):
    """No logit is farther from that in double precision than four times the model's own in single."""
    model, ids = gemma4(), tokens_of()
    own = logits_of(model, ids, logits_to_keep=kept)
    exact = logits_of(gemma4().double(), ids, logits_to_keep=kept)
    bound = 4 * (own - exact).abs().max()
    with attending(model, mt.NAME):
        assert configured(model, top_k=ALL) == [1, 3]
        found = logits_of(model, ids, logits_to_keep=kept)
        assert found.shape[1] == (kept or TOKENS)
        configured(model)
        whole = logits_of(model, ids)
        assert (logits_of(model, ids, logits_to_keep=kept)
                - whole[:, -(kept or TOKENS):]).abs().max() <= 2 * bound
    assert (found - exact).abs().max() <= bound
    assert (whole[:, -(kept or TOKENS):] - own).abs().max() > 1e-2


@torch.no_grad()
def test_layers_that_share_keys_generate_what_the_model_does():
    model, rows = gemma4(), torch.cat([tokens_of(40, seed=1), tokens_of(40, seed=2)])
    mask = torch.ones_like(rows)
    mask[0, :9] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False,
               "eos_token_id": None}
    own = model.generate(rows, **options)
    with attending(model, mt.NAME):
        configured(model, top_k=ALL)
        assert model.generate(rows, **options).tolist() == own.tolist()


@pytest.mark.parametrize("family, message", [
    ("qwen4_exp", "layer 1: Qwen4ExpTextQSAIndexer selects tokens"),
    ("glm_moe_dsa", "layer 0: GlmMoeDsaAttention has kv_lora_rank"),
    ("kimi_linear", "layer 1: KimiLinearAttention has kv_lora_rank"),
    ("deepseek_v4", "layer 1: DeepseekV4Attention has DeepseekV4CSACompressor"),
])
def test_other_kinds_of_attention_are_refused_by_name(family, message):
    families = QSA | {name: of[:3] for name, of in OTHERS.items()}
    model = make_model(family, families=families).eval()
    for selector in ("mean-key", mt.OWN):
        with pytest.raises(mt.InputError, match=message):
            mt.configure(model, selector=selector)


def test_gemma3n_shares_keys_as_gemma4_does():
    model = make_model("gemma3n", families=SHARING).eval()
    ids = tokens_of()
    own = logits_of(model, ids)
    with attending(model, mt.NAME):
        assert configured(model, top_k=ALL) == [1, 3, 5]
        assert (logits_of(model, ids) - own).abs().max() < 1e-4
        configured(model)
        assert (logits_of(model, ids) - own).abs().max() > 1e-3


def test_other_parts_of_a_mask_are_refused():
    spans = mt.Spans(((2, 9, 0, 4), (0, 7, 0, 2)), 4, 9, None)
    last = spans[:, :, -3:, :]
    assert last.rows == ((2, 9, 0, 3), (0, 7, 0, 1)) and last.queries == 3
    assert last[:, :, -1:, :].rows == ((2, 9, 0, 1), (0, 7, 0, 0))
    for part in ((slice(None), slice(None), slice(0, 2), slice(None)), 0, slice(None),
                 (slice(None), slice(None), slice(-2, None), slice(0, 3))):
        with pytest.raises(msalab.InputError, match="only its last queries can be had"):
            spans[part]


def test_gradients_reach_the_weights():
    model, ids = model_of("llama"), tokens_of(60)
    own = model(ids, labels=ids).loss
    own.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with attending(model, mt.NAME):
        configured(model, top_k=ALL)
        model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        error = (parameter.grad - expected[name]).norm()
        assert error <= 1e-4 * expected[name].norm(), name


# What is refused.

def refused(model, text, **options):
    with attending(model, mt.NAME), pytest.raises(msalab.InputError, match=text):
        configured(model, **options)


def test_refuses_settings_that_cannot_be(tmp_path):
    model = model_of("llama")
    refused(model, "selector is 'best'.*oracle, mean-key, quest, window", selector="best")
    refused(model, "top_k is 0, must be an integer of at least 1", top_k=0)
    refused(model, "forced_first . forced_local is 4, must be at most top_k = 3", forced_first=3)
    refused(model, r"dense_layers names \[9\]", dense_layers=(9,))
    refused(model, "no layer is left", dense_layers=range(4))
    refused(model, 'selector "index" needs an indexer', selector="index")
    refused(model, "models that have an Index Branch", selector="own")
    refused(model_of("minimax_m3", index_n_heads=2 * GROUPS), f"layer 1: .*Indexer has {2 * GROUPS} index heads; there is "
            f"one index head for each of the {GROUPS} groups", selector="own")
    refused(model, "no such file", indexer=tmp_path / "none.h5")
    some = make_indexer(tmp_path / "some.h5", [1, 3], groups=GROUPS, dim=16, model_dim=64)
    refused(model, r"no Index Branch of layers \[0, 2\]", indexer=some)
    refused(model, "selector is 'quest', but an indexer", indexer=some, selector="quest")
    other = make_indexer(tmp_path / "other.h5", range(4), groups=4, dim=16, model_dim=64)
    refused(model, "layer 0: the Index Branch has 4 groups.*another model", indexer=other)
    dsa = make_indexer(tmp_path / "dsa.h5", range(4), groups=GROUPS, dim=16, model_dim=64)
    with h5py.File(dsa, "a") as file:
        file["fit/2/weights/w_index_w"] = np.zeros((GROUPS, 64), np.float32)
    refused(model, "dsa.h5: /fit/2/weights has w_index_w: an indexer of --architecture dsa",
            indexer=dsa)
    gate = make_indexer(tmp_path / "gate.h5", range(4), groups=GROUPS, dim=16, model_dim=64)
    with h5py.File(gate, "a") as file:
        file["fit/1/weights/w_gate_k"] = np.zeros((GROUPS * 16, 48), np.float32)
    refused(model, "gate.h5: /fit/1/weights has w_gate_k: a gate of --architecture seerattention",
            indexer=gate)
    (tmp_path / "text.h5").write_text("no HDF5")
    refused(model, "text.h5: cannot be read", indexer=tmp_path / "text.h5")


def test_an_indexer_brings_its_rule(tmp_path):
    model = model_of("llama")
    fit = make_indexer(tmp_path / "fit.h5", range(4), groups=GROUPS, dim=16, model_dim=64, first=1)
    rule = mt.plan(model, mt.choice(None, fit), fit, ()).layers
    assert {one.rule for one in rule.values()} == {Rule(16, 3, 1, 1)}
    asked = mt.choice(None, fit, block_size=32, top_k=None, forced_first=0)
    assert asked.rule == Rule(32, 3, 0, 1)
    assert mt.choice("quest", None).rule == Rule()


def test_refuses_advice_that_cannot_be_run(tmp_path):
    model = model_of("llama")

    def advised(layers):
        return make_advice(tmp_path / "summary.json", layers)

    with pytest.raises(msalab.InputError, match="top_k is given, and so is advice"):
        mt.configure(model, top_k=3, advice=advised({0: ("quest", 16, 2, 0, 1)}))
    for layers, said in (({0: ("sparq", 16, 2, 0, 1)}, "layer 0: is advised sparq, which does not work"),
                         ({0: None, 1: None}, "leaves every layer dense"),
                         ({0: ("quest", 16, 2, 0, 1)}, r"says nothing of layers \[1, 2, 3\]"),
                         (dict.fromkeys(range(4), ("index", 16, 2, 0, 1)), 'selector "index" needs')):
        with pytest.raises(msalab.InputError, match=said):
            mt.configure(model, advice=advised(layers))
    (tmp_path / "other.json").write_text('{"format": "msa-compare-summary"}')
    with pytest.raises(msalab.InputError, match='must be "msa-report"'):
        mt.configure(model, advice=tmp_path / "other.json")
    assert mt.configure(model, advice={0: Choice("quest", Rule(16, 2)), 2: None},
                        dense_layers=(1, 3)) == [0]


def test_refuses_what_is_not_configured():
    model = model_of("llama")
    with attending(model, mt.NAME), pytest.raises(msalab.InputError, match="call msalab.*configure"):
        logits_of(model, tokens_of())


def test_refuses_masks_that_are_not_causal():
    model, ids = model_of("llama"), tokens_of(20)
    configured(model)
    packed = torch.cat([torch.arange(12), torch.arange(8)])[None]
    with pytest.raises(msalab.InputError, match="packed rows"):
        logits_of(model, ids, position_ids=packed)
    with pytest.raises(msalab.InputError, match="mask of its own"):
        logits_of(model, ids, attention_mask=torch.zeros(1, 1, 20, 20))
    holes = torch.ones_like(ids)
    holes[0, 5] = 0
    with pytest.raises(msalab.InputError, match="row 0 of attention_mask has padding between"):
        logits_of(model, ids, attention_mask=holes)
    chunked = model_of("llama4")
    configured(chunked, dense_layers=(0, 1, 2))
    with pytest.raises(msalab.InputError, match="chunked"):
        logits_of(chunked, tokens_of())


def indexed(model, path, **options):
    configured(model, indexer=make_indexer(path / "results.h5", range(4), groups=GROUPS, dim=16,
                                           model_dim=SIZES["hidden_size"]), **options)


def cache_of(output):
    return output["cache" if "cache" in output else "past_key_values"]


def after(model, cache, ids):
    """Logits of the tokens ids [batch, n] behind what the cache holds."""
    return model(ids, **{CACHE: cache}, use_cache=True).logits.double()


def rows_of(*seeds, last=5):
    """Prompts of 40 tokens with the same last one: layer 0 has the same last key for all."""
    rows = torch.cat([tokens_of(40, seed=seed) for seed in seeds])
    rows[:, -1] = last
    return rows


CHANGES = {  # name -> (what is done to a cache of three rows, and which rows it holds then)
    "reorder_cache": (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 1])), [2, 0, 1]),
    "batch_select_indices": (lambda cache: cache.batch_select_indices(torch.tensor([1, 1])), [1, 1]),
    "batch_repeat_interleave": (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2])}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_index_keys_follow_the_rows_of_the_cache(change, tmp_path):
    model, rows, new = model_of("llama"), rows_of(1, 2, 3), tokens_of(2, seed=9)
    function, order = CHANGES[change]
    indexed(model, tmp_path)
    cache = cache_of(model(rows, use_cache=True))
    function(cache)
    new = new.expand(len(order), -1)
    found = after(model, cache, new)
    expected = logits_of(model, torch.cat([rows[order], new], 1))[:, -2:]
    assert (found - expected).abs().max() < 1e-4
    assert (expected[0] - expected.flip(0)[0]).abs().max() > 0.1 or order == [1, 1]


@torch.no_grad()
def test_index_keys_follow_a_cache_that_is_cut(tmp_path):
    model, rows, new = model_of("llama"), rows_of(1, 2), tokens_of(2, seed=9).expand(2, -1)
    indexed(model, tmp_path)
    cache = cache_of(model(rows, use_cache=True))
    cache.crop(-7)  # 33 tokens remain
    expected = logits_of(model, torch.cat([rows[:, :33], new], 1))[:, -2:]
    assert (after(model, cache, new) - expected).abs().max() < 1e-4


@torch.no_grad()
def test_a_cache_that_is_emptied_begins_anew(tmp_path):
    model, rows = model_of("llama"), rows_of(1, 2)
    indexed(model, tmp_path)
    cache = cache_of(model(rows_of(3, 4), use_cache=True))
    for layer in cache.layers:  # as reset() does in newer releases
        layer.keys = layer.values = None
        layer.is_initialized = False
    assert torch.equal(after(model, cache, rows), logits_of(model, rows))


@torch.no_grad()
def test_beam_search_with_an_index_finds_what_no_cache_finds(tmp_path):
    model, options = model_of("llama"), {"max_new_tokens": 12, "do_sample": False, "num_beams": 3,
                                         "eos_token_id": None}
    indexed(model, tmp_path)
    found = model.generate(tokens_of(40), **options)
    assert found.tolist() == model.generate(tokens_of(40), use_cache=False, **options).tolist()


@torch.no_grad()
def test_prompt_lookup_with_an_index_finds_what_no_cache_finds(tmp_path):
    """Drafts that are refused are cut from the cache."""
    model, options = model_of("llama"), {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    indexed(model, tmp_path)
    prompt = tokens_of(20).repeat(1, 2)
    found = model.generate(prompt, prompt_lookup_num_tokens=4, **options)
    assert found.tolist() == model.generate(prompt, use_cache=False, **options).tolist()


@torch.no_grad()
def test_a_copied_cache_is_refused_by_name(tmp_path):
    model, rows = model_of("llama"), rows_of(1)
    indexed(model, tmp_path)
    cache = cache_of(model(rows, use_cache=True))
    with pytest.raises(msalab.InputError, match="as a copy of the cache does"):
        after(model, copy.deepcopy(cache), rows[:, :1])
    after(model, cache, rows[:, :1])


@torch.no_grad()
def test_another_prompt_in_the_cache_is_refused(tmp_path):
    """Whatever its last tokens."""
    model, rows = model_of("llama"), rows_of(1, 2)
    indexed(model, tmp_path)
    cache, other = (cache_of(model(some, use_cache=True)) for some in (rows, rows_of(3, 4)))
    for layer, donor in zip(cache.layers, other.layers):
        layer.keys, layer.values = donor.keys, donor.values
    with pytest.raises(msalab.InputError, match="layer 0: the cache is not as this layer left it"):
        after(model, cache, rows[:, :1])


@torch.no_grad()
def test_decoding_marks_new_tokens_alone_and_changes_nothing(tmp_path, monkeypatch):
    """Where the cache is as the last call left it: the ids and the logits are those of marking all tokens."""
    model, marked, marks = model_of("llama"), [], mt._marks
    prompts = torch.cat([tokens_of(40, seed=seed) for seed in (1, 2)])
    mask = torch.ones_like(prompts)
    mask[0, :9] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "eos_token_id": None,
               "output_logits": True, "return_dict_in_generate": True}

    def count(key, first, end):
        marked.append(end - first)
        return marks(key, first, end)

    def generated():
        marked.clear()
        chosen = []
        indexed(model, tmp_path, observe=lambda layer, ids: chosen.append(ids))
        found = model.generate(prompts, **{CACHE: transformers.DynamicCache(config=model.config)}, **options)
        return [found.sequences, *found.logits, *chosen]

    monkeypatch.setattr(mt, "_marks", count)
    found = generated()
    assert marked == [40] * 4 + [1] * 4 * 11
    monkeypatch.setattr(mt.Held, "is_as_left", lambda *_: False)
    expected = generated()
    assert marked == [tokens for tokens in range(40, 52) for _ in range(4)]
    assert len(found) == len(expected) == 1 + 12 + 4 * 12
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_keys_changed_in_place_are_refused(mode, tmp_path):
    """By one bit. In inference mode PyTorch does not count changes."""
    model, rows = model_of("llama"), rows_of(1, 2)
    indexed(model, tmp_path)
    with mode():
        cache = cache_of(model(rows, use_cache=True))
        after(model, cache, rows[:, :1])
        cache.layers[2].keys[1, 0, 5, 3].view(torch.int32).bitwise_xor_(1)
        with pytest.raises(msalab.InputError, match="layer 2: the cache is not as this layer left it"):
            after(model, cache, rows[:, :1])


@torch.no_grad()
def test_rows_that_begin_elsewhere_are_refused(tmp_path):
    model, rows = model_of("llama"), rows_of(1)
    indexed(model, tmp_path)
    cache, mask = cache_of(model(rows, use_cache=True)), torch.ones(1, 41, dtype=torch.long)
    mask[0, :3] = 0
    with pytest.raises(msalab.InputError, match="layer 0: the cache is not as this layer left it"):
        model(rows[:, :1], **{CACHE: cache}, attention_mask=mask)


class RoundingLayer(transformers.cache_utils.DynamicLayer):
    def update(self, *new, **options):
        if self.is_initialized:
            self.keys = self.keys.bfloat16().float()
        return super().update(*new, **options)


class RoundingCache(transformers.DynamicCache):
    def update(self, key, value, number, *others, **options):
        layer = self.layers[number]
        if layer.is_initialized:
            layer.keys = layer.keys.bfloat16().float()
        return super().update(key, value, number, *others, **options)


@pytest.mark.parametrize("rounds", ["the layer", "the cache", "a wrapper"])
@torch.no_grad()
def test_keys_that_are_rounded_as_a_cache_appends_are_refused(rounds, tmp_path):
    model, rows = model_of("llama"), rows_of(1)
    indexed(model, tmp_path)
    cache = (RoundingCache if rounds == "the cache" else transformers.DynamicCache)(config=model.config)
    if rounds == "the layer":
        cache.layers = [RoundingLayer() for _ in cache.layers]
    elif rounds == "a wrapper":
        cache.update = RoundingCache.update.__get__(RoundingCache(config=model.config))
        cache.layers = cache.update.__self__.layers
    model(rows, **{CACHE: cache}, use_cache=True)
    with pytest.raises(msalab.InputError, match="layer 0: the cache is not as this layer left it"):
        after(model, cache, rows[:, :1])


@torch.no_grad()
def test_refuses_caches_that_the_index_does_not_know(tmp_path):
    model, ids = model_of("llama"), tokens_of(40)
    own = cache_of(model(ids, use_cache=True))
    indexed(model, tmp_path)
    with pytest.raises(msalab.InputError, match="layer 0: the cache is not as this layer left it"):
        after(model, own, ids[:, :1])
    configured(model, selector="mean-key")
    with pytest.raises(msalab.InputError, match="static cache"):
        model.generate(ids, cache_implementation="static", max_new_tokens=2)


@torch.no_grad()
def test_a_static_cache_holds_what_a_dynamic_one_does(tmp_path):
    model, ids = model_of("llama"), tokens_of(40)
    configured(model, indexer=make_indexer(tmp_path / "results.h5", range(4), groups=GROUPS,
                                           dim=16, model_dim=64))
    found = []
    for cache in (transformers.StaticCache(config=model.config, max_cache_len=64),
                  transformers.DynamicCache(config=model.config)):
        model(ids[:, :30], **{CACHE: cache})
        found.append(model(ids[:, 30:], **{CACHE: cache}).logits)
    assert torch.equal(*found)


# Index Branches from files.

@pytest.mark.parametrize("norm, rotary, frequencies", [
    (False, 0, None), (True, 8, None), (True, 16, [1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01])])
def test_index_branch_is_the_equation(tmp_path, norm, rotary, frequencies):
    path = make_indexer(tmp_path / "results.h5", [2], groups=2, dim=16, model_dim=24, norm=norm,
                        rotary=rotary, frequencies=frequencies)
    branch = indexer.read(tmp_path)[2]
    import h5py
    with h5py.File(path) as file:
        weights = {name: values[()].astype(np.float64)
                   for name, values in file["fit/2/weights"].items()}
    rng = np.random.default_rng(1)
    x, positions = rng.standard_normal((5, 24)).astype(np.float32), np.array([0, 1, 2, 3, 700])
    both = branch(torch.as_tensor(x), rotation(torch.as_tensor(positions), branch.frequencies, torch.float32))
    for side, heads, found in zip("qk", (2, 1), both):
        expected = (x.astype(np.float64) @ weights[f"w_index_{side}"].T).reshape(5, heads, 16)
        if norm:
            expected /= np.sqrt((expected ** 2).mean(-1, keepdims=True) + 1e-6)
            expected *= weights[f"index_{side}_norm"]
        half = rotary // 2
        of = frequencies if frequencies is not None else 1e4 ** (-np.arange(half) / max(half, 1))
        turned = (expected[..., :half] + 1j * expected[..., half:rotary]) * np.exp(
            1j * positions[:, None, None] * np.asarray(of[:half] if half else []))
        expected[..., :half], expected[..., half:rotary] = turned.real, turned.imag
        np.testing.assert_allclose(found.numpy().reshape(expected.shape), expected, rtol=0,
                                   atol=24 * 2.0 ** -23 * np.abs(expected).max())


def test_exported_weights_select_in_minimax_m3_what_they_select_here(tmp_path, capsys):
    from safetensors.torch import load_file

    model, ids, chosen = model_of("minimax_m3"), tokens_of(), {}
    theta, half = 5e6, SIZES["head_dim"] // 4
    file = make_indexer(tmp_path / "results.h5", [1, 3], groups=GROUPS, dim=16, model_dim=64,
                        rotary=2 * half, theta=theta)
    out = tmp_path / "indexer.safetensors"
    assert convert(["convert", str(file), "--out", str(out)]) == 0
    assert convert(["convert", str(file), "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    state = load_file(tmp_path / "indexer.safetensors")
    assert not set(state) - set(model.state_dict())
    model.load_state_dict(state, strict=False)
    own = logits_of(model, ids)
    with attending(model, mt.NAME):
        configured(model, selector=None, indexer=file, dense_layers=(0, 2))
        found = logits_of(model, ids)
    assert_as_exact(model, ids, found, own)
    shared = make_indexer(tmp_path / "shared.h5", [1], groups=2, dim=16, model_dim=64, shared_by={1: (3,)})
    assert convert(["convert", str(shared), "--out", str(tmp_path / "none.safetensors")]) == 2
    assert "layers [3] take the ids of this one" in capsys.readouterr().err
    plain = make_indexer(tmp_path / "plain.h5", [1], groups=2, dim=16, model_dim=64, norm=False)
    assert convert(["convert", str(plain), "--out", str(tmp_path / "none.safetensors")]) == 2
    assert "--index-norm rms" in capsys.readouterr().err
    chosen = make_indexer(tmp_path / "chosen.h5", [1], groups=2, dim=16, model_dim=64, rotary=4,
                          frequencies=[0.5, 0.01])
    assert convert(["convert", str(chosen), "--out", str(tmp_path / "none.safetensors")]) == 2
    assert "msa-fit-indexer --rope-pairs every-nth" in capsys.readouterr().err
    assert convert(["convert", str(file), "--out", str(out), "--overwrite", "--layers", "2"]) == 2
    assert "no Index Branch of layers [2]" in capsys.readouterr().err
    assert load_file(out) and not (tmp_path / "none.safetensors").exists()


def test_rule_is_part_of_selecting():
    q, k = torch.randn(40, 4, 16), torch.randn(40, 2, 16)
    rule = selectors.Rule(8, 3, 1, 1)
    ids = selectors.select("mean-key", q, k, rule)
    own = torch.arange(40) // 8
    assert (ids[own >= 1, :, 0] == 0).all()
    newest = selectors.select("window", q, k, selectors.Rule(8, 3))
    assert newest[-1].tolist() == [[0, 3, 4]] * 2


DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU"))])
HOW = {"softmax_scale": 0.25, "softcap": None, "sinks": None}


def heads_of(tokens, device, groups=2):
    """q, k and v of 4 heads of 64 channels, and what they may differ by."""
    rng = np.random.default_rng(5)
    element, off = (torch.float32, 1e-5) if device == "cpu" else (torch.bfloat16, 2e-2)
    return *(torch.as_tensor(rng.standard_normal((tokens, heads, 64), np.float32)).to(device, element)
             for heads in (4, groups, groups)), off


def assert_like(found, expected, off):
    assert found.dtype is expected.dtype and found.shape == expected.shape
    assert torch.allclose(found.float(), expected.float(), atol=off, rtol=off)


@DEVICES
@pytest.mark.parametrize("at_once", [1, 3, 6])
def test_blocks_attended_to_in_parts_are_as_attended_to_at_once(at_once, device):
    """Parts of a sequence's first queries are empty."""
    ends, block = [0, 390, 900], 64
    q, k, v, off = heads_of(ends[-1], device)
    ids = torch.cat([selectors.select("oracle", q[at:end], k[at:end], Rule(block, 7, 1)) for at, end in zip(ends, ends[1:])])
    assert (ids[0] == -1).sum() == 2 * 6
    ids[5] = -1  # a query without a block
    how = HOW | {"block_size": block, "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    whole = mt.m.sparse_attention(q, k, v, ids, **how)
    assert_like(mt._attended_in_parts(q, k, v, ids, at_once, **how), whole, off)
    with pytest.raises(AssertionError):  # the last block of some is missing
        assert_like(mt._attended_in_parts(q, k, v, ids[..., :-1].contiguous(), at_once, **how), whole, off)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("in_e4m3", [False, True])
def test_on_a_gpu_more_blocks_than_tuned_kernels_take_are_answered_by_them(in_e4m3, monkeypatch):
    tokens, block, most = 45 * 64 - 5, 64, 40
    q, k, v, off = heads_of(tokens, "cuda")
    if in_e4m3:
        q, k = (one.round().clamp(-2, 2) for one in (q, k))  # tensor cores add products of such numbers without an error
    ids, how = selectors.select("oracle", q, k, Rule(block, most, 1)), HOW | {"block_size": block}
    if in_e4m3:
        (q, q_scales), k, v = mt.rounding.rows_in_e4m3(q), mt.rounding.nearest(k), mt.rounding.nearest(v)
        how["scales"] = q_scales, None, None
    whole, by = mt.m.sparse_attention(q, k, v, ids, **how), mt.m.operations.backend_of(q)
    assert "k is 40, must be at most 32" in by.answered_by
    off = most_off_in_e4m3(q, k, v, ids, how, most * block) if in_e4m3 else off * (1 + whole.float().abs())

    def is_right(ids):
        found = mt._attended(q, k, v, ids, **how)
        assert found.dtype is whole.dtype and by.answered_by.startswith("sparse_attention_sm")
        return bool(((found.float() - whole.float()).abs() <= off).all())
    assert is_right(ids)
    assert not is_right(ids[..., :33].contiguous())  # the last blocks are missing
    assert not is_right(torch.cat([ids[..., :32], ids[..., 31:]], -1))  # a block is in both parts
    of_parts = mt.m.sparse_attention
    monkeypatch.setattr(mt.m, "sparse_attention", lambda *args, **named: (
        (found := of_parts(*args, **named))[0], found[1] * np.log2(np.e)))
    assert not is_right(ids)  # parts are joined by powers of 2


def most_off_in_e4m3(q, k, v, ids, how, keys):
    """What out of parts may be off of that with exact weights, where products are exact and |q . k| is at most 4 dh: the
    weights in e4m3, and bfloat16 of a part, of its mean with the other, and of out itself. The values' weighted mean size
    is out of their sizes, by the plain kernel."""
    size = mt.m.sparse_attention(q, k, mt.rounding.nearest(v.float().abs()), ids, **how).float()
    mean, largest = bounds.e4m3_weights_bound(keys, how["block_size"])
    weight = bounds.weight_bound(bounds.gamma(6) * how["softmax_scale"] * 4 * q.shape[-1], keys)
    stored = bounds.STORED["bfloat16"]
    share = mean + 2 * weight + 3 * stored  # of parts: their weights and their shares
    return share * (1 + 2 * stored) * size + largest * v.float().abs().max()


@DEVICES
@pytest.mark.parametrize("tokens, window, groups", [(300, 40, 2), (280, 40, 1), (41, 40, 4), (300, 299, 2)])
def test_attention_in_a_window_by_pytorch_is_ours(tokens, window, groups, device):
    q, k, v, off = heads_of(tokens, device, groups)
    for scale in (0.25, None):
        ours = mt.m.dense_attention(q, k, v, window=window, softmax_scale=scale)
        assert_like(mt._in_window(q, k, v, window, scale), ours, off)
        with pytest.raises(AssertionError):
            assert_like(mt._in_window(q, k, v, window // 2, scale), ours, off)


@pytest.mark.parametrize("ends, window, more, cut", [
    ([0, 9, 20], 8, {}, True), ([0, 8, 20], 8, {}, False), ([0, 9, 20], None, {}, False),
    ([0, 9, 20], 8, {"softcap": 50.0}, False), ([0, 9, 20], 8, {"sinks": 1}, False),
    ([0, 9, 20], 8, {"cu_seqlens_k": [0, 10, 21]}, False)])
def test_pytorch_attends_in_windows_that_are_short_on_a_gpu(monkeypatch, ends, window, more, cut):
    q = torch.zeros(ends[-1], 2, 8)
    monkeypatch.setattr(mt, "_may_be_cut", lambda q, k, v, sinks: sinks is None)
    monkeypatch.setattr(mt, "_in_window", lambda q, *_: q + 1)
    monkeypatch.setattr(mt.m, "dense_attention", lambda q, *_, window, **how: q)
    how = HOW | {"cu_seqlens_q": ends, "cu_seqlens_k": ends} | more
    found = mt._dense(q, q, q, window, **how)
    assert found.shape == q.shape and (found == cut).all()


@pytest.mark.parametrize("blocks, on_gpu, dtype, softcap, sinks, gradient, in_parts", [
    (33, True, torch.bfloat16, None, None, False, True), (32, True, torch.bfloat16, None, None, False, False),
    (33, False, torch.bfloat16, None, None, False, False), (33, True, torch.float32, None, None, False, False),
    (33, True, torch.bfloat16, 30.0, None, False, False), (33, True, torch.bfloat16, None, "sinks", False, False),
    (33, True, torch.bfloat16, None, None, True, False)])
def test_only_more_blocks_than_tuned_kernels_take_are_attended_to_in_parts(monkeypatch, blocks, on_gpu, dtype, softcap,
                                                                           sinks, gradient, in_parts):
    monkeypatch.setattr(mt.m, "sparse_attention", lambda *_, **__: "whole")
    monkeypatch.setattr(mt, "_attended_in_parts", lambda *_, **__: "parts")
    q, k = (types.SimpleNamespace(is_cuda=on_gpu, dtype=dtype, requires_grad=one) for one in (False, gradient))
    ids, how = torch.zeros((1, 1, blocks), dtype=torch.int32), {"sinks": sinks, "softcap": softcap}
    assert mt._attended(q, k, k, ids, **how) == ("parts" if in_parts else "whole")
    with torch.no_grad():
        assert mt._attended(q, k, k, ids, **how) == ("parts" if in_parts or gradient else "whole")
