# SPDX-License-Identifier: MIT
"""msalab.capture without PyTorch: the file it writes, what it refuses, what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from msalab.capture import ActivationsWriter, CaptureError, Layer, capture
from msalab.capture.__main__ import main
from msalab.capture.layer import bfloat16
from msalab.capture.reader import ActivationsReader

ROOT = Path(__file__).parents[1]


def random_layer(tokens: int, seed=0, dtype=np.float16, query_heads=4, kv_heads=2, head_dim=16,
                 index_dim=0, model_dim=24) -> Layer:
    rng = np.random.default_rng(seed)

    def values(*shape):
        return rng.standard_normal((tokens, *shape), np.float32).astype(dtype)

    layer = Layer(q=values(query_heads, head_dim), k=values(kv_heads, head_dim),
                  v=values(kv_heads, head_dim), x=values(model_dim), softmax_scale=0.25)
    if index_dim:
        layer.index_q, layer.index_k = values(kv_heads, index_dim), values(index_dim)
        layer.weights = {"w_index_k": rng.standard_normal((index_dim, model_dim), np.float32).astype(dtype)}
    return layer


SCALED_ROPE = {"rope_scaling": '{"rope_type": "yarn"}', "rope_attention_factor": 1.25,
               "rope_inv_freq": np.array([1, 0.5, 0.25, 0], np.float32)}  # with rotary_dim 8
OWN_SELECTION = {"own_attention": "sparse", "own_block_size": 32, "own_top_k": 4}


class Fake:
    """A Model of known activations: layer `number` of a sequence of S tokens is
    make(S, number)."""

    model_id, model_config, producer, layers = "fake", '{"a": 1}', "test", range(4)

    def __init__(self, make=random_layer):
        self.make = make

    def run(self, tokens, layers, record):
        for number in layers:
            record(number, self.make(len(tokens), number))


def assert_same(got: Layer, expected: Layer):
    assert got.attributes().keys() == expected.attributes().keys()
    for name, value in expected.attributes().items():
        np.testing.assert_array_equal(got.attributes()[name], value)
    for arrays, others in ((got.arrays(), expected.arrays()), (got.weights, expected.weights)):
        assert arrays.keys() == others.keys()
        for name in arrays:
            assert arrays[name].dtype == others[name].dtype
            np.testing.assert_array_equal(arrays[name], others[name])


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32], ids=str)
def test_what_is_recorded_is_what_is_read(tmp_path, dtype):
    def make(tokens, number):
        return replace(random_layer(tokens, number, dtype, index_dim=16), sliding_window=64,
                       rotary_dim=8, sinks=np.arange(4, dtype=np.float32),
                       **SCALED_ROPE, **OWN_SELECTION)

    capture(Fake(make), [np.arange(1500), [5, 6, 7]], tmp_path / "a.h5", [3, 1], max_tokens=1300)
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert (file.model_id, file.producer) == ("fake", "test")
        assert json.loads(file.model_config) == {"a": 1}
        assert file.layers == [1, 3]
        np.testing.assert_array_equal(file.cu_seqlens, [0, 1300, 1303])
        np.testing.assert_array_equal(file.tokens, [*range(1300), 5, 6, 7])
        for number in (1, 3):
            layer, parts = file.layer(number), [make(1300, number), make(3, number)]
            joined = {name: np.concatenate([part.arrays()[name] for part in parts])
                      for name in parts[0].arrays()}
            assert_same(layer, replace(parts[0], **joined))
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_text_is_cut_at_the_ends_of_its_tokens(tmp_path):
    """Of the second sequence no text is known. What --max-tokens cuts off has no text either."""
    texts = [("né!!".encode(), [0, 3, 4, 5]), None, (b"one two three", [3, 7, 13])]
    capture(Fake(), [range(4), range(2), range(3)], tmp_path / "a.h5", texts=texts, max_tokens=4)
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.text == "né!!one two three".encode()
        assert file.token_ends.tolist() == [0, 3, 4, 5, 5, 5, 8, 12, 18]
    capture(Fake(), [range(4), range(3)], tmp_path / "a.h5", texts=[texts[0], texts[2]], max_tokens=2, overwrite=True)
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.text == "né".encode() + b"one two"
        assert file.token_ends.tolist() == [0, 3, 6, 10]
    capture(Fake(), [range(4)], tmp_path / "a.h5", texts=[None], overwrite=True)
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert file.text is None and file.token_ends is None


@pytest.mark.parametrize("name, values, words", [
    ("text", None, "has /token_ends alone"), ("text", np.zeros(9, np.int32), "/text must be a list of bytes"),
    ("token_ends", np.array([1, 2]), "/token_ends must hold one integer for each of the 3 tokens"),
    ("token_ends", np.array([2, 1, 9]), "entry 1 is 1, must not be below the entry before it"),
    ("token_ends", np.array([-1, 1, 9]), "entry 0 is -1, must not be below"),
    ("token_ends", np.array([1, 2, 8]), "/token_ends ends at 8, /text has 9 bytes")])
def test_texts_that_are_damaged_are_refused(tmp_path, name, values, words):
    capture(Fake(), [range(3)], tmp_path / "a.h5", texts=[(b"some text", [4, 5, 9])])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file[name]
        if values is not None:
            file[name] = values
    with pytest.raises(CaptureError, match=words):
        ActivationsReader(tmp_path / "a.h5")


def test_storage_is_that_of_the_format(tmp_path):
    capture(Fake(lambda *of: random_layer(*of, bfloat16)), [range(1100)], tmp_path / "a.h5", [2])
    with h5py.File(tmp_path / "a.h5") as file:
        q = file["layers/2/q"]
        assert (q.dtype, q.attrs["logical_dtype"]) == (np.uint16, "bfloat16")
        assert q.chunks == (1024, 1, 16) and file["layers/2/x"].chunks == (1024, 24)
        assert q.fletcher32 and not q.shuffle and q.compression is None
        assert file["cu_seqlens"].dtype == np.int64 and file["tokens"].dtype == np.int32


def test_mixed_types_are_stored_in_one_that_holds_all_exactly(tmp_path):
    layer = random_layer(10, dtype=np.float32)
    layer.x = layer.x.astype(bfloat16)
    capture(Fake(lambda *_: layer), [range(10)], tmp_path / "a.h5", [0])
    with ActivationsReader(tmp_path / "a.h5") as file:
        assert_same(file.layer(0), replace(layer, x=layer.x.astype(np.float32)))


def test_holds_one_layer_of_one_sequence(tmp_path):
    tokens, sizes = 4096, {"query_heads": 8, "kv_heads": 4, "head_dim": 32, "model_dim": 64}
    size = sum(array.nbytes for array in random_layer(1, **sizes).arrays().values()) * tokens
    zeros = {name: np.zeros((1, *array.shape[1:]), np.float16)
             for name, array in random_layer(1, **sizes).arrays().items()}

    def make(count, _):
        return Layer(softmax_scale=1,
                     **{name: np.repeat(array, count, 0) for name, array in zeros.items()})

    tracemalloc.start()
    capture(Fake(make), [range(tokens)] * 3, tmp_path / "a.h5")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < peak < 1.9 * size


def with_value(name, value, dtype=np.float16):
    def make(tokens, number):
        layer = random_layer(tokens, dtype=dtype, index_dim=16)
        getattr(layer, name)[7, ..., 3] = value
        return layer
    return make


@pytest.mark.parametrize("make, words", [
    (lambda n, _: random_layer(n, query_heads=5), ("5 query heads, 2 key-value", "multiple")),
    (lambda n, _: replace(random_layer(n), v=random_layer(n, head_dim=32).v),
     ("v has shape", "latent")),
    (lambda n, _: replace(random_layer(n), k=random_layer(n, head_dim=32).k), ("head dim 32",)),
    (lambda n, _: random_layer(n, head_dim=513), ("head dim 513", "16 to 512")),
    (lambda n, _: replace(random_layer(n), x=random_layer(n + 1).x), ("x has 9 tokens, q has 8",)),
    (lambda n, _: replace(random_layer(n), x=random_layer(n).q), ("x has shape", "2 axes")),
    (lambda n, _: replace(random_layer(n), q=random_layer(n).q.astype(float)), ("float64",)),
    (lambda n, _: replace(random_layer(n), index_q=random_layer(n).k), ("come together",)),
    (lambda n, _: replace(random_layer(n, index_dim=16), index_q=random_layer(n).q),
     ("each of the 2 groups",)),
    (lambda n, _: replace(random_layer(n), softmax_scale=0.0), ("softmax_scale is 0.0",)),
    (lambda n, _: replace(random_layer(n), q_state="rotated"), ("'rotated'", "pre_rope")),
    (with_value("q", np.nan), ("q holds 4 values", "token 7, head 0, channel 3 is nan")),
    (with_value("v", np.inf, bfloat16), ("v holds 2 values", "head 0, channel 3 is inf")),
    (with_value("index_k", np.inf), ("index_k holds 1 values", "token 7, channel 3 is inf")),
    *((lambda n, _, name=name, value=value: replace(random_layer(n), **{name: value}), (words,))
      for name, value, words in [
        ("sinks", np.ones(3, np.float32), "sinks has shape (3,), must have 4 values"),
        ("sinks", np.array([0, 1, np.nan, 2]), "sinks[2] is nan, must be finite"),
        ("sliding_window", -4, "sliding_window is -4, must be at least 1"),
        ("attention_chunk", 0, "attention_chunk is 0, must be at least 1"),
        ("softcap", 0.0, "softcap is 0.0, must be finite and positive"),
        ("rope_theta", np.nan, "rope_theta is nan, must be finite and positive"),
        ("rotary_dim", 7, "rotary_dim is 7, must be even, from 0 to 16"),
        ("rotary_dim", 18, "rotary_dim is 18, must be even, from 0 to 16"),
        ("rope_inv_freq", np.ones(3), "rope_inv_freq has shape (3,), must have 0 values"),
        ("rope_attention_factor", np.inf, "rope_attention_factor is inf, must be finite"),
        ("own_attention", "dense", "own_attention is dense, must be sparse"),
        ("own_block_size", 0, "own_block_size is 0, must be at least 1"),
        ("own_top_k", -1, "own_top_k is -1, must be at least 1")]),
    (lambda n, _: random_layer(n - 1), ("7 tokens recorded, the sequence has 8",)),
])
def test_refuses_what_the_format_cannot_hold(tmp_path, make, words):
    with pytest.raises(CaptureError) as error:
        capture(Fake(make), [range(8)], tmp_path / "a.h5")
    for word in ("layer 0", *words):
        assert word in str(error.value)
    assert not os.listdir(tmp_path)


class Silent(Fake):
    def run(self, tokens, layers, record):
        super().run(tokens, list(layers)[:-1], record)


class Twice(Fake):
    def run(self, tokens, layers, record):
        super().run(tokens, [0, 0], record)


@pytest.mark.parametrize("model, arguments, words", [
    (Fake(), {"layers": [1, 9, 7]}, "no layer 7, 9 with softmax attention in fake; there are: 0"),
    (Fake(), {"sequences": []}, "no sequences"),
    (Fake(), {"max_tokens": 0}, "0 tokens of each sequence"),
    (Fake(), {"sequences": [[1], []]}, "sequence 1: token ids"),
    (Fake(), {"sequences": [[7, 0.5]]}, "sequence 0: token ids must be a list of integers, not empty, and token 1 is 0.5"),
    (Fake(), {"sequences": [[[1, 2], [3]]]}, "sequence 0: token ids .*, and token 0 is .1, 2."),
    (Fake(), {"sequences": [np.zeros((2, 3))]}, "sequence 0: token ids .*, and this is float64 .2, 3."),
    (Fake(), {"sequences": [{"ids": [1]}]}, "sequence 0: token ids .*, and this is {'ids': .1.}"),
    (Fake(), {"sequences": [[3, 10 ** 22]]}, "sequence 0: token ids from 3 to 10000000000000000000000, must be"),
    (Fake(), {"sequences": [[4, 2 ** 31]]}, "sequence 0: token ids from 4 to 2147483648"),
    (Fake(), {"sequences": [[-1]]}, "sequence 0: token ids from -1 to -1, must be from 0"),
    (Silent(), {}, "nothing came of layer 3"),
    (Twice(), {}, "layer 0, sequence 0: recorded twice"),
])
def test_refuses_impossible_tasks(tmp_path, model, arguments, words):
    with pytest.raises(CaptureError, match=words):
        capture(model, **{"sequences": [range(8)], "path": tmp_path / "a.h5"} | arguments)
    assert not os.listdir(tmp_path)


def test_refuses_a_later_sequence_of_other_sizes(tmp_path):
    heads = iter([4, 2])
    with pytest.raises(CaptureError, match=r"layer 0: q is float16 \(2, 16\) per token"):
        capture(Fake(lambda n, _: random_layer(n, query_heads=next(heads))), [range(8)] * 2,
                tmp_path / "a.h5", [0])


def test_an_existing_file_stays_until_its_replacement_is_complete(tmp_path):
    path = tmp_path / "a.h5"
    path.write_text("mine")
    with pytest.raises(CaptureError, match="a.h5: exists; --overwrite replaces it"):
        capture(Fake(), [range(8)], path)
    with pytest.raises(CaptureError, match="nothing came"):
        capture(Silent(), [range(8)], path, overwrite=True)
    assert path.read_text() == "mine"
    capture(Fake(), [range(8)], path, overwrite=True)
    with ActivationsReader(path) as file:
        assert file.layers == [0, 1, 2, 3]


def test_refuses_a_missing_folder(tmp_path):
    with pytest.raises(CaptureError, match="there is no folder"):
        capture(Fake(), [range(8)], tmp_path / "b" / "a.h5")


KILLED = """
import signal, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from test_capture_files import Fake, random_layer
from msalab.capture import capture
from msalab.arguments import interrupt
signal.signal(signal.SIGTERM, interrupt)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's parent ignores it
def make(tokens, number):
    if number == 2:
        print("two layers are written", flush=True)
        time.sleep(60)
    return random_layer(tokens, number)
