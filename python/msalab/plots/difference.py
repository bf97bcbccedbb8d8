# SPDX-License-Identifier: MIT
"""Two runs beside each other: what the second keeps and finds that the first does not."""

from __future__ import annotations

import math

import numpy as np

from ..evaluation.intervals import difference_of_ratios
from ..explore.activations import Activations, attention
from ..table import Table
from . import style
from .heat_map import future, selection_share
from .results import Results

BLOCK = 128  # positions of a sequence that the bootstrap draws together, as the programs do
CHUNK = 4096  # queries at a time
METRICS = ("mass_kept", "block_recall")
COLUMNS = ("layer", "selector", "metric", "a", "b", "difference", "difference_low", "difference_high", "interval",
           "rows_counted")
DEFINITIONS = {
    "a": "mean of the first run over the queries that see more blocks than either run selects",
    "b": "the same of the second run",
    "difference": "b less a, with its 95 % interval",
    "interval": "how difference_low and difference_high come about. paired: the bootstrap draws blocks of 128 positions, "
                "each with its differences of both runs. apart: the probabilities of blocks are not known (--activations, "
                "or --dump mass), so the intervals of both runs are added as if these were of other queries: too wide "
                "rather than too narrow",
}


def _mass(results: Results, layer: int, rows: slice, activations: Activations | None):
    """[rows, Hkv, B] of one sequence; None where it is not known."""
    queries = results.queries(layer)
    found = activations and activations.layer(layer, int(queries.sequence[rows.start]))
    if found:
        return attention(*found, queries.position[rows], results.sizes(layer).block_size).mass
    return results.mass(layer, rows)


