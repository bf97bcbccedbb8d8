# SPDX-License-Identifier: MIT
"""HDF5 files whose objects are elsewhere, were never written, or are stored in ways of other programs."""

import shutil

import h5py
import numpy as np
import pytest
from make_checkpoint import make_checkpoint
from make_indexer import make_indexer
from test_capture_files import Fake, assert_same, random_layer

from msalab.capture import CaptureError, capture, fitted
from msalab.capture.checkpoint import export_model
from msalab.capture.layer import bfloat16
from msalab.capture.reader import ActivationsReader
from msalab.plots import Results, ResultsError

TOKENS = 40


def external_link(file, name, tmp_path):
    """To the very same values, which another file holds."""
    with h5py.File(tmp_path / "other.h5", "w") as other:
        file.copy(file[name], other, "there")
    del file[name]
    file[name] = h5py.ExternalLink("other.h5", "there")


def soft_link_to_one(file, name, tmp_path):
    external_link(file, name, tmp_path)
    file.move(name, "hidden")
    file[name] = h5py.SoftLink("/hidden")


def external_storage(file, name, tmp_path):
    values = file[name][()]
    values.tofile(tmp_path / "raw")
    del file[name]
    file.create_dataset(name, values.shape, values.dtype,
                        external=[(str(tmp_path / "raw"), 0, values.nbytes)])


def virtual(file, name, tmp_path):
    values = file[name][()]
    del file[name]
    file["hidden"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(file["hidden"])
    file.create_virtual_dataset(name, layout)


def never_written(file, name, _, **options):
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, **options)


def never_written_chunks(file, name, _):
    never_written(file, name, _, chunks=True, fillvalue=3)


def half_written(file, name, _):
    shape = file[name].shape
    never_written(file, name, _, chunks=(1, *shape[1:]))
    file[name][:len(file[name]) // 2] = 1


def denser_than_deflate(file, name, _):
    """A few bytes of which two filters make 16 MiB."""
    del file[name]
    file.create_dataset(name, data=np.zeros(1 << 22, np.int32), chunks=(1 << 22,), scaleoffset=0, compression="gzip")


LINK, STORAGE = "is an external link into .*other.h5, must lie in the file itself", "whose values lie in other files; must lie"
FAULTS = [(external_link, LINK), (soft_link_to_one, LINK), (external_storage, f"has external storage, {STORAGE}"),
          (virtual, f"is a virtual dataset, {STORAGE}"), (never_written, "was never written: the file stores no byte"),
          (never_written_chunks, "was never written: the file stores no byte"),
          (half_written, "holds [0-9]+ of its [0-9]+ chunks of 1 rows: the others were never written"),
          (denser_than_deflate,
           "has shape \\(4194304,\\), 16777216 bytes, more than the [0-9]+ bytes that the file stores")]
of_faults = pytest.mark.parametrize("fault, words", FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])


@of_faults
@pytest.mark.parametrize("name", ["cu_seqlens", "tokens", "layers/2/q", "layers/2/x", "layers/2/weights/w_index_k"])
def test_activations_are_of_one_file(tmp_path, monkeypatch, name, fault, words):
    monkeypatch.chdir(tmp_path)
    capture(Fake(lambda *of: random_layer(*of, index_dim=16)), [range(TOKENS)], "a.h5")
    with h5py.File("a.h5", "r+") as file:
        fault(file, name, tmp_path)
    with pytest.raises(CaptureError, match=f"^a.h5: /{name} {words}"):
        with ActivationsReader("a.h5") as file:
            file.layer(2)


def test_a_layer_is_of_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    capture(Fake(), [range(TOKENS)], "a.h5")
    with h5py.File("a.h5", "r+") as file:
        external_link(file, "layers/2", tmp_path)
    with ActivationsReader("a.h5") as file:
        assert_same(file.layer(1), random_layer(TOKENS, 1))
        with pytest.raises(CaptureError, match="^a.h5: /layers/2 is an external link into .*other.h5"):
            file.layer(2)


def test_links_inside_a_file_are_followed(tmp_path):
    path = tmp_path / "a.h5"
    capture(Fake(), [range(TOKENS)], path)
    with h5py.File(path, "r+") as file:
        file.move("layers/2/q", "q of layer 2")
        file["layers/2/q"] = h5py.SoftLink("/q of layer 2")
    with ActivationsReader(path) as file:
        assert_same(file.layer(2), random_layer(TOKENS, 2))


