# SPDX-License-Identifier: MIT
import tracemalloc

import h5py
import numpy as np
import pytest

from msalab.plots import (Results, ResultsError, entropy_per_layer, lorenz_curve, needle_depth_map,
                      overlap_map)
from msalab.plots.heat_map import selection_share
from msalab.plots.lorenz import lorenz
from msalab.plots.needle import depth_recall
from msalab.plots.overlap import overlap_matrix, pairs_iou


def test_lorenz_by_hand():
    counts = np.array([[2, 1, 1], [0, 4, 0]])
    np.testing.assert_allclose(lorenz(counts), [0, 0.125, 0.25, 1])
    np.testing.assert_array_equal(lorenz(np.zeros((1, 2), int)), [0, 0, 0])


def test_area_under_the_lorenz_curve_is_the_mean_gini(results):
    _, table = lorenz_curve(results, 3)
    for selector in results.selectors:
        curve = table.where(selector=selector)
        counts = results.popularity(selector, 3).queries_per_block
        ginis = []
        for group in counts:  # mean absolute difference over twice the mean
            ginis.append(np.abs(group[:, None] - group).mean() / (2 * group.mean()))
        area = np.trapezoid(curve["queries"], curve["blocks"])
        assert 1 - 2 * area == pytest.approx(np.mean(ginis))


def test_iou_by_hand():
    first = np.array([[0, 1, 2], [0, 5, -1], [-1, -1, -1]])
    second = np.array([[1, 2, 3], [0, 5, -1], [-1, -1, -1]])
    of_pairs = pairs_iou(np.stack([first, second], axis=1), 6)
    np.testing.assert_array_equal(of_pairs[:, 0, 1], [0.5, 1, np.nan])
    np.testing.assert_array_equal(of_pairs[:, 0, 0], [1, 1, np.nan])


def test_overlap_is_that_of_the_sets(results):
    matrix = overlap_matrix(results, "window", [3, 6])
    ids = np.concatenate([results.ids("window", layer)[:] for layer in (3, 6)], axis=1)
    local = results.queries(3).position // results.sizes(3).block_size
    rows = np.nonzero(local + 1 > results.top_k("window", 3))[0]
    for a, b in ((0, 1), (2, 7), (5, 5)):
        sets = [({*ids[row, a]}, {*ids[row, b]}) for row in rows]
        assert matrix[a, b] == pytest.approx(np.mean([len(x & y) / len(x | y) for x, y in sets]))
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1)
    figure, table = overlap_map(results, "random")
    assert figure.axes[0].images[0].get_clim() == (0, 1)
    assert len(table) == 64


def test_layers_of_different_queries_do_not_compare(results_path, tmp_path):
    path = tmp_path / "r.h5"
    path.write_bytes(results_path.read_bytes())
    with h5py.File(path, "r+") as file:
        file["queries/6/token"][0] = 7
    with Results(path) as results, pytest.raises(ResultsError, match="different queries"):
        overlap_matrix(results, "oracle", [3, 6])


def test_entropy_shows_the_metrics(results):
    figure, table = entropy_per_layer(results)
    np.testing.assert_array_equal(table.where(layer=6, selector="dense")["entropy_nats"],
                                  results.metric("dense", 6, "entropy"))
    np.testing.assert_array_equal(table.where(layer=3, selector="random")["entropy_nats"],
                                  results.metric("random", 3, "entropy_sparse"))
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    np.testing.assert_allclose(drawn["window"], [
        results.metric("window", layer, "entropy_sparse").mean() for layer in (3, 6)])


@pytest.mark.parametrize("selector", ["random", "window"])
def test_depth_recall_is_that_of_the_definition(sampled, selector):
    found, wanted = depth_recall(sampled, selector, 0, cells=4)
    counts = np.zeros((2, 4, 4), int)
    locals_ = sampled.queries(0).position // sampled.sizes(0).block_size
    oracle, chosen = sampled.ids("oracle", 0)[:], sampled.ids(selector, 0)[:]
    for query, local in enumerate(locals_):
        for group in range(4):
            for block in oracle[query, group]:
                if block in (-1, 0, local - 1, local) or local + 1 <= 4:  # not far, or no choice
                    continue
                cell = block * 4 // local, local * 4 // (locals_.max() + 1)
                counts[1][cell] += 1
                counts[0][cell] += block in chosen[query, group]
    np.testing.assert_array_equal(found, counts[0])
    np.testing.assert_array_equal(wanted, counts[1])
    assert wanted.sum() > 0
    _, table = needle_depth_map(sampled, selector, 0, cells=4)
    np.testing.assert_array_equal(table["found"], found.ravel())


def test_the_oracle_finds_all_it_wants(results):
    found, wanted = depth_recall(results, "oracle", 3)
    np.testing.assert_array_equal(found, wanted)


def test_long_contexts_stay_small_in_memory(tmp_path):
    tokens, block_size = 131072, 128
    position = np.arange(tokens)
    ids = np.stack([position // block_size // 2, position // block_size], 1)[:, None, :]
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file.attrs.update(format="msa-results", format_version=3)
        file.create_group("layers/0").attrs.update(
            query_heads=1, kv_heads=1, head_dim=16, index_dim=0, block_size=block_size,
            blocks=tokens // block_size, tokens=tokens, softmax_scale=0.25)
        file["queries/0/token"] = file["queries/0/position"] = position
        file["queries/0/sequence"] = 0 * position
        for selector in ("oracle", "index"):
            file.create_dataset(f"select/{selector}/0/ids", data=ids.astype(np.int32),
                                chunks=(4096, 1, 2))
            file.create_group(f"metrics/{selector}")
    with Results(tmp_path / "r.h5") as results:
        tracemalloc.start()
        share = selection_share(results, "index", 0)
        found, wanted = depth_recall(results, "index", 0)
        overlap_matrix(results, "index", [0])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert share.share.shape == (1, 512, 512)
    np.testing.assert_array_equal(found, wanted)
    assert peak < 32 << 20  # N x N bytes would be 16 GiB