capture(Fake(make), [range(2000)], "a.h5")
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_killed_capture_leaves_nothing_under_the_final_name(tmp_path, how):
    script = KILLED.format(tests=str(ROOT / "tests"), root=str(ROOT))
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        assert os.listdir(tmp_path) == ["a.h5.partial"]
        process.send_signal(how)
        assert process.wait() != 0
    assert os.listdir(tmp_path) == (["a.h5.partial"] if how == signal.SIGKILL else [])
    capture(Fake(), [range(8)], tmp_path / "a.h5")  # what is left is in nobody's way
    assert os.listdir(tmp_path) == ["a.h5"]


def test_writer_refuses_other_attributes_for_later_tokens(tmp_path):
    with ActivationsWriter(tmp_path / "a.h5", model_id="", model_config="{}", producer="",
                           cu_seqlens=[0, 8, 16]) as writer:
        writer.write(0, 0, random_layer(8))
        with pytest.raises(CaptureError, match="softmax_scale is 0.5, of earlier tokens 0.25"):
            writer.write(0, 8, replace(random_layer(8), softmax_scale=0.5))


@pytest.mark.parametrize("dtype", ["bf16", "float64", ""])
def test_command_line_names_the_types_there_are(tmp_path, capsys, dtype):
    with pytest.raises(SystemExit) as end:
        main(["capture", "model", "--dtype", dtype, "--out", str(tmp_path / "a.h5")])
    error = capsys.readouterr().err
    assert end.value.code == 2 and f"invalid choice: '{dtype}'" in error and "bfloat16" in error


