# SPDX-License-Identifier: MIT
"""Whether what matters far away is found, wherever it lies: depth against context."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results

CHUNK = 4096  # queries at a time


def depth_recall(results: Results, selector: str, layer: int, cells: int = 10):
    """(found, wanted) [cells, cells] by depth (row: 0 oldest block, 1 newest) and context (column):
    how many far blocks of the oracle were wanted and how many of them the selector chose. Far is
    neither the first block nor the newest two of the query (docs/terms.md). Queries that see at
    most k blocks have no choice and do not count."""
    block_size = results.sizes(layer).block_size
    local = results.queries(layer).position // block_size
    wanted_ids, chosen_ids = results.ids("oracle", layer), results.ids(selector, layer)
    longest = int(local.max()) + 1
    found, wanted = np.zeros((2, cells * cells), np.int64)
    for start in range(0, len(local), CHUNK):
        here = slice(start, start + CHUNK)
        wish, chosen, own = wanted_ids[here], chosen_ids[here], local[here][:, None, None]
        hit = (wish[..., :, None] == chosen[..., None, :]).any(-1)
        counts = (wish > 0) & (wish < own - 1) & (own + 1 > chosen.shape[2])
        row = np.minimum(wish * cells // np.maximum(own, 1), cells - 1)
        cell = row * cells + np.broadcast_to(own * cells // longest, row.shape)
        wanted += np.bincount(cell[counts], minlength=cells * cells)
        found += np.bincount(cell[counts & hit], minlength=cells * cells)
    return found.reshape(cells, cells), wanted.reshape(cells, cells)


@style.styled
def needle_depth_map(results: Results, selector: str, layer: int, cells: int = 10):
    """Share of the oracle's blocks that the selector found, by how deep they lie and how long the
    context was; white where the oracle wanted none."""
    found, wanted = depth_recall(results, selector, layer, cells)
    with np.errstate(invalid="ignore"):
        share = found / np.where(wanted, wanted, np.nan)
    figure = style.new_figure(4.4)
    axes = figure.subplots()
    axes.grid(False)
    axes.set_facecolor(style.NO_DATA)
    tokens = (int(results.queries(layer).position.max()) + 1) / 1024
    image = axes.imshow(share, cmap=style.MAGNITUDE, vmin=0, vmax=1, aspect="auto",
                        extent=(0, tokens, 100, 0))
    if not len(results.rows_with_choice(layer)):
        style.say_instead(axes)
    seen = np.flatnonzero(wanted.any(0))
    if len(seen):
        axes.set_xlim(seen[0] * tokens / cells, tokens)
    axes.set(xlabel="context that the query sees, K tokens",
             ylabel="depth of the wanted block, %\n(0: oldest)")
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02,
                          ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_label(f"{selector}, layer {layer}: share of the oracle's far blocks found")
    rows = [(layer, selector, row / cells, column * tokens * 1024 / cells, wanted[row, column],
             found[row, column]) for row, column in np.ndindex(cells, cells)]
    return figure, Table.from_rows(("layer", "selector", "depth_from", "context_from", "wanted",
                                    "found"), rows)
