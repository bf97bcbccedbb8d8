# SPDX-License-Identifier: MIT
"""Which blocks are selected (fig:vis-selection)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Polygon

from ..table import Table
from . import style
from .results import Results, ResultsError


@dataclass(frozen=True)
class SelectionShare:
    """share [Hkv, rows, columns]: share of a query block's analysed tokens that select the key
    block, NaN where no query was analysed. A cell spans `step` x `step` blocks and holds their
    maximum."""

    share: np.ndarray
    queries: np.ndarray  # [rows] analysed tokens
    step: int


def _share_of_rows(ids: np.ndarray, query_blocks: np.ndarray, columns: int) -> np.ndarray:
    """ids [n, Hkv, k], query_blocks [n] from 0 -> [Hkv, max + 1, columns]; empty rows are NaN."""
    rows, groups = int(query_blocks.max()) + 1, ids.shape[1]
    cell = (np.arange(groups)[:, None] * rows + query_blocks[:, None, None]) * columns + ids
    counts = np.bincount(cell[ids >= 0], minlength=groups * rows * columns)
    tokens = np.bincount(query_blocks, minlength=rows)[:, None].astype(float)
    with np.errstate(invalid="ignore"):
        return counts.reshape(groups, rows, columns) / np.where(tokens, tokens, np.nan)


def _default_sequence(queries) -> int:
    values, counts = np.unique(queries.sequence, return_counts=True)
    return int(values[counts.argmax()])


def selection_share(results: Results, selector: str, layer: int, sequence: int | None = None,
                    max_blocks: int = 512) -> SelectionShare:
    """Streams over the ids, one row of cells at a time. By default the sequence with the most
    analysed queries; more than max_blocks blocks are down-sampled by maximum."""
    queries = results.queries(layer)
    sequence = _default_sequence(queries) if sequence is None else sequence
    rows = queries.rows_of(sequence)
    if rows.start == rows.stop:
        raise ResultsError(f"{results.path}: layer {layer} has no queries of sequence {sequence}")
    query_block = queries.position[rows] // results.sizes(layer).block_size
    ids = results.ids(selector, layer)
    blocks = int(query_block[-1]) + 1
    step = math.ceil(blocks / max_blocks)
    cells = math.ceil(blocks / step)
    share = np.full((ids.shape[1], cells, cells), np.nan)
    tokens = np.zeros(cells, np.int64)
    starts = np.searchsorted(query_block, np.arange(cells + 1) * step)
    for cell, (low, high) in enumerate(zip(starts[:-1], starts[1:])):
        tokens[cell] = high - low
        if low < high:
            piece = ids[rows.start + low:rows.start + high]
            part = _share_of_rows(piece, query_block[low:high] - cell * step, cells * step)
            tiles = part.reshape(len(part), -1, cells, step)
            share[:, cell] = np.nanmax(tiles, axis=(1, 3))
    return SelectionShare(share, tokens, step)


def future(extent: int, step: int) -> Polygon:
    """What no query of the blocks sees: a stair above the diagonal, in cells of so many blocks."""
    ends = np.repeat(np.arange(step, extent + 1, step) - 0.5, 2)
    corners = np.stack([ends, np.concatenate([[-0.5], ends[:-1]])], 1)
    return Polygon([*corners, (extent - 0.5, -0.5)], facecolor=style.MASKED, edgecolor="none")


@style.styled
def selection_heat_map(results: Results, selector: str, layer: int, sequence: int | None = None,
                       max_blocks: int = 512):
    """One panel per GQA group; x key block, y query block, origin top left. The table holds the
    cells that are not 0."""
    data = selection_share(results, selector, layer, sequence, max_blocks)
    groups, cells, _ = data.share.shape
    extent = cells * data.step
    columns = 4 if groups > 8 else 3 if groups == 3 else min(groups, 2)
    rows = math.ceil(groups / columns)
    figure = style.new_figure(1.0 + rows * 0.98 * style.WIDTH / columns)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    place = {"extent": (-0.5, extent - 0.5, extent - 0.5, -0.5), "interpolation": "antialiased"}
    for group, panel in enumerate(axes.flat):
        panel.grid(False)
        panel.set_visible(group < groups)
        if group >= groups:
            continue
        panel.set_facecolor(style.NO_DATA)
        image = panel.imshow(data.share[group], cmap=style.MAGNITUDE, vmin=0, vmax=1, **place)
        panel.add_patch(future(extent, data.step))
        panel.set_title(f"group {group}")
        panel.locator_params(nbins=9 - 2 * columns, integer=True, min_n_ticks=2)
        panel.tick_params(labelbottom=group + columns >= groups)
    tokens = f"{results.sizes(layer).block_size} tokens each"
    reduced = f"; a cell: max of {data.step} × {data.step}" if data.step > 1 else ""
    figure.supxlabel(f"key block ({tokens}{reduced})")
    figure.supylabel("query block")
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02,
                          ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_label(f"{selector}, layer {layer}: share of queries that select the block")
    return figure, _table(data)


def _table(data: SelectionShare) -> Table:
    group, row, column = np.nonzero(np.nan_to_num(data.share))
    return Table(group=group, query_block=row * data.step, key_block=column * data.step,
                 blocks_per_cell=np.full(len(group), data.step), queries=data.queries[row],
                 share=data.share[group, row, column])
