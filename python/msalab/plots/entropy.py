# SPDX-License-Identifier: MIT
"""How many keys attention is spread over, layer by layer."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results


def _log(keys):
    return np.log(np.maximum(keys, 1e-9))


@style.styled
def entropy_per_layer(results: Results, layers=None):
    """Mean entropy in nats of dense attention and of attention over each selector's blocks. The
    bar is the range of the dense heads; the scale on the right is e to the entropy."""
    layers = results.layers if layers is None else layers
    figure = style.new_figure(3.4)
    axes = figure.subplots()
    where, rows = np.arange(len(layers)), []
    step = min(0.05, 0.4 / len(results.selectors))  # markers of a layer stay about it
    left = -step * (len(results.selectors) - 1) / 2
    dense = [results.metric("dense", layer, "entropy") for layer in layers]
    middle = np.array([values.mean() for values in dense])
    reach = np.abs([[values.min() for values in dense], [values.max() for values in dense]]
                   - middle)
    axes.errorbar(where, middle, reach, color=style.DENSE, marker="o", capsize=4, label="dense")
    rows += [(layer, "dense", head, value) for layer, values in zip(layers, dense)
             for head, value in enumerate(values)]
    for place, selector in enumerate(results.selectors):
        heads = [results.metric(selector, layer, "entropy_sparse") for layer in layers]
        look = style.selector_style(selector)
        axes.plot(where + left + step * place, [values.mean() for values in heads], label=selector, **look)
        rows += [(layer, selector, head, value) for layer, values in zip(layers, heads)
                 for head, value in enumerate(values)]
    style.layer_axis(axes, layers, where=where)
    known = [value for *_, value in rows if np.isfinite(value)] or [0.0, 1.0]
    room = 0.05 * max(max(known) - min(known), 1)  # the scale has the range of the values
    axes.set(xlim=(-0.5, len(layers) - 0.5), ylim=(max(0, min(known) - room), max(known) + room), ylabel="entropy, nats")
    keys = axes.secondary_yaxis("right", functions=(np.exp, _log))
    keys.set_ylabel("keys of an even spread")
    keys.set_yticks([1, 3, 10, 30, 100, 300, 1000, 3000])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "head", "entropy_nats"), rows)
