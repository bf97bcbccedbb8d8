# SPDX-License-Identifier: MIT
"""studies/conversion/pictures.py: its numbers by hand, its pictures of a made archive, and the whole of it on a small model."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "studies/conversion"))
pytest.importorskip("h5py")
Image = pytest.importorskip("PIL.Image")
import pictures  # noqa: E402

BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
PICTURES = ("even_selection", "even_sink", "even_sink_by_layer")


def ids(*rows):
    """[rows, 1, k]"""
    return np.array(rows)[:, None]


def test_the_share_of_blocks_that_stayed_is_of_those_that_there_are():
    assert pictures.same(ids([0, 3], [1, -1]), ids([3, 4], [1, -1])) == 2 / 3  # -1 is no block
    assert pictures.same(ids([0, 3]), ids([1, 2])) == 0


def test_distance_is_in_tokens_from_the_querys_own_block():
    position = np.array([3 * pictures.BLOCK + 5, 7 * pictures.BLOCK])
    assert pictures.distance(ids([0, 3], [7, -1]), position) == pictures.BLOCK * (3 + 0 + 0) / 3


def test_counts_of_a_map_are_of_a_blocks_queries():
    ids_of = np.full((2 * pictures.BLOCK + 4, 2, 2), -1)
    ids_of[pictures.BLOCK:, :, 0] = 1
    ids_of[pictures.BLOCK:pictures.BLOCK + 16, 0, 1] = 0
    counts = pictures.counts_of(ids_of)
    np.testing.assert_array_equal(counts, [[[0, 0, 0], [16, pictures.BLOCK, 0], [0, 4, 0]],
                                           [[0, 0, 0], [0, pictures.BLOCK, 0], [0, 4, 0]]])


def test_the_first_block_and_its_chance():
    """Of two blocks kept one is the query's own, so that block 2 chooses one of two, and block 3 one of three."""
    tokens = 4 * pictures.BLOCK
    assert pictures.chance(tokens, 2) == pytest.approx((1 / 2 + 1 / 3) / 2)
    ids_of = np.zeros((tokens, 1, 2), int)  # of queries with a choice, those of block 3 do not
    ids_of[3 * pictures.BLOCK:] = [1, 3]
    assert pictures.first_block(ids_of).tolist() == [0.5]