def test_texts_of_fixed_length_are_read_as_the_programs_write_them(tmp_path):
    path = tmp_path / "a.h5"
    capture(Fake(), [np.zeros(8, np.int32)], path)
    with h5py.File(path, "r+") as file:
        places = [file, *file["layers"].values()]
        for place in places:
            for name, value in place.attrs.items():
                if isinstance(value, str):
                    place.attrs.create(name, np.bytes_(value.encode()))
        assert isinstance(file.attrs["format"], bytes)
    again = ActivationsReader(path)
    assert again.model_id == "fake"
    assert_same(again.layer(0), random_layer(8, 0))


def test_layers_may_differ_in_their_heads():
    with ActivationsReader(ROOT.parent / "tests/goldens/gemma4.h5") as file:
        shapes = [(layer.q.shape, layer.k.shape, layer.sliding_window) for layer in map(file.layer, file.layers)]
    assert shapes == [((48, 8, 16), (48, 2, 16), 16), ((48, 8, 32), (48, 4, 32), None)]


def test_masked_arrays_are_refused(tmp_path):
    layer = random_layer(8)
    layer.v = np.ma.masked_array(layer.v, np.zeros(layer.v.shape, bool))
    with pytest.raises(CaptureError, match="layer 0: v is a masked array"):
        capture(Fake(lambda *_: layer), [range(8)], tmp_path / "a.h5")
    with pytest.raises(CaptureError, match="sequence 0: token ids are a masked array"):
        capture(Fake(), [np.ma.masked_array(range(8))], tmp_path / "a.h5")


