# SPDX-License-Identifier: MIT
"""Models in a GGUF file: captured and evaluated as the same weights in a folder are. The files are made
by the package gguf, as llama.cpp lays a Llama out."""

import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("transformers", reason="transformers is not installed: requirements-capture.txt")
gguf = pytest.importorskip("gguf", reason="gguf is not installed: requirements-capture.txt")
pytest.importorskip("accelerate", reason="accelerate is not installed: requirements-capture.txt")

from test_capture_models import SIZES, make_model  # noqa: E402

from msalab import results  # noqa: E402
from msalab.capture.__main__ import main  # noqa: E402
from msalab.capture.layer import bfloat16  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402
from msalab.evaluation.__main__ import main as evaluate  # noqa: E402

HEADS, GROUPS, DIM = (SIZES[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def small_llama():
    return make_model("llama", vocab_size=256, hidden_size=HEADS * DIM).eval()


def name_of(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return NAMES[name] + ".weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def in_pairs(weight, heads):
    """llama.cpp turns neighbouring channels of a Llama, transformers those half a head apart."""
    return weight.reshape(heads, 2, DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, architecture="llama", kind=None):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        for side, heads in (("q", HEADS), ("k", GROUPS)):
            values = in_pairs(values, heads) if f"{side}_proj" in name else values
        if kind is not None and values.ndim == 2:
            values = gguf.quants.quantize(values, kind)
            writer.add_tensor(name_of(name), values, raw_dtype=kind)
        else:
            writer.add_tensor(name_of(name), values)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file,
                  writer.write_tensors_to_file, writer.close):
        write()


def of_words(joins_words=True):
    """A tokenizer of ' the', ' and', ' for' and letters. joins_words: else its merges come in another order, by which none
    of its words is found."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    right = [merge for a, b, c in ("the", "and", "for") for merge in ((a, b), (a + b, c), ("▁", a + b + c))]
    wrong = [merge for a, b, c in ("the", "and", "for") for merge in (("▁", a), (b, c))]
    pieces = [*"abcdefghijklmnopqrstuvwxyz.▁", *dict.fromkeys(map("".join, right + wrong))]
    merges = right + wrong if joins_words else wrong + right
    made = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, merges))
    made.normalizer, made.decoder = normalizers.Replace(" ", "▁"), decoders.Replace("▁", " ")
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(np.random.default_rng(1).integers(3, 256, 60).tolist()))
    return path


def captured(model, tokens, out, dtype="float32"):
    assert main(["capture", str(model), "--tokens", str(tokens), "--out", str(out), "--dtype", dtype]) == 0
    with ActivationsReader(out) as file:
        return {number: file.layer(number) for number in file.layers}


def test_a_gguf_file_is_captured_as_its_weights_in_a_folder_are(tmp_path, tokens):
    model = small_llama()
    model.save_pretrained(tmp_path / "folder")
    write_gguf(tmp_path / "small.gguf", model)
    expected = captured(tmp_path / "folder", tokens, tmp_path / "folder.h5")
    found = captured(tmp_path / "small.gguf", tokens, tmp_path / "gguf.h5")
    assert found.keys() == expected.keys()
    for number, layer in expected.items():
        assert (found[number].rotary_dim, found[number].rope_theta) == (DIM, layer.rope_theta)
        for name, values in layer.arrays().items():
            np.testing.assert_array_equal(getattr(found[number], name), values)


def test_quantised_weights_are_read(tmp_path, tokens):
    model = small_llama()
    write_gguf(tmp_path / "f32.gguf", model)
    write_gguf(tmp_path / "q8.gguf", model, kind=gguf.GGMLQuantizationType.Q8_0)
    exact = captured(tmp_path / "f32.gguf", tokens, tmp_path / "f32.h5")[0]
    found = captured(tmp_path / "q8.gguf", tokens, tmp_path / "q8.h5")[0]
    error = np.linalg.norm(found.q - exact.q) / np.linalg.norm(exact.q)
    assert 0 < error < 0.03


def test_a_gguf_file_is_captured_in_half_precision(tmp_path, tokens, capsys):
    write_gguf(tmp_path / "q8.gguf", small_llama(), kind=gguf.GGMLQuantizationType.Q8_0)
    own = captured(tmp_path / "q8.gguf", tokens, tmp_path / "own.h5", "auto")[0]
    assert own.q.dtype == bfloat16
    assert "in half precision" not in capsys.readouterr().err
    captured(tmp_path / "q8.gguf", tokens, tmp_path / "f32.h5")
    assert " GB; in half precision (--dtype bfloat16) half of it" in capsys.readouterr().err


def test_a_gguf_file_is_evaluated_as_its_weights_in_a_folder_are(tmp_path):
    pytest.importorskip("msalab._msalab", reason="the module is not built")
    model = small_llama()
    model.save_pretrained(tmp_path / "folder")
    write_gguf(tmp_path / "small.gguf", model)
    text = tmp_path / "text.txt"
    text.write_text("Blocks of keys are chosen, block by block. " * 9)
    found = {}
    for name in ("folder", "small.gguf"):
        assert evaluate([str(tmp_path / name), "--text", str(text), "--bytes", "--context", "100",
                         "--out", str(tmp_path / f"out-{name}"), "--block-size", "16", "--top-k", "2",
                         "--tasks", "", "--selectors", "mean-key", "--forced-first", "0"]) == 0
        found[name] = results.open(tmp_path / f"out-{name}")["configs"]["bits_of_text"].tolist()
    assert found["folder"] == found["small.gguf"] and len(found["folder"]) == 2


def test_what_cannot_be_read_is_said(tmp_path, tokens, capsys, monkeypatch):
    def refused(text, name, *more):
        arguments = more or ("--tokens", str(tokens))
        assert main(["capture", str(tmp_path / name), *arguments, "--out", str(tmp_path / "a.h5")]) == 2
        error = capsys.readouterr().err
        assert name in error and text in error and not (tmp_path / "a.h5").exists()

    refused("no such file", "none.gguf")
    write_gguf(tmp_path / "other.gguf", small_llama(), architecture="rwkv7")
    refused("architecture rwkv7 is not supported", "other.gguf")
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF" + bytes(40))
    refused("cannot be loaded", "damaged.gguf")
    write_gguf(tmp_path / "plain.gguf", small_llama())
    (tmp_path / "text.txt").write_text("some")
    refused("has no tokenizer that can be loaded", "plain.gguf", "--text", str(tmp_path / "text.txt"))
    data = bytearray((tmp_path / "plain.gguf").read_bytes())
    place = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8  # then its type
    data[place:place + 4] = (99).to_bytes(4, "little")
    (tmp_path / "unknown.gguf").write_bytes(data)
    refused("is not a valid GGMLQuantizationType", "unknown.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr("msalab.capture.gguf.find_spec", lambda name: None)
    refused("needs the package gguf, which is not installed: pip install gguf", "plain.gguf")


def test_a_tokenizer_that_splits_its_own_words_is_refused(tmp_path, capsys, monkeypatch):
    """As transformers 5.17 makes one of Gemma's file: what it encodes is decoded as it was, and the model knows none of
    it."""
    import transformers

    write_gguf(tmp_path / "small.gguf", small_llama())
    (tmp_path / "text.txt").write_text("a word and the next for the last. " * 9)
    for joins_words, code in ((True, 0), (False, 2)):
        made = of_words(joins_words)
        assert made.decode(made("and the next")["input_ids"]) == "and the next"
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, made=made, **__: made)
        assert main(["capture", str(tmp_path / "small.gguf"), "--text", str(tmp_path / "text.txt"), "--out",
                     str(tmp_path / f"{code}.h5")]) == code
        assert (tmp_path / f"{code}.h5").exists() == joins_words
    error = capsys.readouterr().err
    assert "small.gguf: transformers " in error and "splits 3 of 3 words" in error and "at most half may be split" in error


def test_it_is_trained_into_a_folder(tmp_path):
    """Of four bits. The warm-up changes nothing: the folder has the weights that were read, in bfloat16."""
    train = pytest.importorskip("msalab.training.__main__", reason="the module is not built").main
    transformers = pytest.importorskip("transformers")
    path, text = tmp_path / "small.gguf", tmp_path / "text.txt"
    write_gguf(path, small_llama(), kind=gguf.GGMLQuantizationType.Q4_1)
    text.write_text("a few words of a text " * 20)
    assert train([str(path), "--data", str(text), "--bytes", "--out", str(tmp_path / "out"), "--context", "32",
                  "--batch", "1", "--block-size", "8", "--top-k", "2", "--steps", "2", "--warmup-steps", "2"]) == 0
    read, made = (transformers.AutoModelForCausalLM.from_pretrained(place, dtype="bfloat16", **how).state_dict()
                  for place, how in ((tmp_path, {"gguf_file": "small.gguf"}), (tmp_path / "out/model", {})))
    assert read.keys() == made.keys() and all(torch.equal(read[name], made[name]) for name in read)
