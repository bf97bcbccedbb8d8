# SPDX-License-Identifier: MIT
"""msalab.capture on PyTorch models with small random weights: attention computed from the file is the
model's own, by the formulas here and by msa-analyze.

Needs PyTorch and transformers (requirements-capture.txt); the programs in build/release/bin/, or
where MSALAB_BIN names, for the tests that run them.
"""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
from torch import nn  # noqa: E402

from msalab.capture import (CaptureError, Layer, ModuleAdapter, TransformersModel,  # noqa: E402
                        capture, to_numpy)
from msalab.capture.__main__ import main  # noqa: E402
from msalab.capture.layer import bfloat16  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402

BIN = Path(os.environ.get("MSALAB_BIN", Path(__file__).parents[2] / "build/release/bin"))
needs_programs = pytest.mark.skipif(not (BIN / "msa-analyze").exists(),
                                    reason=f"no msa-analyze in {BIN}: ./msalab build")
torch.set_num_threads(1)  # of models so small, more cost time
SEED = 5
LENGTHS = (150, 61)
WINDOW = 40
SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
         "initializer_range": 0.25, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
BLOCK, TOP_K = 16, 3
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM",
               {"sliding_window": WINDOW, "attn_logit_softcapping": 5.0,
                "query_pre_attn_scalar": 16, "attn_implementation": "eager"}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM",
               {"sliding_window": WINDOW, "query_pre_attn_scalar": 20,
                "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {"sliding_window": WINDOW, **EXPERTS}),
    "llama4": ("Llama4TextConfig", "Llama4ForCausalLM",
               {"attention_chunk_size": WINDOW, "intermediate_size_mlp": 96,
                "no_rope_layers": [1, 0] * 2, **EXPERTS}),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM",
                {"sliding_window": WINDOW,
                 "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 1, 0]}),
    "minimax": ("MiniMaxConfig", "MiniMaxForCausalLM",
                {"layer_types": ["linear_attention", "full_attention"] * 2, **EXPERTS}),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", EXPERTS),
    "minimax_m3": ("MiniMaxM3VLTextConfig", "MiniMaxM3VLForCausalLM",
                   {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
                    "mlp_layer_types": ["dense", "sparse"] * 2, "index_n_heads": 2,
                    "index_head_dim": 16, "index_block_size": BLOCK, "index_topk_blocks": TOP_K,
                    "index_local_blocks": 1, "dense_intermediate_size": 96,
                    "shared_intermediate_size": 96, **EXPERTS,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6,
                                        "partial_rotary_factor": 0.5}}),
}
SHARED = {"sliding_window": WINDOW, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
          "layer_types": ["sliding_attention", "full_attention"] * 3, "hidden_size_per_layer_input": 8,
          "vocab_size_per_layer_input": SIZES["vocab_size"]}
SHARING = {  # layers 4 and 5 attend to the keys and values of layers 2 and 3
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM", SHARED | {"global_head_dim": 512}),
    "gemma3n": ("Gemma3nTextConfig", "Gemma3nForCausalLM",
                SHARED | {"intermediate_size": [96] * 6, "activation_sparsity_pattern": [0.0] * 6,
                          "laurel_rank": 8, "altup_num_inputs": 2}),
}
QSA_BUDGET, QSA_COMPRESS = 32, 4
QSA = {"qwen4_exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", {
    "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": QSA_BUDGET,
    "indexer_compress_ratio": QSA_COMPRESS, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "hc_count": 2, "hc_lowrank": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})}
HYBRID = {  # and what capture says of the layers without softmax attention
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {"full_attn_idxs": [1]}, {0: "conv", 2: "conv", 3: "conv"},
             "layers 0, 2-3: conv"),
    "jamba": ("JambaConfig", "JambaForCausalLM",
              {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4},
              {0: "linear attention", 2: "linear attention"}, "layers 0, 2: linear attention"),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM",
                    {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_num_key_heads": 2,
                     "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
                    dict.fromkeys(range(3), "linear attention"), "layers 0-2: linear attention"),
}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
       "v_head_dim": 16, "num_key_value_heads": 8, "moe_intermediate_size": 32, "n_routed_experts": 4,
       "num_experts_per_tok": 2}
OTHERS = {  # the layer that is refused, and by what name
    "glm_moe_dsa": ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM",
                    MLA | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "n_group": 1,
                           "topk_group": 1}, 1, "GlmMoeDsaAttention has kv_lora_rank and kv_b_proj"),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM",
                    MLA | {"num_experts": 4, "num_experts_per_token": 2,
                           "layer_types": ["linear_attention", "full_attention"] * 2},
                    3, "KimiLinearAttention has kv_lora_rank and kv_b_proj"),
    "deepseek_v4": ("DeepseekV4Config", "DeepseekV4ForCausalLM",
                    {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                     "sliding_window": WINDOW,
                     "layer_types": ["sliding_attention", "compressed_sparse_attention",
                                     "heavily_compressed_attention", "sliding_attention"]},
                    2, "DeepseekV4Attention has DeepseekV4HCACompressor, which adds entries"),
}