@pytest.mark.parametrize("weight, words", [
    (np.zeros((16, 12), np.uint8), "weights/w_index_k is uint8, must be float16, bfloat16 or float32"),
    (np.zeros((96, 1), np.float16), "weights/w_index_k has shape \\[96, 1\\], must have \\[16, 24\\]"),
    (np.full((16, 24), np.nan, np.float16), "weights/w_index_k holds 384 values that are NaN")])
def test_weights_of_other_shapes_and_types_are_refused(tmp_path, weight, words):
    layer = random_layer(8, index_dim=16)
    layer.weights["w_index_k"] = weight
    with pytest.raises(CaptureError, match=f"layer 0: {words}"):
        capture(Fake(lambda *_: layer), [range(8)], tmp_path / "a.h5")


@pytest.mark.parametrize("windowed, said", [
    ((), None), ((1,), "layer 1: a sliding window of 64 tokens, which msalab leaves as it is; --layers 0,2 captures "
                       "what can be sparse"),
    ((0, 1, 2), "layers 0, 1, 2: a sliding window of 64 tokens, which msalab leaves as it is")])
def test_layers_with_a_window_are_named(tmp_path, windowed, said):
    def layer(tokens, number):
        return replace(random_layer(tokens, number), sliding_window=64 if number in windowed else None)

    notes = []
    capture(Fake(layer), [[1, 2, 3]], tmp_path / "a.h5", [0, 1, 2], note=notes.append)
    assert [note for note in notes if "window" in note] == ([said] if said else [])


def test_layers_without_attention_are_named(tmp_path):
    model, notes = Fake(random_layer), []
    model.without_attention = dict.fromkeys((3, 4, 5, 8), "conv") | {7: "moe"}
    capture(model, [[1, 2, 3]], tmp_path / "a.h5", [0, 1, 2], note=notes.append)
    assert notes[-1] == ("layers 3-5, 8: conv; layer 7: moe, no softmax attention, which msalab leaves as it is")
