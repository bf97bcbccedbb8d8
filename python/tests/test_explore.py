# SPDX-License-Identifier: MIT
"""What the block microscope's page holds, against the results and the activations."""

import base64
import importlib.util
import json
import re
import zlib

import h5py
import numpy as np
import pytest
from make_explore import make_explore, words_of
from make_results import Case

from msalab.__main__ import main
from msalab.capture.layer import Layer
from msalab.explore import Activations, data, make_microscope, write_page
from msalab.explore.activations import as_utf16, attention
from msalab.plots import Results

SAMPLED = Case(lengths=(75, 190), layers=(0,), stride=5)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_explore(tmp_path_factory.mktemp("explore"))


def made(files, **options):
    with Results(files[0]) as results, Activations([files[1]], results) as activations:
        return make_microscope(results, activations=activations, **options)


class Piece:
    """A layer's, unpacked as the page does."""

    def __init__(self, microscope, number):
        about = next(one for one in microscope.about["layers"] if one["layer"] == number)
        content = np.frombuffer(zlib.decompress(base64.b64decode(microscope.pieces[number])), np.uint8)
        queries, blocks, groups = about["queries"], about["blocks"], microscope.about["groups"]
        self.positions, at = content[:4 * queries].view("<u4"), 4 * queries
        self.chosen = {}
        for name in microscope.about["selectors"]:
            size = groups * blocks * -(-queries // 8)
            bits = np.unpackbits(content[at:at + size].reshape(groups, blocks, -1), axis=2, bitorder="little")
            self.chosen[name], at = bits[:, :, :queries].astype(bool), at + size
        self.mass = self.tokens = None
        if about["hasMass"]:
            size = groups * blocks * queries
            self.mass, at = (content[at:at + size].reshape(groups, blocks, queries) / 255) ** 2, at + size
        if about["tokens"]:
            size = groups * about["tokens"]
            shares = (content[at:at + size].reshape(groups, -1) / 255) ** 2
            self.tokens, at = np.array(about["most"])[:, None] * shares, at + size
        assert at == len(content)


def test_a_page_holds_what_the_run_chose(files):
    microscope = made(files)
    with Results(files[0]) as results:
        assert microscope.about["selectors"] == results.selectors
        for layer in results.layers:
            piece = Piece(microscope, layer)
            np.testing.assert_array_equal(piece.positions, results.queries(layer).position)
            counted = results.rows_with_choice(layer)
            for name in results.selectors:
                ids = results.ids(name, layer)[:]
                for query, group in ((0, 0), (100, 1), (383, 3)):
                    chosen = np.flatnonzero(piece.chosen[name][group, :, query])
                    assert chosen.tolist() == [block for block in ids[query, group] if block >= 0]
                kept = (piece.mass * piece.chosen[name]).sum(1)[:, counted].mean(1)
                np.testing.assert_allclose(kept, results.metric(name, layer, "mass_kept"), atol=0.003)
            np.testing.assert_allclose(piece.tokens.sum(1), 1, atol=0.02)
            sink = results.metric("dense", layer, "sink_mass").reshape(4, 2).mean(1)
            with Activations([files[1]], results) as activations:
                of = attention(*activations.layer(layer, 0), np.arange(384)[counted], 16)
            np.testing.assert_allclose(of.tokens[:, 0], sink, rtol=1e-4)


def test_a_text_is_counted_as_browsers_count():
    words = words_of(40)
    content = "".join(words).encode()
    text = as_utf16(content, np.cumsum([len(word.encode()) for word in words]))
    wide = text.text.encode("utf-16-le")
    begins = [0, *text.ends[:-1]]
    assert [wide[2 * a:2 * b].decode("utf-16-le") for a, b in zip(begins, text.ends)] == words
    # An end within a character is that of the character.
    assert as_utf16("a🔬b".encode(), np.array([1, 3, 5, 6])).ends.tolist() == [1, 3, 3, 4]
    assert as_utf16(b"a\xff\xfeb", np.array([1, 2, 4])).ends.tolist() == [1, 2, 4]


def test_of_several_sequences_the_one_with_most_queries_is_shown(tmp_path):
    microscope = made(make_explore(tmp_path, SAMPLED))
    assert (microscope.about["sequence"], microscope.about["tokens"]) == (1, 190)
    assert microscope.about["text"] == "".join(words_of(190))
    assert Piece(microscope, 0).positions.tolist() == list(range(0, 190, 5))


def test_a_large_run_is_sampled(files, monkeypatch):
    monkeypatch.setattr(data, "MOST_BYTES", 30_000)
    microscope = made(files)
    step = microscope.about["step"]
    assert step > 1 and microscope.about["analysed"] == 384
    piece = Piece(microscope, 3)
    assert piece.positions.tolist() == list(range(0, 384, step))
    with Results(files[0]) as results:
        ids = results.ids("oracle", 3)[step]
    assert np.flatnonzero(piece.chosen["oracle"][2, :, 1]).tolist() == [block for block in ids[2] if block >= 0]


def test_without_activations_blocks_alone_are_shown(files, tmp_path):
    assert main(["explore", str(files[0]), "--out", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    about = json.loads(re.search('id="microscope-data">(.*?)</script>', page)[1])
    assert about["text"] == "" and not about["layers"][0]["hasMass"]
    path = tmp_path / "dumped.h5"
    path.write_bytes(files[0].read_bytes())
    mass = np.random.default_rng(1).random((384, 4, 24), np.float32)
    with h5py.File(path, "r+") as file:
        file["mass/3"] = mass
    with Results(path) as results:
        piece = Piece(make_microscope(results), 3)
        assert np.abs(piece.mass.transpose(2, 0, 1) - mass).max() < 0.004
        assert piece.tokens is None and Piece(make_microscope(results), 6).mass is None


def test_other_activations_are_refused(files, tmp_path, capsys):
    other = make_explore(tmp_path, SAMPLED)[1]
    assert main(["explore", str(files[0]), "--activations", str(other), "--out", str(tmp_path / "x.html")]) == 2
    assert f"{other}: has 265 tokens, {files[0]} is of 384" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
    assert main(["explore", str(files[0]), "--out", str(tmp_path / "absent/x.html")]) == 2


def test_no_text_ends_a_script(files, tmp_path):
    page = write_page(made(files), tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.count("</script>") == page.count("<script") == 2 + 2  # data, two layers, the program
    assert json.loads(re.search('id="microscope-data">(.*?)</script>', page)[1])["text"] == "".join(words_of(384))


@pytest.mark.skipif(importlib.util.find_spec("msalab._msalab") is None, reason="the compiled module is not here")
@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"softcap": 3.0},
                                     {"sinks": np.array([0.5, -1, 2, 0], np.float32)}])
def test_probabilities_are_those_of_the_module(options):
    import msalab

    rng = np.random.default_rng(3)
    q, k = (rng.standard_normal(shape).astype(np.float32) for shape in ((100, 4, 32), (100, 2, 32)))
    layer = Layer(q, k, k, softmax_scale=0.3, **options)
    seen = attention(layer, 0, 100, np.arange(0, 100, 3), 16)
    named = {"window": layer.sliding_window, "softcap": layer.softcap, "sinks": layer.sinks}
    mass = msalab.block_mass(q, k, softmax_scale=0.3, block_size=16, **named)
    np.testing.assert_allclose(seen.mass, np.nan_to_num(mass)[::3], atol=2e-6)