def make_model(family, dtype=torch.float32, families=None, **changes):
    config_name, model_name, options = (families or FAMILIES)[family]
    if not hasattr(transformers, model_name):
        pytest.skip(f"transformers {transformers.__version__} has no {model_name}")
    torch.manual_seed(SEED)
    config = getattr(transformers, config_name)(**SIZES | options | changes)
    model = getattr(transformers, model_name)(config).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "sinks")):  # of ones or zeros, which would hide errors
            nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    return model


@pytest.fixture
def sequences():
    rng = np.random.default_rng(SEED)
    return [rng.integers(3, SIZES["vocab_size"], length) for length in LENGTHS]


@torch.no_grad()
def own_answers(model, modules, sequences):
    """What the model itself computes in an ordinary run: the attention output of every layer (the
    input of its o_proj) [N, Hq, dh], and the blocks its indexer selects, [N, Hkv, k]."""
    outputs, blocks = {}, {}
    with ExitStack() as stack:
        for number, module in modules.items():
            def output(_, args, number=number, module=module):
                outputs.setdefault(number, []).append(
                    args[0][0].reshape(args[0].shape[1], -1, module.head_dim))

            def select(_, args, result, number=number):
                padding = TOP_K - result.shape[-1]
                blocks.setdefault(number, []).append(
                    nn.functional.pad(result[0], (0, padding), value=-1).transpose(0, 1))

            stack.callback(module.o_proj.register_forward_pre_hook(output).remove)
            if getattr(module, "indexer", None) is not None:
                stack.callback(module.indexer.register_forward_hook(select).remove)
        for tokens in sequences:
            model(torch.as_tensor(tokens)[None], use_cache=False)
    return ({number: to_numpy(torch.cat(parts)) for number, parts in outputs.items()},
            {number: to_numpy(torch.cat(parts)) for number, parts in blocks.items()})