@of_faults
@pytest.mark.parametrize("name", ["w_index_k", "w_index_q", "index_k_norm"])
def test_a_fit_is_of_one_file(tmp_path, name, fault, words):
    path = make_indexer(tmp_path / "results.h5", [3], groups=2, dim=16, model_dim=24)
    with h5py.File(path, "r+") as file:
        fault(file, f"fit/3/weights/{name}", tmp_path)
    with pytest.raises(CaptureError, match=f"/fit/3/weights/{name} {words}"):
        fitted.read(path)


@of_faults
def test_a_checkpoint_is_of_one_file(tmp_path, fault, words):
    path = make_checkpoint(tmp_path / "checkpoint.h5")
    with h5py.File(path, "r+") as file:
        fault(file, "weights/lm_head.weight", tmp_path)
    with pytest.raises(CaptureError, match=f"/weights/lm_head.weight {words}"):
        export_model(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@of_faults
@pytest.mark.parametrize("name", ["queries/3/token", "select/oracle/3/ids", "metrics/oracle/3/mass_kept"])
def test_results_are_of_one_file(results_path, tmp_path, name, fault, words):
    path = shutil.copy(results_path, tmp_path / "results.h5")
    with h5py.File(path, "r+") as file:
        fault(file, name, tmp_path)
    with Results(path) as file, pytest.raises(ResultsError, match=f"/{name} {words}"):
        file.queries(3), file.ids("oracle", 3)[:], file.metric("oracle", 3, "mass_kept")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, bfloat16], ids=str)
def test_numbers_in_any_order_of_bytes(tmp_path, dtype, order):
    expected, path = random_layer(TOKENS, 0, dtype), tmp_path / "a.h5"
    capture(Fake(lambda *of: random_layer(*of, dtype)), [range(TOKENS)], path)
    with h5py.File(path, "r+") as file:
        for name in ("cu_seqlens", "tokens", *(f"layers/0/{one}" for one in "xqkv")):
            values, attributes = file[name][()], dict(file[name].attrs)
            del file[name]
            file[name] = values.astype(values.dtype.newbyteorder(order))
            file[name].attrs.update(attributes)
    with ActivationsReader(path) as file:
        assert_same(file.layer(0), expected)
        assert file.tokens.tolist() == list(range(TOKENS))


@pytest.mark.parametrize("stored, logical", [("i2", "bfloat16"), ("f2", "bfloat16"), ("u2", "float16")])
def test_words_of_16_bits_that_are_no_bfloat16(tmp_path, stored, logical):
    path = tmp_path / "a.h5"
    capture(Fake(), [range(TOKENS)], path)
    with h5py.File(path, "r+") as file:
        shape = file["layers/0/q"].shape
        del file["layers/0/q"]
        file["layers/0/q"] = np.ones(shape, stored)
        file["layers/0/q"].attrs["logical_dtype"] = logical
    with ActivationsReader(path) as file, pytest.raises(
            CaptureError, match=f"/layers/0/q is .*16 with logical_dtype {logical}, must be uint16 with bfloat16"):
        file.layer(0)


def test_attributes_of_one_element(tmp_path):
    """As some writers store every attribute."""
    path = tmp_path / "a.h5"
    capture(Fake(lambda *of: random_layer(*of, query_heads=1, kv_heads=1)), [range(TOKENS)], path)
    with h5py.File(path, "r+") as file:
        file["layers/0"].attrs["sinks"] = 0.5
        for place in (file, file["layers/0"]):
            for name, value in place.attrs.items():
                place.attrs[name] = np.array([value], dtype=object if isinstance(value, str) else None)
        file.attrs.create("producer", np.array([b"test"]))
    with ActivationsReader(path) as file:
        layer = file.layer(0)
        assert (file.model_id, file.producer, layer.q_state, layer.softmax_scale, layer.sinks.tolist()) == (
            "fake", "test", "post_rope", 0.25, [0.5])


def test_a_filter_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "a.h5"
    capture(Fake(), [range(TOKENS)], path)
    with h5py.File(path, "r+") as file:
        shape = file["layers/0/q"].shape
        del file["layers/0/q"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(shape)
        plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, which is left out where it is not there
        made = h5py.h5d.create(file["layers/0"].id, b"q", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(shape), plist)
        h5py.Dataset(made)[...] = 1
    with ActivationsReader(path) as file, pytest.raises(
            CaptureError, match="/layers/0/q is stored with filter 32015 .*, which this HDF5 library has not got: write it"):
        file.layer(0)
