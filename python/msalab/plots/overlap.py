# SPDX-License-Identifier: MIT
"""How alike the selections of groups and layers are."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results, ResultsError

CHUNK = 1 << 21  # values at a time


def pairs_iou(ids: np.ndarray, blocks: int) -> np.ndarray:
    """ids [n, P, k], -1 padded -> [n, P, P]: blocks in both over blocks in either, NaN of none."""
    chosen = np.zeros((*ids.shape[:2], blocks + 1), np.float32)
    np.put_along_axis(chosen, ids, 1, axis=2)
    chosen = chosen[:, :, :blocks]  # -1 went to the end
    both, size = chosen @ chosen.transpose(0, 2, 1), chosen.sum(2, dtype=np.float64)
    either = size[:, :, None] + size[:, None] - both
    return both / np.where(either, either, np.nan)


def _same_queries(results: Results, layers: list[int]) -> np.ndarray:
    """The rows of the queries that had a choice. [n] row numbers."""
    first = results.queries(layers[0])
    for layer in layers[1:]:
        if not np.array_equal(first.token, results.queries(layer).token):
            raise ResultsError(f"{results.path}: layers {layers[0]} and {layer} analysed "
                               "different queries")
    return results.rows_with_choice(layers[0])


def overlap_matrix(results: Results, selector: str, layers: list[int]) -> np.ndarray:
    """[layers * Hkv, layers * Hkv]: mean IoU over the queries that see more than k blocks, of
    every (layer, group) with every other. Streamed over the queries."""
    rows = _same_queries(results, layers)
    ids = [results.ids(selector, layer) for layer in layers]
    size, blocks = sum(dataset.shape[1] for dataset in ids), max(results.sizes(layer).blocks for layer in layers)
    sums, step = np.zeros((size, size)), max(1, CHUNK // (size * max(size, blocks)))
    for start in range(0, len(rows), step):
        part = rows[start:start + step]
        low, high = part[0], part[-1] + 1
        chosen = np.concatenate([dataset[low:high][part - low] for dataset in ids], axis=1)
        sums += pairs_iou(chosen, blocks).sum(0)
    return sums / len(rows) if len(rows) else np.full((size, size), np.nan)


@style.styled
def overlap_map(results: Results, selector: str, layers=None):
    """Cross-group and cross-layer overlap in one matrix: layers along the axes, groups within
    them. 1: the same blocks always; what chance gives is far below."""
    layers = results.layers if layers is None else layers
    matrix = overlap_matrix(results, selector, layers)
    groups = len(matrix) // len(layers)
    figure = style.new_figure(5.0)
    axes = figure.subplots()
    axes.grid(False)
    image = axes.imshow(matrix, cmap=style.MAGNITUDE, vmin=0, vmax=1)
    centres = np.arange(len(layers)) * groups + (groups - 1) / 2
    style.layer_axis(axes, layers, f"layer, its {groups} groups side by side", centres)
    style.layer_axis(axes, layers, "layer", centres, "y")
    for edge in np.arange(1, len(layers)) * groups - 0.5:
        axes.axhline(edge, color=style.NO_DATA, linewidth=1)
        axes.axvline(edge, color=style.NO_DATA, linewidth=1)
    if np.isnan(matrix).all():
        style.say_instead(axes)
    elif len(matrix) <= 8:
        for (row, column), value in np.ndenumerate(matrix):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center",
                      color=style.on_image(value))
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02)
    bar.set_label(f"{selector}: blocks in both over blocks in either (IoU)")
    places = [(layer, group) for layer in layers for group in range(groups)]
    rows = [(*places[a], *places[b], value) for (a, b), value in np.ndenumerate(matrix)]
    return figure, Table.from_rows(("layer", "group", "other_layer", "other_group", "iou"), rows)