def attention(layer: Layer, cu_seqlens, blocks=None) -> np.ndarray:
    """Softmax attention with all that a Layer says of it, in double precision. blocks: [N, Hkv, k]
    selected ones, of BLOCK tokens."""
    group = layer.q.shape[1] // layer.k.shape[1]
    out = np.zeros(layer.q.shape)
    for first, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        q, k, v = (array[first:end].astype(np.float64) for array in (layer.q, layer.k, layer.v))
        i, j = np.indices((len(q), len(q)))
        for head in range(q.shape[1]):
            logits = q[:, head] @ k[:, head // group].T * layer.softmax_scale
            if layer.softcap is not None:
                logits = layer.softcap * np.tanh(logits / layer.softcap)
            hidden = (j > i) | (j <= i - (layer.sliding_window or len(q)))
            hidden |= j < i - i % (layer.attention_chunk or len(q))
            if blocks is not None:
                chosen = blocks[first:end, head // group]
                hidden |= ~(j[..., None] // BLOCK == chosen[:, None]).any(-1)
            logits[hidden] = -np.inf
            sink = -np.inf if layer.sinks is None else layer.sinks[head]
            top = np.maximum(logits.max(1, keepdims=True), sink)
            weight = np.exp(logits - top)
            weight /= weight.sum(1, keepdims=True) + np.exp(sink - top)
            out[first:end, head] = weight @ v[:, head // group]
    return out


def assert_close(got, own, layer: Layer):
    """In float32, by the largest error: a logit below 40 sums dh products, each rounded, and moves
    its weight by as much. In bfloat16, where the model may round logits of that size to 8 bits, by
    the root mean square, in which such errors cancel."""
    got, own = np.asarray(got, np.float64), own.astype(np.float64)
    if layer.q.dtype == bfloat16:
        assert np.linalg.norm(got - own) <= 4 * 2.0 ** -8 * np.linalg.norm(own)
    else:
        np.testing.assert_allclose(got, own, rtol=0, atol=40 * 2.0 ** -24 * np.abs(layer.v).max())


def is_plain(layer: Layer) -> bool:
    """Dense causal attention is what the model computes."""
    added = layer.sliding_window, layer.attention_chunk, layer.softcap, layer.sinks
    return all(value is None for value in added)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_from_the_file_is_the_models_own(tmp_path, sequences, family, dtype):
    model = make_model(family, dtype)
    captured = TransformersModel(model)
    capture(captured, sequences, tmp_path / "a.h5")
    outputs, blocks = own_answers(model, captured._attention, sequences)
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.layers == ([1, 3] if family == "minimax" else [0, 1, 2, 3])
        np.testing.assert_array_equal(file.cu_seqlens, [0, 150, 211])
        np.testing.assert_array_equal(file.tokens, np.concatenate(sequences))
        for number in file.layers:
            layer = file.layer(number)
            assert layer.q.dtype == (bfloat16 if dtype == torch.bfloat16 else np.float32)
            assert (layer.q.shape, layer.k.shape) == ((211, 8, 16), (211, 2, 16))
            got = attention(layer, file.cu_seqlens, blocks.get(number))
            assert_close(got, outputs[number], layer)


@pytest.mark.parametrize("family", FAMILIES)
def test_x_is_the_input_of_the_projections(tmp_path, sequences, family):
    model = make_model(family)
    captured = TransformersModel(model)
    capture(captured, sequences, tmp_path / "a.h5")
    with ActivationsReader(tmp_path / "a.h5") as file:
        for number in file.layers:
            layer, module = file.layer(number), captured._attention[number]
            v = module.v_proj(torch.as_tensor(layer.x)).detach().numpy()
            np.testing.assert_allclose(v.reshape(layer.v.shape), layer.v, rtol=1e-5, atol=1e-5)


def test_attributes_say_what_a_layer_adds(tmp_path, sequences):
    found = {}
    for family in FAMILIES:
        capture(TransformersModel(make_model(family)), sequences, tmp_path / f"{family}.h5")
        with ActivationsReader(tmp_path / f"{family}.h5") as file:
            found[family] = [file.layer(number) for number in file.layers]
    assert [layer.sliding_window for layer in found["mistral"]] == [WINDOW] * 4
    assert [layer.sliding_window for layer in found["gemma3"]] == [WINDOW, None] * 2
    assert [layer.sliding_window for layer in found["exaone4"]] == [WINDOW, None] * 2
    assert [layer.attention_chunk for layer in found["llama4"]] == [WINDOW, None] * 2
    assert [layer.softcap for layer in found["gemma2"]] == [5.0] * 4
    assert [layer.softmax_scale for layer in found["gemma3"]] == [20 ** -0.5] * 4
    assert all(layer.sinks.shape == (8,) for layer in found["gpt_oss"])
    assert [layer.rotary_dim for layer in found["minimax_m3"]] == [8] * 4
    assert [is_plain(layer) for family in ("llama", "qwen3", "minimax_m2")
            for layer in found[family]] == [True] * 12


def run_program(name, *arguments):
    return subprocess.run([BIN / name, *map(str, arguments)], check=True, capture_output=True,
                          text=True).stdout


@needs_programs
@pytest.mark.parametrize("family", FAMILIES)
def test_analyze_with_all_blocks_gives_the_models_own_output(tmp_path, sequences, family):
    """With its window, soft cap and sinks."""
    model = make_model(family)
    captured = TransformersModel(model)
    capture(captured, sequences, tmp_path / "a.h5")
    run_program("msa-inspect", tmp_path / "a.h5", "--stats")
    blocks = -(-max(LENGTHS) // BLOCK)
    with ActivationsReader(tmp_path / "a.h5") as file:
        layers = ",".join(map(str, file.layers))  # named, as windowed layers are out by default
    run_program("msa-analyze", tmp_path / "a.h5", "--out", tmp_path / "r", "--selectors", "oracle",
                "--layers", layers, "--block-size", BLOCK, "--top-k", blocks, "--all-rows",
                "--dump", "outputs")
    outputs, selected = own_answers(model, captured._attention, sequences)
    compared = 0
    with ActivationsReader(tmp_path / "a.h5") as file, \
            h5py.File(tmp_path / "r/results.h5") as results:
        for number in file.layers:
            layer = file.layer(number)
            if layer.attention_chunk or number in selected:
                continue
            assert_close(results[f"outputs/oracle/{number}/out"][:], outputs[number], layer)
            compared += 1
    assert compared


@needs_programs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_minimax_m3_selects_what_transformers_selects(tmp_path, sequences, dtype):
    model = make_model("minimax_m3", dtype)
    captured = TransformersModel(model)
    capture(captured, sequences, tmp_path / "a.h5", layers=[1, 3])
    run_program("msa-analyze", tmp_path / "a.h5", "--out", tmp_path / "r", "--selectors", "index",
                "--block-size", BLOCK, "--top-k", TOP_K, "--dump", "outputs")
    outputs, selected = own_answers(model, captured._attention, sequences)
    with ActivationsReader(tmp_path / "a.h5") as file, \
            h5py.File(tmp_path / "r/results.h5") as results:
        for number in (1, 3):
            expected = np.where(selected[number] < 0, 999, selected[number])
            expected.sort(axis=-1)  # theirs are in descending score
            np.testing.assert_array_equal(results[f"select/index/{number}/ids"][:],
                                          np.where(expected == 999, -1, expected))
            assert_close(results[f"outputs/index/{number}/out"][:], outputs[number],
                         file.layer(number))


def test_minimax_m3_index_branch_follows_from_x_and_weights(tmp_path, sequences):
    model = make_model("minimax_m3")
    capture(TransformersModel(model), sequences, tmp_path / "a.h5")
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.layer(0).index_q is None
        layer, first = file.layer(1), [0, 150]  # RoPE leaves position 0 as it is
    assert (layer.index_q.shape, layer.index_k.shape) == ((211, 2, 16), (211, 16))
    for name, values in (("index_q", layer.index_q), ("index_k", layer.index_k[:, None])):
        heads = (layer.x[first] @ layer.weights[f"w_{name}"].T).reshape(2, -1, 16)
        heads /= np.sqrt((heads ** 2).mean(-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(heads * layer.weights[f"{name}_norm"], values[first], rtol=1e-4)


def recorded(tmp_path, model, sequences, name):
    capture(TransformersModel(model), sequences, tmp_path / f"{name}.h5", overwrite=True)
    with ActivationsReader(tmp_path / f"{name}.h5") as file:
        return file.layer(0)


@pytest.mark.parametrize("family", SHARING)
def test_layers_that_share_keys_hold_those_of_their_source(tmp_path, sequences, family):
    model = make_model(family, families=SHARING).eval()
    path = tmp_path / "a.h5"
    capture(TransformersModel(model), sequences, path)
    with ActivationsReader(path) as file:
        assert file.layers == list(range(6))
        layers = {number: file.layer(number) for number in file.layers}
        for reader, source in ((4, 2), (5, 3)):
            for name in ("k", "v"):
                assert np.array_equal(getattr(layers[reader], name), getattr(layers[source], name))
            assert not np.array_equal(layers[reader].q, layers[source].q)
        modules = {number: module.self_attn for number, module in
                   enumerate(model.get_decoder().layers)}
        outputs, _ = own_answers(model, modules, sequences)
        for number, layer in layers.items():
            assert layer.sliding_window == (None if number % 2 else WINDOW)
            own = attention(layer, file.cu_seqlens)
            assert np.abs(own - outputs[number]).max() < 1e-4 * np.abs(outputs[number]).max()


def test_qsa_selects_what_transformers_selects(tmp_path, sequences):
    model = make_model("qwen4_exp", families=QSA).eval()
    masks = []
    for layer in model.get_decoder().layers[1::2]:
        layer.self_attn.indexer.register_forward_hook(lambda *call: masks.append(call[2][0, 0].numpy()))
    path = tmp_path / "a.h5"
    whole = TransformersModel(model)
    masks.clear()  # of the two tokens that found the layers
    capture(whole, sequences, path)
    with ActivationsReader(path) as file:
        assert file.layers == [1, 3]
        layers = [file.layer(number) for number in file.layers]
        first, keys, chosen = 0, 0, 0
        for sequence, length in enumerate(LENGTHS):
            for at, layer in enumerate(layers):
                assert (layer.own_attention, layer.qsa_compress) == ("sparse", QSA_COMPRESS)
                assert len(layer.qsa_k) == sum(one // QSA_COMPRESS for one in LENGTHS)
                q = layer.qsa_q[first:first + length]
                k = layer.qsa_k[keys:keys + length // QSA_COMPRESS]
                scores = np.maximum(np.einsum("ihd,nd->ihn", q, k), 0).sum(1)
                for i in range(length):
                    count = (i + 1) // QSA_COMPRESS
                    seen = masks[2 * sequence + at][i]
                    assert seen[count * QSA_COMPRESS:i + 1].all() and not seen[i + 1:].any()
                    pieces = seen[:count * QSA_COMPRESS].reshape(count, QSA_COMPRESS)
                    kept = pieces.all(1)
                    assert np.array_equal(kept, pieces.any(1))
                    assert kept.sum() == min(count, QSA_BUDGET // QSA_COMPRESS)
                    of = scores[i, :count]  # many are 0, and topk has no order among equals
                    if not kept.all():
                        assert of[kept].min() >= of[~kept].max() - 1e-5 * of.max(), (sequence, at, i)
                    chosen += int((of[kept] > of.min(initial=np.inf)).sum())
            first, keys = first + length, keys + length // QSA_COMPRESS
        assert chosen > 1000


@pytest.mark.parametrize("family", OTHERS)
def test_other_kinds_of_attention_are_refused_by_name(tmp_path, sequences, family):
    config, name, options, layer, message = OTHERS[family]
    model = TransformersModel(make_model(family, families={family: (config, name, options)}).eval())
    with pytest.raises(CaptureError, match=message):
        capture(model, sequences, tmp_path / "a.h5", layers=[layer])
    assert not list(tmp_path.iterdir())


def test_every_attention_implementation_is_recorded(tmp_path, sequences):
    def flash(module, query, key, value, *rest, **arguments):
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(
            module, query, key, value, *rest, **arguments)

    functions = transformers.AttentionInterface
    functions.register("a_kernel_of_its_own", flash)
    layers = []
    for name in ("eager", "sdpa", "a_kernel_of_its_own"):
        model = make_model("qwen3")
        model.set_attn_implementation(name)
        layers.append(recorded(tmp_path, model, sequences, name))
    for layer in layers[1:]:
        for name, array in layer.arrays().items():
            np.testing.assert_array_equal(array, layers[0].arrays()[name])


def test_the_model_is_left_as_it_was(tmp_path, sequences):
    model = make_model("minimax_m3")
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as namespace
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    before = namespace.apply_rotary_pos_emb, functions.get_interface
    with torch.no_grad():
        logits = model(torch.as_tensor(sequences[0])[None]).logits
    captured = TransformersModel(model)
    capture(captured, sequences, tmp_path / "a.h5")
    with pytest.raises(CaptureError, match="exists"):
        capture(captured, sequences, tmp_path / "a.h5")
    assert (namespace.apply_rotary_pos_emb, functions.get_interface) == before
    assert not any(module._forward_pre_hooks or module._forward_hooks
                   for module in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(model(torch.as_tensor(sequences[0])[None]).logits, logits)


def test_the_model_runs_no_further_than_the_last_layer(tmp_path, sequences):
    model = make_model("llama")
    ran = []
    model.model.layers[2].mlp.register_forward_hook(lambda *_: ran.append(2))
    captured = TransformersModel(model)
    ran.clear()
    capture(captured, sequences, tmp_path / "a.h5", layers=[0, 2])
    assert not ran


def test_refusals_name_what_is_wrong(tmp_path, sequences):
    def refused(model, words, **options):
        with pytest.raises(CaptureError, match=words):
            capture(TransformersModel(model), sequences, tmp_path / "a.h5", **options)
        assert not os.listdir(tmp_path)

    refused(make_model("llama"), "no layer 4, 9 with softmax attention.*there are: 0, 1, 2, 3",
            layers=[1, 4, 9])
    refused(make_model("minimax"), "no layer 0 .*there are: 1, 3", layers=[0, 1])
    sequences[1][5] = 97
    refused(make_model("llama"), "token ids from 3 to 97; the vocabulary of .* is 0 to 96")
    sequences[1][5] = 3
    refused(make_model("minimax_m3", index_n_heads=4), "MiniMaxM3VL.*Indexer has 4 index heads; there is one index head "
            "for each of the 2 groups")
    broken = make_model("qwen3")
    with torch.no_grad():
        broken.model.layers[1].self_attn.v_proj.weight[3] = torch.nan
    refused(broken, "layer 1: v holds 150 values that are NaN or Inf; the first: token 0, head 0, "
                    "channel 3")


class Block(nn.Module):
    """A hand-written attention layer: joint projection, interleaved RoPE, no transformers."""

    def __init__(self, width=48, heads=6, kv_heads=3, dim=16):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * dim)
        self.out = nn.Linear(heads * dim, width)

    def operands(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.dim)).split(
            (self.heads, self.kv_heads, self.kv_heads), dim=-2)
        angle = torch.arange(x.shape[1])[:, None, None] * 100.0 ** (-torch.arange(8) / 8)

        def rotate(heads):
            turned = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
            turned = turned * torch.polar(torch.ones_like(angle), angle)
            return torch.view_as_real(turned).flatten(-2)

        return rotate(q), rotate(k), v

    def attend(self, x):
        q, k, v = (heads.transpose(1, 2) for heads in self.operands(x))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                              enable_gqa=True)
        self.attended = attended[0].transpose(0, 1)
        return self.out(attended.transpose(1, 2).flatten(2))

    forward = attend


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 48)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(block.norm(x))
        return x


class PlainAdapter(ModuleAdapter):
    def attention_modules(self):
        return dict(enumerate(self.model.blocks))

    def layer(self, block, x):
        q, k, v = block.operands(x)
        return Layer(q=to_numpy(q[0]), k=to_numpy(k[0]), v=to_numpy(v[0]), x=to_numpy(x[0]),
                     softmax_scale=block.dim ** -0.5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "minimax_m2"])
@torch.no_grad()
def test_taken_before_rope_and_rotated_it_is_what_is_captured(tmp_path, sequences, family):
    """Padded [B, H, S, D] from hooks before RoPE, through convert and convert --apply-rope. Both
    form angles, one of them in float32: one of p radians is off by a rounding of its size."""
    model = make_model(family)
    capture(TransformersModel(model), sequences, tmp_path / "post.h5", [1])
    with ActivationsReader(tmp_path / "post.h5") as file:
        captured = file.layer(1)
    module, taken = model.model.layers[1].self_attn, {}
    with ExitStack() as stack:
        for side in "qkv":
            source = getattr(module, f"{side}_norm", None) or getattr(module, f"{side}_proj")
            stack.callback(source.register_forward_hook(
                lambda _, __, result, side=side: taken.setdefault(side, []).append(
                    to_numpy(result.reshape(result.shape[1], -1, module.head_dim)))).remove)
        for tokens in sequences:
            model(torch.as_tensor(tokens)[None], use_cache=False)
    arrays = {}
    for side, parts in taken.items():
        rows = np.full((len(parts), max(LENGTHS), *parts[0].shape[1:]), 777, np.float32)
        for row, part in zip(rows, parts):
            row[:len(part)] = part
        arrays[f"layers.1.{side}"] = np.ascontiguousarray(rows.swapaxes(1, 2))
    np.savez(tmp_path / "pre.npz", **arrays)
    config = model.config.get_text_config()
    (tmp_path / "config.json").write_text(config.to_json_string())
    common = ["--out", str(tmp_path / "pre.h5"), "--layout", "bhsd", "--lengths",
              ",".join(map(str, LENGTHS)), "--state", "pre_rope"]
    assert main(["convert", str(tmp_path / "pre.npz"), *common, "--rotary-dim",
                 str(captured.rotary_dim), "--rope-theta", str(captured.rope_theta),
                 "--model-config", str(tmp_path / "config.json")]) == 0
    assert main(["convert", str(tmp_path / "pre.h5"), "--apply-rope", "--out",
                 str(tmp_path / "rotated.h5")]) == 0
    with ActivationsReader(tmp_path / "rotated.h5") as file:
        rotated = file.layer(1)
    assert (rotated.q_state, rotated.k_state) == (captured.q_state, captured.k_state)
    assert rotated.softmax_scale == captured.softmax_scale
    np.testing.assert_array_equal(rotated.v, captured.v)
    for side in "qk":
        got, expected = getattr(rotated, side), getattr(captured, side)
        np.testing.assert_allclose(got, expected, rtol=0, atol=np.abs(expected).max()
                                   * (max(LENGTHS) + 4) * 2.0 ** -23)
        assert np.abs(got - np.concatenate(taken[side])).max() > 0.1  # RoPE did turn them


def test_a_plain_module_through_an_adapter(tmp_path, sequences):
    torch.manual_seed(SEED)
    model = Plain()
    capture(PlainAdapter(model, "plain", {"width": 48}), sequences[:1], tmp_path / "a.h5", [0, 2])
    with torch.no_grad():
        model(torch.as_tensor(sequences[0])[None])
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert (file.layers, json.loads(file.model_config)) == ([0, 2], {"width": 48})
        for number in file.layers:
            layer = file.layer(number)
            assert_close(attention(layer, file.cu_seqlens),
                         to_numpy(model.blocks[number].attended), layer)


def test_sequences_are_cut_at_the_positions_of_the_model(tmp_path, sequences, capsys):
    model = make_model("qwen3")
    model.config.max_position_embeddings = 40
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "a.npy", sequences[0])
    np.save(tmp_path / "b.npy", sequences[1][:30])
    arguments = ["capture", str(tmp_path / "model"), "--tokens", str(tmp_path / "a.npy"), "--tokens",
                 str(tmp_path / "b.npy"), "--layers", "2", "--out"]
    told = f"a sequence has {len(sequences[0])} tokens, the model 40 positions: what is beyond them is "
    for more, cut, said in (([], 40, told + "cut off\n"), (["--max-tokens", "35"], 35, ""),
                            (["--max-tokens", "50"], 50, told + "captured, since --max-tokens asks for it\n")):
        assert main([*arguments, str(tmp_path / f"{cut}.h5"), *more]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines(True) if "positions" in line]
        assert "".join(lines) == said
        with ActivationsReader(tmp_path / f"{cut}.h5") as file:
            assert list(file.cu_seqlens) == [0, cut, cut + 30]


def test_of_a_model_of_bytes_each_byte_is_a_token(tmp_path, capsys):
    make_model("qwen3", vocab_size=256).save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("Blöcke, Block für Block")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.json").write_text(json.dumps(list((tmp_path / "a.txt").read_bytes())))
    command = ["capture", str(tmp_path / "model"), "--layers", "2", "--out"]
    assert main([*command, str(tmp_path / "text.h5"), "--text", str(tmp_path / "a.txt"), "--bytes"]) == 0
    assert main([*command, str(tmp_path / "tokens.h5"), "--tokens", str(tmp_path / "a.json")]) == 0
    with ActivationsReader(tmp_path / "text.h5") as one, ActivationsReader(tmp_path / "tokens.h5") as other:
        assert list(one.cu_seqlens) == list(other.cu_seqlens) == [0, 25]
        assert one.text.decode() == "Blöcke, Block für Block" and other.text is None
        assert list(one.token_ends) == list(range(1, 26))
        for name, array in one.layer(2).arrays().items():
            np.testing.assert_array_equal(array, other.layer(2).arrays()[name])
    capsys.readouterr()
    assert main([*command, str(tmp_path / "b.h5"), "--text", str(tmp_path / "empty.txt"), "--bytes"]) == 2
    assert "empty.txt: no tokens come of its text" in capsys.readouterr().err


def test_a_wrong_file_of_tokens_is_named_with_its_value_and_the_rule(tmp_path, capsys):
    make_model("llama").save_pretrained(tmp_path / "model")

    def refused(name, said, array=None, text=""):
        path = tmp_path / name
        path.write_text(text)
        if array is not None:
            np.save(path, array)
        words = ["capture", str(tmp_path / "model"), "--tokens", str(path), "--out", str(tmp_path / "a.h5")]
        assert main(words) == 2
        assert f"error: {path}: token ids {said}" in capsys.readouterr().err

    integers = "must be a list of integers, not empty, and "
    refused("a.npy", integers + "this is float64 [2]", np.array([1, 2.5]))
    refused("b.json", integers + "token 1 is 2.5", text="[1, 2.5]")
    refused("b.json", integers + "token 0 is True", text="[true, 3]")
    refused("c.json", integers + "this is {'ids': [1]}", text='{"ids": [1]}')
    refused("d.npy", "must be a .npy file or a JSON list, and this is no array of numbers: ", text="a text")
    refused("e.json", "from 3 to 97; the vocabulary of ", text="[3, 97]")


def test_command_line_captures_from_a_folder(tmp_path, sequences, capsys):
    model = make_model("qwen3", torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "a.npy", sequences[0])
    (tmp_path / "b.json").write_text(json.dumps(sequences[1].tolist()))
    arguments = ["capture", str(tmp_path / "model"), "--tokens", str(tmp_path / "a.npy"),
                 "--tokens", str(tmp_path / "b.json"), "--layers", "2", "--max-tokens", "100",
                 "--out", str(tmp_path / "a.h5")]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "sequence 2/2, 61 tokens: layer 2 (1/1)" in said
    assert "1 layer of 161 tokens: 0.00 GB\n" in said
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert (file.layers, list(file.cu_seqlens)) == ([2], [0, 100, 161])
        layer = file.layer(2)
        assert layer.q.dtype == bfloat16 and file.model_id == str(tmp_path / "model")
        assert (layer.rotary_dim, layer.rope_theta, layer.rope_inv_freq) == (16, 1e4, None)
        assert json.loads(file.model_config)["num_key_value_heads"] == 2
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    capture(TransformersModel(loaded), [sequences[0][:100], sequences[1]], tmp_path / "b.h5", [2])
    with ActivationsReader(tmp_path / "b.h5") as file:
        for name, array in layer.arrays().items():
            np.testing.assert_array_equal(array, file.layer(2).arrays()[name])
    assert main(arguments) == 2
    assert "a.h5: exists; --overwrite" in capsys.readouterr().err
    (tmp_path / "b.json").write_text("[1, 2")
    assert main([*arguments, "--overwrite"]) == 2
    assert "b.json: " in capsys.readouterr().err
    (tmp_path / "b.json").write_text("[]")
    assert main([*arguments, "--overwrite"]) == 2
    assert "b.json: token ids must be a list of integers" in capsys.readouterr().err
    np.savez(tmp_path / "c.npz", tokens=np.arange(4))
    assert main([*arguments[:2], "--tokens", str(tmp_path / "c.npz"), "--out", str(tmp_path / "c.h5")]) == 2
    assert "c.npz: token ids must be a .npy file or a JSON list, and this is no JSON: " in capsys.readouterr().err
    (tmp_path / "c.txt").write_text("words")
    assert main([*arguments[:2], "--text", str(tmp_path / "c.txt"), "--out",
                 str(tmp_path / "c.h5")]) == 2
    assert (f"{arguments[1]}: has no tokenizer that makes tokens of a text; --bytes is for models of bytes, "
            "--tokens takes token ids" in capsys.readouterr().err)
    make_model("llama", vocab_size=600).save_pretrained(tmp_path / "tokens")
    for words in (["--text", str(tmp_path / "c.txt")], arguments[2:4]):
        assert main(["capture", str(tmp_path / "tokens"), *words, "--bytes", "--out", str(tmp_path / "c.h5")]) == 2
        assert (f"--bytes is for models of bytes, and {tmp_path / 'tokens'} has a vocabulary of 600 tokens: must be "
                "from 256 to 512" in capsys.readouterr().err)
    (tmp_path / "b.json").write_text("[1, 2]")
    arguments[1] = str(tmp_path / "absent")
    assert main([*arguments, "--overwrite"]) == 2
    assert "absent: no such folder or file" in capsys.readouterr().err


def test_the_number_of_key_value_heads_may_differ_by_layer(tmp_path, sequences):
    model = make_model("gemma4", families=SHARING, num_kv_shared_layers=0, global_head_dim=32,
                       num_global_key_value_heads=4, attention_k_eq_v=True).eval()
    capture(TransformersModel(model), sequences, tmp_path / "a.h5")
    modules = {number: block.self_attn for number, block in enumerate(model.get_decoder().layers)}
    outputs, _ = own_answers(model, modules, sequences)
    with ActivationsReader(tmp_path / "a.h5") as file:
        for number in file.layers:
            layer = file.layer(number)
            assert layer.k.shape[1:] == ((4, 32) if number % 2 else (2, 16))
            assert np.abs(attention(layer, file.cu_seqlens) - outputs[number]).max() < 1e-4 * np.abs(outputs[number]).max()


class Looped(transformers.LlamaModel):
    """Its layers run twice."""

    def forward(self, input_ids=None, **options):
        found = super().forward(input_ids, **options)
        return super().forward(**options | {"inputs_embeds": found.last_hidden_state})


@pytest.mark.parametrize("layers", [None, [1, 2]])
def test_layers_that_run_twice_are_refused_by_name(tmp_path, sequences, layers):
    torch.manual_seed(SEED)
    model = TransformersModel(Looped(transformers.LlamaConfig(**SIZES)).eval(), "looped")
    with pytest.raises(CaptureError, match=f"layer {(layers or [0])[0]} of looped: its attention runs 2 times"):
        capture(model, sequences, tmp_path / "a.h5", layers)
    assert not list(tmp_path.iterdir())


class Packed(nn.Linear):
    """As a projection of four bits: its weight is not the one that it multiplies with."""

    def __init__(self, of):
        super().__init__(of.in_features, of.out_features, bias=of.bias is not None)
        self.own, self.bias = of.weight.data, of.bias
        self.weight = nn.Parameter(torch.zeros(of.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.own, self.bias)


def test_projections_of_four_bits_are_captured_as_they_multiply(tmp_path, sequences):
    found = []
    for packed in (False, True):
        model = make_model("minimax_m3").eval()
        for module in model.modules():
            if packed and hasattr(getattr(module, "indexer", None), "q_proj"):
                module.indexer.q_proj, module.indexer.k_proj = map(Packed, (module.indexer.q_proj,
                                                                            module.indexer.k_proj))
        path = tmp_path / f"{packed}.h5"
        capture(TransformersModel(model), sequences, path, [1, 3])
        with ActivationsReader(path) as file:
            found.append([file.layer(number).weights for number in (1, 3)])
    for plain, quantised in zip(*found):
        assert plain.keys() == quantised.keys() >= {"w_index_q", "w_index_k"}
        for name in plain:
            np.testing.assert_array_equal(plain[name], quantised[name])


def test_texts_are_read_byte_by_byte_and_limits_are_checked(tmp_path, capsys):
    make_model("llama", vocab_size=256).save_pretrained(tmp_path / "model")
    text = "One line,\r\nanother.\r"
    (tmp_path / "a.txt").write_bytes(text.encode())
    words = ["capture", str(tmp_path / "model"), "--bytes", "--text", str(tmp_path / "a.txt"), "--out",
             str(tmp_path / "a.h5"), "--layers", "1"]
    assert main([*words, "--max-tokens", "0"]) == 2
    assert "--max-tokens is 0, must be at least 1" in capsys.readouterr().err
    assert main(words) == 0
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert bytes(file.tokens.tolist()) == text.encode()


def test_a_model_with_code_of_its_own_is_refused_without_advice_that_no_command_has(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}))
    (tmp_path / "a.json").write_text("[1, 2]")
    assert main(["capture", str(tmp_path / "model"), "--tokens", str(tmp_path / "a.json"), "--out",
                 str(tmp_path / "a.h5")]) == 2
    said = capsys.readouterr().err
    assert "cannot be loaded: it has code of its own (auto_map in its configuration), which no command runs" in said
    assert "trust_remote_code" not in said


def captured_hybrid(family, path):
    """Of a model some of whose layers have no softmax attention: TransformersModel and what capture() noted."""
    model, notes = make_model(family, families={family: HYBRID[family][:3]}).eval(), []
    of = TransformersModel(model)
    capture(of, [np.arange(3, 40)], path, note=notes.append)
    return of, notes


@pytest.mark.parametrize("family", HYBRID)
def test_layers_without_softmax_attention_are_named(family, tmp_path):
    of, notes = captured_hybrid(family, tmp_path / "a.h5")
    others, said = HYBRID[family][3:]
    assert of.without_attention == others
    assert sorted([*of.layers, *others]) == list(range(4))
    assert notes[-1] == f"{said}, no softmax attention, which msalab leaves as it is"


def test_a_model_whose_layers_all_attend_has_none_to_name(tmp_path):
    notes = []
    of = TransformersModel(make_model("llama").eval())
    capture(of, [np.arange(3, 40)], tmp_path / "a.h5", note=notes.append)
    assert not of.without_attention and not [note for note in notes if "softmax" in note]


@needs_programs
@pytest.mark.parametrize("family", HYBRID)
def test_msa_inspect_names_the_same_layers(family, tmp_path):
    """It reads them in the model's configuration, which the capture has."""
    captured_hybrid(family, tmp_path / "a.h5")
    shown = subprocess.run([BIN / "msa-inspect", tmp_path / "a.h5", "--json"], check=True, capture_output=True)
    named = json.loads(shown.stdout)[0]["without_attention"]
    assert {number: kind.replace("_", " ") for kind, layers in named.items() for number in layers} == HYBRID[family][3]