def write_archive(path):
    """Two layers of two groups of two heads. Layer 4 has a sink of 0.5, which training makes 0.75; layer 2 has none."""
    mass = {(2, "before"): 0.01, (2, "after"): 0.02, (4, "before"): 0.5, (4, "after"): 0.75}
    numbers = {"heads": 4, "groups": 2, "top_k": 4, "documents": 3, "tokens": 1024, "queries": 7,
               "by_layer": [(layer, when, 0.8, *[0.9] * 4, 0.625, 128.0, 192.0, value, value / 2)
                            for (layer, when), value in mass.items()],
               "by_head": [(layer, head, when, value, value / 2) for (layer, when), value in mass.items() for head in range(4)],
               "by_group": [(2, "before", 0, 0.5), (2, "before", 1, 0.9), (2, "after", 0, 0.75), (2, "after", 1, 0.53),
                            *((4, when, group, 0.75) for when in ("before", "after") for group in range(2))], "chance": 0.5}
    counts = np.tril(np.full((2, 2, 16, 16), 32, np.uint8))
    maps = io.BytesIO()
    queries = [64] * 15 + [32]  # of the last block, so that all of them select each block
    np.savez(maps, layers=[2, 4], queries=queries, before=counts, after=counts // 2)
    with tarfile.open(path, "w:xz") as tar:
        for name, data in ((pictures.NUMBERS, json.dumps(numbers).encode()), (pictures.MAPS, maps.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def run(*words):
    return subprocess.run([sys.executable, ROOT / "studies/conversion/pictures.py", *map(str, words)], text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path), "MSALAB_BIN": str(BIN)})


def test_the_pictures_of_an_archive(tmp_path):
    write_archive(tmp_path / "a.tar.xz")
    done = run("draw", tmp_path / "a.tar.xz", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "| 4 | 0.800, 0.800 | " in done.stdout
    assert "| 0.625 | 128, 128 | 192, 192 | 0.500, 0.750 | 0.250, 0.375 | 0.750, 0.750 |" in done.stdout
    assert "by 0.02 in every group: 1 of 2 layers before, 2 after" in done.stdout
    for name in PICTURES:
        picture = Image.open(tmp_path / "out" / f"{name}.png")
        assert picture.mode == "P" and (tmp_path / "out" / f"{name}.png").stat().st_size < 150_000
    done = run("draw", tmp_path / "a.tar.xz", tmp_path / "out", "--layers", "3")
    assert done.returncode == 1 and "has no map of layer 3; it has those of [2, 4]" in done.stderr


def test_the_tables_behind_the_pictures(tmp_path):
    write_archive(tmp_path / "a.tar.xz")
    found = pictures.Found(tmp_path / "a.tar.xz")
    assert found.least_and_most() == [2, 4]
    _, table = pictures.draw_selection(found, [4])
    assert set(table.where(when="before")["share"]) == {0.5, 1} and set(table.where(when="after")["share"]) == {0.25, 0.5}
    assert set(table.where(when="before", query_block=15)["share"]) == {1}
    assert set(table["layer"]) == {4} and len(table) == 2 * 2 * 16 * 17 / 2
    figure, table = pictures.draw_sinks(found, [2, 4])
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == [0.5] * 4 + [0.75] * 4 + [0.25] * 4 + [0.375] * 4 and len(table) == 16
    figure, _ = pictures.draw_sinks_by_layer(found)
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), [[0.02, 0.75]] * 4)


def test_the_whole_of_it_on_a_small_model(tmp_path):
    """A model of bytes whose Index Branches learn without it, and then with it."""
    for name in ("torch", "transformers", "msalab._msalab"):
        pytest.importorskip(name, reason="needs PyTorch, transformers and the compiled module")
    if not (BIN / "msa-analyze").exists():
        pytest.skip(f"no msa-analyze in {BIN}: ./msalab build")
    import torch
    import transformers

    from msalab.training.__main__ import main as train

    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=256, max_position_embeddings=1024,
                                      tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    long = [text for text in texts if len(text.encode()) > 1100]
    (tmp_path / "text.txt").write_text("\0".join(long), encoding="utf-8")
    for name, more in (("before", ["--steps", "2", "--warmup-steps", "2"]),
                       ("after", ["--steps", "4", "--indexer", str(tmp_path / "before/model")])):
        assert train([str(tmp_path / "model"), "--data", str(tmp_path / "text.txt"), "--bytes", "--context", "512", "--batch",
                      "1", "--rows", "1", "--block-size", "64", "--top-k", "4", "--out", str(tmp_path / name), *more]) == 0
    done = run("measure", tmp_path / "model", tmp_path / "before/model/indexer.safetensors", tmp_path / "after/model",
               tmp_path / "text.txt", tmp_path / "a.tar.xz", "--context", "1024", "--top-k", "4", "--bytes",
               "--maps", "1")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.xz", "after", "before", "model", "text.txt"]
    found = pictures.Found(tmp_path / "a.tar.xz")
    assert found.layers == [0, 1] and found.numbers["documents"] == 3
    assert list(found.maps["after"]) == [1] and found.maps["after"][1].shape == (2, 16, 16)
    np.testing.assert_allclose(found.maps["after"][1].sum(2)[:, 4:], 4)  # blocks of a query
    own = found.by_layer
    assert ((own["same"] > 0.25) & (own["same"] < 1)).all()  # the newest of four blocks always stays
    assert (own["mass_index"] <= own["mass_oracle"] + 1e-12).all() and (own["mass_window"] < own["mass_oracle"]).all()
    assert (own["distance"] > 0).all()
    done = run("draw", tmp_path / "a.tar.xz", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {f"{name}.png" for name in PICTURES}
