# SPDX-License-Identifier: MIT
"""msalab.capture convert, without PyTorch."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from make_indexer import make_indexer
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file
from test_capture_files import (OWN_SELECTION, SCALED_ROPE, Fake, assert_same, random_layer)

import msalab.capture
from msalab.capture import CaptureError, capture, fitted
from msalab.capture.__main__ import main
from msalab.capture.layer import bfloat16
from msalab.capture.reader import ActivationsReader
from msalab.capture.rope import apply_rope, frequencies, positions

GOLDEN = Path(__file__).parents[2] / "tests/goldens/minimax_m3_b32k4.h5"
LENGTHS = (70, 33, 51)  # of three sequences


def convert(*arguments) -> int:
    return main(["convert", *map(str, arguments)])


def layers_of(path) -> dict:
    with ActivationsReader(path) as file:
        return {number: file.layer(number) for number in file.layers}


@pytest.fixture
def packed():
    """Layer number -> layer, the sequences of LENGTHS one after the other."""
    return {number: replace(random_layer(sum(LENGTHS), number, bfloat16, index_dim=16),
                            weights={}) for number in (3, 12)}


def padded(array, layout):
    """[N, ...] -> [B, S, ...], rows filled up with numbers that must not be seen."""
    rows = np.full((len(LENGTHS), max(LENGTHS), *array.shape[1:]), 777, array.dtype)
    for row, part in zip(rows, np.split(array, np.cumsum(LENGTHS)[:-1])):
        row[:len(part)] = part
    return rows.swapaxes(1, 2) if layout == "bhsd" and rows.ndim == 4 else rows


def named(layers, pattern="layers.{layer}.{field}", shape=lambda array: array):
    return {pattern.format(layer=number, field=name): np.ascontiguousarray(shape(array))
            for number, layer in layers.items() for name, array in layer.arrays().items()}


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "packed"])
def test_import_of_every_layout(tmp_path, packed, layout, suffix):
    arrays = named(packed, shape=(lambda a: a) if layout == "packed" else
                   lambda a: padded(a, layout))
    tokens = np.arange(sum(LENGTHS), dtype=np.int32)
    arrays["tokens"] = tokens if layout == "packed" else padded(tokens, layout)
    source, out = tmp_path / f"a.{suffix}", tmp_path / "a.h5"
    save_file(arrays, source) if suffix == "safetensors" else np.savez(source, **arrays)
    assert convert(source, "--out", out, "--layout", layout, "--lengths",
                   ",".join(map(str, LENGTHS)), "--state", "post_rope", "--softmax-scale", 0.25,
                   "--model-id", "mine") == 0
    got = layers_of(out)
    assert list(got) == [3, 12]
    for number, layer in packed.items():
        assert_same(got[number], layer)
    with ActivationsReader(out) as file:
        np.testing.assert_array_equal(file.cu_seqlens, [0, 70, 103, 154])
        np.testing.assert_array_equal(file.tokens, tokens)
        assert file.model_id == "mine"


def test_import_of_npy_files_and_own_names(tmp_path):
    layer = random_layer(40, dtype=np.float32)
    for name in ("q", "k", "v"):
        np.save(tmp_path / f"my_{name}.npy", padded_batch(getattr(layer, name)).astype(float))
    paths = [tmp_path / f"my_{name}.npy" for name in "qkv"]
    assert convert(*paths, "--names", "my_{field}", "--layers", 5, "--layout", "bhsd", "--state",
                   "pre_rope", "--out", tmp_path / "a.h5") == 0
    got = layers_of(tmp_path / "a.h5")
    assert_same(got[5], replace(layer, x=None, q_state="pre_rope", k_state="pre_rope"))


def padded_batch(array):
    """[S, H, D] -> [1, H, S, D]"""
    return array.swapaxes(0, 1)[None]


def test_export_and_import_give_the_same_file(tmp_path):
    def make(tokens, number):
        return replace(random_layer(tokens, number, bfloat16, index_dim=16), rotary_dim=8,
                       sliding_window=9, sinks=np.ones(4, np.float32),
                       **SCALED_ROPE, **OWN_SELECTION)

    capture(Fake(make), [range(30), range(5)], tmp_path / "a.h5")
    assert convert(tmp_path / "a.h5", "--out", tmp_path / "a.safetensors") == 0
    arrays = load_file(tmp_path / "a.safetensors")
    assert arrays["layers.2.q"].dtype == bfloat16 and arrays["layers.2.q"].shape == (35, 4, 16)
    assert convert(tmp_path / "a.safetensors", "--out", tmp_path / "b.h5") == 0
    first, second = layers_of(tmp_path / "a.h5"), layers_of(tmp_path / "b.h5")
    assert first.keys() == second.keys() and first[0].weights
    for number in first:
        assert_same(second[number], first[number])
    with h5py.File(tmp_path / "a.h5") as a, h5py.File(tmp_path / "b.h5") as b:
        assert dict(a.attrs) == dict(b.attrs)
        for name in ("cu_seqlens", "tokens"):
            np.testing.assert_array_equal(a[name], b[name])
    assert convert(tmp_path / "a.h5", "--layers", "1,3", "--out", tmp_path / "c.safetensors") == 0
    assert {name.split(".")[1] for name in load_file(tmp_path / "c.safetensors")
            if "layers" in name} == {"1", "3"}


def test_positions_start_again_with_every_sequence():
    np.testing.assert_array_equal(positions(np.array([0, 3, 4, 6])), [0, 1, 2, 0, 0, 1])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_by_position_times_frequency(interleaved):
    heads = np.random.default_rng(1).standard_normal((3, 2, 8))
    turned = apply_rope(heads, np.array([0, 5, 6]), frequencies(6, 100.0), 1.5, interleaved)
    np.testing.assert_array_equal(turned[0, :, :6], 1.5 * heads[0, :, :6])
    np.testing.assert_array_equal(turned[..., 6:], heads[..., 6:])
    for pair in range(3):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 3)
        angle = 5 * 100.0 ** (-2 * pair / 6)
        rotation = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        np.testing.assert_allclose(turned[1][:, [a, b]], 1.5 * heads[1][:, [a, b]] @ rotation,
                                   rtol=1e-12)


def test_apply_rope_makes_the_queries_of_transformers(tmp_path):
    """Projected and normed here, rotated by convert, compared with what transformers computed.
    It forms angles in float32: one of p radians is off by a rounding of its size, and turns values
    of at most `largest`."""
    with h5py.File(GOLDEN) as golden:
        config = json.loads(golden.attrs["config"])
        x = golden["x"][:].astype(float)

        def normed(name, heads):
            values = (x @ golden[f"weights/w_{name}"][:].T.astype(float)).reshape(len(x), heads, -1)
            values /= np.sqrt((values ** 2).mean(-1, keepdims=True) + config["rms_norm_eps"])
            return values * (1 + golden[f"weights/{name}_norm"][:])

        np.savez(tmp_path / "a.npz", **{
            "layers.0.q": normed("q", 8).astype(np.float32), "layers.0.v": golden["v"][:],
            "layers.0.k": normed("k", 2).astype(np.float32)})
        expected = {name: golden[name][:] for name in "qk"}
    assert convert(tmp_path / "a.npz", "--state", "pre_rope", "--out", tmp_path / "pre.h5",
                   "--rotary-dim", config["rotary_dim"]) == 0
    assert convert(tmp_path / "pre.h5", "--apply-rope", "--rope-theta", config["rope_theta"],
                   "--out", tmp_path / "post.h5") == 0
    layer = layers_of(tmp_path / "post.h5")[0]
    assert (layer.q_state, layer.k_state, layer.rotary_dim) == ("post_rope", "post_rope", 16)
    largest = max(np.abs(values).max() for values in expected.values())
    for name, values in expected.items():
        kept = getattr(layer, name)[-len(values):]  # of q the golden has the last rows alone
        np.testing.assert_allclose(kept, values, rtol=0,
                                   atol=1e-5 + largest * len(x) * 2.0 ** -23)


@pytest.fixture
def refuse(tmp_path, capsys):
    """Runs convert on a.npz or the given file and expects exit code 2 and these words."""
    def run(words, *arguments, source="a.npz", **arrays):
        if arrays:
            np.savez(tmp_path / "a.npz", **{name.replace("__", "."): array
                                            for name, array in arrays.items()})
        out = tmp_path / "out.h5"
        arguments = arguments if "--out" in arguments else (*arguments, "--out", out)
        assert convert(tmp_path / source, *arguments) == 2
        error = capsys.readouterr().err
        for word in words:
            assert word in error
        assert not out.exists() and "out.h5.partial" not in os.listdir(tmp_path)
    return run


def test_import_names_what_is_wrong(tmp_path, refuse):
    q, k = np.zeros((6, 4, 16), np.float32), np.zeros((6, 2, 16), np.float32)
    arrays = {"layers__0__q": q, "layers__0__k": k, "layers__0__v": k}
    post = ("--state", "post_rope")
    refuse(["a.npz: layer 0: --state must say"], **arrays)
    refuse(["layer 0 has no v"], *post, layers__0__q=q, layers__0__k=k)
    refuse(["no array is named h{layer}.{field}", "layers.0.q"], "--names", "h{layer}.{field}",
           *post, **arrays)
    refuse(["no array is named", "[4]"], "--layers", 4, *post, **arrays)
    refuse(["must hold {field}"], "--names", "x", *post, **arrays)
    refuse(["a.npz: layers.0.q: has 6 tokens, the sequences have 5"], "--lengths", "2,3", *post,
           **arrays)
    refuse(["a.npz: layers.0.q: has shape (6, 4, 16), must have 4 axes in layout bhsd"],
           "--layout", "bhsd", *post, **arrays)
    refuse(["3 query heads, 2 key-value heads"], *post, **arrays | {"layers__0__q": q[:, :3]})
    values = np.random.default_rng(3).standard_normal((6, 2, 16)).astype(np.float32)
    repeated = values.repeat(2, axis=1)
    refuse(["a.npz: layer 0: k has 4 heads, as many as q, and heads 0 and 1 are the same; k and v "
            "must not be repeated"], *post, layers__0__q=q, layers__0__k=repeated,
           layers__0__v=repeated)
    refuse(["a.npz: layer 0: q is int64"], *post, **arrays | {"layers__0__q": q.astype(int)})
    (tmp_path / "b.safetensors").write_bytes(b"no such format")
    refuse(["b.safetensors"], *post, source="b.safetensors")
    refuse(["is no .safetensors"], *post, source="a.txt")
    for absent, arguments in (("absent.npy", post), ("absent.safetensors", post),
                              ("absent.h5", ("--apply-rope",))):
        refuse([f"error: {tmp_path / absent}: No such file or directory\n"], *arguments,
               source=absent)
    (tmp_path / "config.json").write_text("{")
    refuse(["config.json: "], *post, "--model-config", tmp_path / "config.json", **arrays)


@pytest.mark.parametrize("given, config, state, expected", [
    ((), None, "post_rope", None), (("--rope-theta", 1e4), None, "post_rope", 16),
    (("--rope-theta", 1e4, "--rotary-dim", 8), None, "pre_rope", 8), ((), {}, "pre_rope", 16),
    ((), {"rope_parameters": {"partial_rotary_factor": 0.25}}, "post_rope", 4),
    ((), {"text_config": {"rotary_dim": 6}}, "post_rope", 6), ((), {}, "none", None)])
def test_rope_turns_all_channels_unless_fewer_are_named(tmp_path, given, config, state, expected):
    layer = random_layer(6)
    np.savez(tmp_path / "a.npz", **named({0: layer}))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        given = (*given, "--model-config", tmp_path / "config.json")
    assert convert(tmp_path / "a.npz", "--state", state, *given, "--out", tmp_path / "a.h5") == 0
    assert layers_of(tmp_path / "a.h5")[0].rotary_dim == expected


def test_rotating_names_what_is_wrong(tmp_path, refuse):
    def make(config='{"rope_parameters": {"rope_type": "default"}}', **changes):
        model = Fake(lambda n, _: replace(random_layer(n), **changes))
        model.model_config = config
        capture(model, [range(8)], tmp_path / "a.h5", [0], overwrite=True)

    def rotated(words, *arguments):
        refuse(words, "--apply-rope", *arguments, source="a.h5")

    make()
    rotated(["q is post_rope, k is post_rope; there is nothing to rotate"], "--rope-theta", 1e4)
    make(q_state="pre_rope")
    rotated(["has no rope_theta"])
    rotated(["rotary_dim 18", "2 to 16"], "--rope-theta", 1e4, "--rotary-dim", 18)
    make('{"rope_scaling": {"rope_type": "yarn"}}', q_state="pre_rope")
    rotated(["type 'yarn'", "layer 0 has no rope_inv_freq"], "--rope-theta", 1e4)
    make(q_state="pre_rope", rotary_dim=8, **SCALED_ROPE)
    rotated(["layer 0: has rope_inv_freq, which --rotary-dim and --rope-theta contradict"],
            "--rope-theta", 1e4)
    refuse(["becomes .safetensors"], source="a.h5")
    make(q_state="pre_rope")
    rotated(["has no layer 7; there are: 0"], "--layers", 7, "--rope-theta", 1e4)


def test_options_without_effect_are_refused(tmp_path, refuse):
    q = np.ones((6, 4, 16), np.float32)
    refuse(["--apply-rope has no effect here: ", "a.npz is imported"], "--apply-rope", "--state",
           "pre_rope", layers__0__q=q)
    capture(Fake(), [range(8)], tmp_path / "a.h5")
    refuse(["--state has no effect here: ", "a.h5 is an activations file"], "--state", "pre_rope",
           source="a.h5")
    refuse(["--rope-theta has no effect here: it goes with --apply-rope"], "--rope-theta", 1e4,
           source="a.h5")


@pytest.mark.parametrize("damage, words", [
    (lambda file: file["cu_seqlens"].__setitem__(1, -3),
     ["/cu_seqlens: entry 1 is -3, must be above the one before it, 0"]),
    (lambda file: file["cu_seqlens"].__setitem__(0, 1), ["/cu_seqlens: starts at 1"]),
    (lambda file: file["cu_seqlens"].__setitem__(2, 9),
     ["/tokens must hold one integer for each of the 9 tokens"]),
    (lambda file: file["layers/0/q"].__setitem__((5, 1, 2), np.nan),
     ["/layers/0: q holds 1 values that are NaN or Inf", "token 5, head 1, channel 2 is nan"]),
    (lambda file: file["layers/0/x"].__setitem__((5, 2), np.inf), ["/layers/0: x holds 1 values"]),
    (lambda file: file["layers/0/weights/w_index_k"].__setitem__((3, 2), np.nan),
     ["/layers/0: weights/w_index_k holds 1 values", "token 3"]),
    (lambda file: file.__delitem__("layers/0/v"), ["/layers/0: object v is missing"]),
    (lambda file: file["layers/0"].attrs.__delitem__("q_state"),
     ["/layers/0: attribute q_state is missing"]),
    (lambda file: file["layers/0"].attrs.__setitem__("rotary_dim", "many"),
     ["/layers/0: rotary_dim is 'many', must be an integer"]),
    (lambda file: file.move("layers/0", "layers/first"), ["/layers/first is no layer number"])])
@pytest.mark.parametrize("target", ["out.safetensors", "out.h5"])
def test_damaged_activations_are_refused(tmp_path, refuse, damage, words, target):
    capture(Fake(lambda *of: replace(random_layer(*of, index_dim=16), q_state="pre_rope")),
            [range(5), range(3)], tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        damage(file)
    rotation = ["--apply-rope", "--rope-theta", 1e4] if target == "out.h5" else []
    refuse([f"error: {tmp_path / 'a.h5'}: ", *words], *rotation, "--out", tmp_path / target,
           source="a.h5")
    assert os.listdir(tmp_path) == ["a.h5"]


def test_sizes_that_a_file_cannot_hold_are_refused(tmp_path, refuse):
    capture(Fake(), [range(8)], tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["layers/0/q"]
        file.create_dataset("layers/0/q", (10 ** 9, 4, 16), "f4", chunks=(1024, 1, 16))
    refuse(["/layers/0/q was never written"],
           "--out", tmp_path / "a.safetensors", source="a.h5")
    np.save(tmp_path / "b.npy", np.zeros((4, 2, 16), np.float32))
    data = (tmp_path / "b.npy").read_bytes()
    larger = data.replace(b"(4, 2, 16), }" + 9 * b" ", b"(4000000000, 2, 16), }")
    assert len(larger) == len(data) and larger != data
    (tmp_path / "b.npy").write_bytes(larger)
    refuse(["b.npy: cannot be read: mmap length"], "--names", "{field}", "--state", "none",
           source="b.npy")


def test_import_refuses_sequences_that_do_not_ascend(tmp_path, refuse):
    q, k = np.zeros((6, 4, 16), np.float32), np.ones((6, 1, 16), np.float32)
    arrays = {"layers__0__q": q, "layers__0__k": k, "layers__0__v": k}
    for values, words in (([0, 9, 6], "entry 2 is 6, must be above the one before it, 9"),
                          ([0, -2, 6], "entry 1 is -2"), ([1, 6], "starts at 1"),
                          ([0.0, 6.0], "must be a list of at least 2 integers")):
        refuse([f"a.npz: cu_seqlens: {words}"], "--state", "none", cu_seqlens=np.array(values),
               **arrays)
    refuse(["sequences of [9, -3] tokens, must each have at least 1"], "--state", "none",
           "--lengths=9,-3", **arrays)
    refuse(["a.npz: tokens: token ids must be a list of integers"], "--state", "none",
           tokens=np.full(6, np.nan), **arrays)


def test_export_refuses_to_overwrite(tmp_path, refuse):
    capture(Fake(), [range(8)], tmp_path / "a.h5")
    (tmp_path / "a.safetensors").write_text("mine")
    refuse(["exists; --overwrite"], "--out", tmp_path / "a.safetensors", source="a.h5")
    assert (tmp_path / "a.safetensors").read_text() == "mine"


# Index Branches that msa-fit-indexer has fitted.

FIT = {"groups": 2, "dim": 16, "model_dim": 24}


def exported(path, out, *arguments):
    return main(["convert", str(path), "--out", str(out), "--overwrite", *arguments])


def test_a_fit_is_exported_with_all_that_scoring_needs(tmp_path):
    """Two fits of other RoPE are other files, and each is read as it was."""
    files = []
    for number, (rotary, theta) in enumerate([(8, 1e4), (16, 5e6)]):
        source = make_indexer(tmp_path / f"{number}.h5", [1, 3], **FIT, rotary=rotary, theta=theta)
        files.append(tmp_path / f"{number}.safetensors")
        assert exported(source, files[-1]) == 0
        for layer, expected in fitted.read(source).items():
            found = fitted.read(files[-1])[layer]
            assert (found.groups, found.theta) == (expected.groups, expected.theta)
            for name in ("w_q", "w_k", "frequencies"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            for name in ("norm_q", "norm_k"):  # 1 less is stored
                np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=2e-7)
    assert files[0].read_bytes() != files[1].read_bytes()
    with safe_open(files[0], "numpy") as file:
        form = json.loads(file.metadata()[fitted.METADATA])
    assert form == {"layers": [1, 3], "index_n_heads": 2, "index_head_dim": 16, "index_block_size": 16,
                    "index_topk_blocks": 3, "index_local_blocks": 1, "rope_type": "default",
                    "rope_theta": 1e4, "rotary_dim": 8, "rope_layout": "halves",
                    "rms_norm_eps": 1e-6, "index_scale": 0.25}
    assert exported(tmp_path / "0.h5", files[0], "--layers", "3") == 0
    assert list(fitted.read(files[0])) == [3]


def test_what_minimax_m3_cannot_say_of_a_fit_is_refused(tmp_path, capsys):
    def refused(text, **changes):
        source = make_indexer(tmp_path / "fit.h5", [1, 3], **FIT | changes)
        assert exported(source, tmp_path / "out.safetensors") == 2
        assert text in capsys.readouterr().err and not (tmp_path / "out.safetensors").exists()

    refused("layer 1: the Index Branch has no RoPE", rotary=0)
    refused("layer 1: the Index Branch has RoPE of other frequencies", rotary=4, frequencies=[1, 0.1])
    refused("layer 1: the Index Branch has no RMS norms", norm=False)
    refused("was fitted with --forced-first 1", first=1)
    source = make_indexer(tmp_path / "fit.h5", [1, 3], **FIT)
    with h5py.File(source, "a") as file:
        file["fit/3/weights"].attrs["rope_theta"] = 5e6
    assert exported(source, tmp_path / "out.safetensors") == 2
    assert "layer 3: theta 5000000.0, of layer 1 10000.0" in capsys.readouterr().err
    with h5py.File(source, "a") as file:
        del file["run"]
    assert exported(source, tmp_path / "out.safetensors", "--layers", "1") == 2
    assert "/run does not say block size and k" in capsys.readouterr().err
    (tmp_path / "other.safetensors").write_bytes(save({"a": np.ones(1, np.float32)}))
    with pytest.raises(CaptureError, match="has no metadata msalab_index_branch"):
        fitted.read(tmp_path / "other.safetensors")


def test_conversion_needs_no_pytorch(tmp_path):
    """Nor transformers, nor the compiled module."""
    source = make_indexer(tmp_path / "fit.h5", [1], **FIT)
    program = ("import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'msalab._msalab')))\n"
               "from msalab.__main__ import main; sys.exit(main(sys.argv[1:]))")
    folder = str(Path(msalab.capture.__file__).parents[2])
    for name in ("indexer.safetensors", "again.safetensors"):
        subprocess.run([sys.executable, "-c", program, "convert", source, "--out", tmp_path / name],
                       check=True, env={**os.environ, "PYTHONPATH": folder})


ROWS = {f"layers.{number}.{name}": np.random.default_rng(number).standard_normal((6, 2, 16)).astype(np.float32)
        for number in (0, 1) for name in "qkv"}


@pytest.mark.parametrize("config, attributes", [
    ({"attention_multiplier": 0.0078125}, ({"softmax_scale": 0.0078125},) * 2),
    ({"text_config": {"attention_multiplier": 0.5}}, ({"softmax_scale": 0.5},) * 2),
    ({"query_pre_attn_scalar": 64, "attn_logit_softcapping": 50.0, "sliding_window": 4,
      "layer_types": ["sliding_attention", "full_attention"]},
     ({"softmax_scale": 0.125, "softcap": 50.0, "sliding_window": 4}, {"softmax_scale": 0.125, "softcap": 50.0})),
    ({"model_type": "gemma4_text"}, ({"softmax_scale": 1.0},) * 2),
    ({"attn_logit_softcapping": None}, ({"softmax_scale": 0.25},) * 2)])
def test_the_models_configuration_says_scale_cap_and_windows(tmp_path, capsys, config, attributes):
    np.savez(tmp_path / "a.npz", **ROWS)
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [tmp_path / "a.npz", "--state", "none", "--model-config", tmp_path / "config.json", "--overwrite", "--out",
             tmp_path / "a.h5"]
    assert convert(*words) == 0
    said = capsys.readouterr().err
    for layer, expected in zip(layers_of(tmp_path / "a.h5").values(), attributes):
        assert {name: value for name, value in layer.attributes().items() if "state" not in name} == expected
    named = attributes[0]["softmax_scale"] != 0.25
    assert ("as the model's configuration says; --softmax-scale gives another one" in said) == named
    assert convert(*words, "--softmax-scale", 0.75) == 0
    assert {layer.softmax_scale for layer in layers_of(tmp_path / "a.h5").values()} == {0.75}


def test_a_configuration_that_is_wrong_or_does_not_say_enough(tmp_path, capsys, refuse):
    np.savez(tmp_path / "a.npz", **ROWS)
    for config, words in (({"attention_multiplier": "0.5"}, "attention_multiplier '0.5', must be a positive number"),
                          ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0, must be a positive number"),
                          ({"layer_types": ["sliding_attention"]}, "sliding_window None, must be at least 1"),
                          ({"text_config": [1]}, "the model's configuration cannot be read")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        refuse([words], "--state", "none", "--model-config", tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"sliding_window": 4}))
    assert convert(tmp_path / "a.npz", "--state", "none", "--model-config", tmp_path / "config.json", "--out",
                   tmp_path / "a.h5") == 0
    assert "has a sliding_window, and does not say which layers have it" in capsys.readouterr().err


@pytest.mark.parametrize("order", "<>")
def test_words_of_16_bits_in_any_order(tmp_path, order):
    values = {name: rows.astype(bfloat16) for name, rows in ROWS.items()}
    stored = {name: rows.view(np.uint16).astype(f"{order}u2") for name, rows in values.items()}
    np.savez(tmp_path / "a.npz", **stored)
    assert convert(tmp_path / "a.npz", "--state", "none", "--out", tmp_path / "a.h5") == 0
    for number, layer in layers_of(tmp_path / "a.h5").items():
        for name in "qkv":
            np.testing.assert_array_equal(getattr(layer, name), values[f"layers.{number}.{name}"])


def test_import_refuses_odd_members_lengths_and_names(tmp_path, refuse):
    arrays = {name.replace(".", "__"): rows for name, rows in ROWS.items()}
    refuse(["99999999999999999999 tokens together, must be at most 2147483647"], "--state", "none", "--lengths",
           "99999999999999999999", **arrays)
    refuse(["must hold {field} once, and {layer} at most once"], "--state", "none", "--names",
           "{layer}.{field}.{field}", source="a.npz")
    refuse(["layers.00.q and layers.0.q are both q of layer 0", "a.npz"], "--state", "none",
           **{"layers__00__q": ROWS["layers.0.q"]}, **arrays)
    np.savez(tmp_path / "b.npz", **ROWS)
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as file:
        file.writestr("layers.2.q", "no array")
        for name in "kv":
            file.writestr(f"layers.2.{name}", "no array")
    refuse(["b.npz: layers.2.q: is no array of numpy's"], "--state", "none", source="b.npz")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", ["u2", "i2", "u4", "i8"])
def test_ids_may_be_integers_of_any_size(tmp_path, dtype, order):
    arrays = named({3: random_layer(9, 3)}) | {"tokens": np.arange(9).astype(order + dtype) + 1000,
                                               "cu_seqlens": np.array([0, 4, 9], order + dtype)}
    np.savez(tmp_path / "a.npz", **arrays)
    assert convert(tmp_path / "a.npz", "--out", tmp_path / "a.h5", "--layout", "packed", "--state", "none") == 0
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.tokens.tolist() == list(range(1000, 1009)) and file.cu_seqlens.tolist() == [0, 4, 9]