def _kept(ids: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """[rows] Of each query the mass of its blocks, mean over the groups."""
    of = np.take_along_axis(mass, np.where(ids >= 0, ids, 0).astype(np.int64), 2)
    return np.where(ids >= 0, of, 0).sum(2, dtype=float).mean(1)


def _recall(ids: np.ndarray, best: np.ndarray) -> np.ndarray:
    """[rows] Share of the blocks `best` that are among `ids`, mean over the groups."""
    hits = (best[..., :, None] == ids[..., None, :]).any(-1) & (best >= 0)
    return (hits.sum(2) / (best >= 0).sum(2)).mean(1)


def query_values(run: Results, selector: str, layer: int, rows: slice, mass) -> dict[str, np.ndarray]:
    ids, found = run.ids(selector, layer)[rows], {}
    if mass is not None:
        found["mass_kept"] = _kept(ids, mass)
    if "oracle" in run.selectors and selector != "oracle":
        found["block_recall"] = _recall(ids, run.ids("oracle", layer)[rows])
    return found


def differences(a: Results, b: Results, layers, activations: Activations | None = None) -> Table:
    """A row for each layer, selector and metric; the runs are comparable (explore.two_runs)."""
    selectors = [name for name in a.selectors if name in b.selectors]
    return Table.from_rows(COLUMNS, [row for layer in layers
                                     for row in _of_layer(a, b, layer, selectors, activations)])


def _of_layer(a: Results, b: Results, layer: int, selectors, activations):
    queries, size = a.queries(layer), a.sizes(layer).block_size
    most = max(run.top_k(run.selectors[0], layer) for run in (a, b))
    counts = queries.position // size + 1 > most
    unit = np.unique(np.stack([queries.sequence, queries.position // BLOCK]), axis=1, return_inverse=True)[1].ravel()
    values = {}  # (selector, metric): of each run, [Nq]
    for sequence in np.unique(queries.sequence):
        of = queries.rows_of(sequence)
        for first in range(of.start, of.stop, CHUNK):
            rows = slice(first, min(first + CHUNK, of.stop))
            mass = _mass(a, layer, rows, activations)
            for selector in selectors:
                for place, run in enumerate((a, b)):
                    for metric, part in query_values(run, selector, layer, rows, mass).items():
                        values.setdefault((selector, metric), ([], []))[place].append(part)
    for selector in selectors:
        for metric in METRICS:
            if (selector, metric) in values:
                yield (layer, selector, metric,
                       *_paired(*map(np.concatenate, values[selector, metric]), counts, unit), "paired", counts.sum())
            elif metric == "mass_kept":
                yield layer, selector, metric, *_apart(a, b, layer, selector, metric), "apart", counts.sum()


def _paired(of_a, of_b, counts, unit):
    number = np.bincount(unit[counts])
    drawn = number > 0
    sums = [np.bincount(unit[counts], of[counts])[drawn] for of in (of_a, of_b)]
    if not drawn.any():
        return (math.nan,) * 5
    found = difference_of_ratios((sums[1], number[drawn]), (sums[0], number[drawn]), seed=0)
    return (*(of[counts].mean() for of in (of_a, of_b)), found["mean"],
            *(math.nan if found[end] is None else found[end] for end in ("low", "high")))


def _apart(a, b, layer, selector, metric):
    means = [run.average(selector, layer, metric) for run in (a, b)]
    (low_a, high_a), (low_b, high_b) = (run.interval(layer, metric, selector) for run in (a, b))
    apart = means[1] - means[0]
    return (*means, apart, apart - math.hypot(means[1] - low_b, high_a - means[0]),
            apart + math.hypot(high_b - means[1], means[0] - low_a))


@style.styled
def difference_by_layer(table: Table, metric: str):
    """The second run less the first, layer by layer, with 95 % intervals."""
    table = table.where(metric=metric)
    layers = sorted(set(table["layer"].tolist()))
    figure = style.new_figure(3.4)
    axes = figure.subplots()
    names = list(dict.fromkeys(table["selector"].tolist()))
    for place, selector in enumerate(names):
        of, look = table.where(selector=selector), style.selector_style(selector)
        where = of["layer"] + 0.3 * (place - (len(names) - 1) / 2) / len(names)
        axes.vlines(where, of["difference_low"], of["difference_high"], color=look["color"], alpha=0.5, linewidth=2)
        axes.plot(where, of["difference"], label=selector, **look)
    axes.axhline(0, color=style.GUIDE, linewidth=1)
    style.layer_axis(axes, layers)
    axes.set_ylabel(f"{metric.replace('_', ' ')}, B − A")
    if np.isnan(table["difference"]).all():
        style.say_instead(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, table


@style.styled
def selection_difference(a: Results, b: Results, selector: str, layer: int, max_blocks: int = 512):
    """One panel per GQA group: share of a query block's queries that choose the key block in B, less that in A."""
    one, two = (selection_share(run, selector, layer, max_blocks=max_blocks) for run in (a, b))
    apart = two.share - one.share
    groups, cells, _ = apart.shape
    reach = max(0.01, float(np.nanmax(np.abs(apart), initial=0)))
    columns = min(groups, 3)
    rows = math.ceil(groups / columns)
    figure = style.new_figure(1.0 + rows * 0.98 * style.WIDTH / columns)
    extent = cells * one.step
    for group, panel in enumerate(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat):
        panel.grid(False)
        panel.set_visible(group < groups)
        if group >= groups:
            continue
        panel.set_facecolor(style.NO_DATA)
        image = panel.imshow(apart[group], cmap=style.DIFFERENCE, vmin=-reach, vmax=reach, interpolation="antialiased",
                             extent=(-0.5, extent - 0.5, extent - 0.5, -0.5))
        panel.add_patch(future(extent, one.step))
        panel.set_title(f"group {group}")
        panel.locator_params(nbins=9 - 2 * columns, integer=True, min_n_ticks=2)
        panel.tick_params(labelbottom=group + columns >= groups)
    figure.supxlabel(f"key block ({a.sizes(layer).block_size} tokens each)")
    figure.supylabel("query block")
    bar = figure.colorbar(image, ax=figure.axes, location="top", aspect=40, pad=0.02, ticks=[-reach, 0, reach],
                          format=lambda value, _: f"{value:+.2g}")
    bar.set_label(f"{selector}, layer {layer}: share of queries in B, less that in A")
    group, row, column = np.nonzero(np.nan_to_num(apart))
    return figure, Table(group=group, query_block=row * one.step, key_block=column * one.step,
                         blocks_per_cell=np.full(len(group), one.step), a=one.share[group, row, column],
                         b=two.share[group, row, column], difference=apart[group, row, column])
