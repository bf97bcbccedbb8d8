# SPDX-License-Identifier: MIT
"""Bytes that Q-outer and KV-outer move, by the paper's formulas."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FuncFormatter

from .. import results
from ..table import Table
from . import style
from .cost import tokens_text

ORDERS = {"q_outer": "Q-outer", "kv_outer": "KV-outer"}
OF_INDEX = ("index scores", "select blocks")  # stages that both orders have alike


@style.styled
def bytes_by_context(cost: results.Report):
    """Of sparse attention in prefill, KV-outer with its reverse index and its second pass."""
    contexts = cost["contexts"]["tokens"].tolist()
    stages = cost["stages"].where(phase="prefill", accounting="paper")
    figure = style.new_figure(1.0 + 0.62 * len(contexts))
    axes = figure.subplots()
    rows = []
    for place, (name, title) in enumerate(ORDERS.items()):
        moved = [sum(row["stage_bytes"] for row in stages.where(tokens=tokens, pipeline=name).records()
                     if row["stage"] not in OF_INDEX) for tokens in contexts]
        where = np.arange(len(contexts)) + 0.38 * (place - 0.5)
        bars = axes.barh(where, np.array(moved) / 1e9, 0.36, color=style.series_style(place)["color"], label=title)
        axes.bar_label(bars, [f"{value / 1e9:,.0f} GB".replace(",", "\u202f") for value in moved], padding=3)
        rows += [(tokens, name, value) for tokens, value in zip(contexts, moved)]
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    most, least = (float(pick(row[2] for row in rows)) / 1e9 for pick in (max, min))
    axes.set_xlim(0.4 * least, 4 * most)
    axes.set_yticks(np.arange(len(contexts)), [tokens_text(tokens) for tokens in contexts])
    axes.set_ylabel("context, tokens")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("GB of a layer in prefill")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, Table.from_rows(("tokens", "order", "bytes"), rows)
