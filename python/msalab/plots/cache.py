# SPDX-License-Identifier: MIT
"""Hit rates, the link and prefetch of a KV cache off the GPU: the tables of `msa-cache`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import FuncFormatter

from .. import results
from ..table import Table
from . import style

POINT = ("blocks", "share_of_context", "cache_bytes", "hit_rate", "hit_rate_lfu",
         "hit_rate_belady", "misses_per_token", "bytes_per_token", "link_seconds_per_token",
         "late_misses_per_token", "in_vain_per_token")
LAYER = ("layer", "selector", "steps", "smallest_cache", "cold_share", "median_distance",
         "previous_step_share", "previous_layer_share")


@dataclass(frozen=True)
class CacheReport:
    points: Table  # one row per selector and size; recommended ones that were not tried, too
    layers: Table  # one row per layer and selector
    selectors: list[str]
    context_blocks: int
    bytes_per_token: float  # at most, over the link
    where: str  # "64 GB/s, 10 ms per token"
    prefetch: bool
    definitions: dict[str, str]

    @property
    def several_layers(self) -> bool:
        return len(set(self.layers["layer"].tolist())) > 1


def _points(caches: results.Table, selector: str) -> list[tuple]:
    """The sizes tried, and the recommended one among them or beside them."""
    of = caches.where(selector=selector)
    rows = {role: list(of.where(cache_role=role).select(*POINT).rows())
            for role in ("tried", "recommended")}
    chosen = {row[0] for row in rows["recommended"]}
    tried = {row[0] for row in rows["tried"]}
    points = [*rows["tried"], *(row for row in rows["recommended"] if row[0] not in tried)]
    return [(selector, *row, row[0] in chosen) for row in sorted(points)]


def read_cache(path) -> CacheReport:
    answer = results.open(path, "msa-cache")
    selectors, (measured,) = answer["selectors"]["selector"].tolist(), answer["measured"].records()
    if not selectors:
        raise results.ResultsError(f"{answer.path}: has no selectors")
    options, layers = answer.run["options"], answer["layers"].select(*LAYER)
    for name in ("median_distance", "previous_layer_share"):  # NaN where there is none
        layers.columns[name] = layers[name].astype(float)
    return CacheReport(
        Table.from_rows(("selector", *POINT, "recommended"),
                        [row for name in selectors for row in _points(answer["caches"], name)]),
        layers, selectors, measured["context_blocks"], measured["most_bytes_per_token"],
        f"{options['link']:g} GB/s, {_time_text(options['time_per_token'] * 1e-6)} per token",
        options["prefetch"] != "none", answer.definitions)


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} µs"


def _look(name: str) -> dict:
    """Of a selector, with a mark that can be filled and hollow, which an x cannot."""
    look = style.selector_style(name)
    return {**look, "marker": "<"} if look["marker"] == "x" else look


def _draw_hits(axes, report: CacheReport):
    lowest = []
    for name in report.selectors:
        of = report.points.where(selector=name)
        look = _look(name)
        tried = ~np.isnan(of["hit_rate_belady"])
        axes.plot(of["blocks"], 100 * of["hit_rate"], label=name, **look)
        axes.fill_between(of["blocks"][tried], 100 * of["hit_rate"][tried],
                          100 * of["hit_rate_belady"][tried], color=look["color"], alpha=0.25,
                          linewidth=0)
        axes.plot(of["blocks"][tried], 100 * of["hit_rate_lfu"][tried], color=look["color"],
                  linestyle=":", linewidth=1)
        if name != "random" or len(report.selectors) == 1:
            lowest.append(100 * min(np.nanmin(of["hit_rate"]), *of["hit_rate_lfu"][tried]))
    axes.set_ylim(min(lowest) - 0.05 * (100 - min(lowest)) - 0.1, 101)
    axes.set_ylabel("hits %")
    style.sentence(axes, "line: LRU; shaded: up to Belady; dotted: LFU", color=style.GUIDE)


def _draw_link(axes, report: CacheReport):
    for name in report.selectors:
        of = report.points.where(selector=name)
        look = _look(name)
        megabytes = np.where(of["bytes_per_token"] > 0, of["bytes_per_token"] / 1e6, np.nan)
        axes.plot(of["blocks"], megabytes, **look)
        chosen = of["recommended"] & ~np.isnan(megabytes)
        axes.plot(of["blocks"][chosen], megabytes[chosen], linestyle="", marker="o",
                  markersize=12, markerfacecolor="none", markeredgecolor=look["color"],
                  markeredgewidth=1.6, zorder=4)
    axes.margins(y=0.12)  # room for the rings
    axes.axhline(report.bytes_per_token / 1e6, color=style.GUIDE, linewidth=1, linestyle=":")
    axes.set(yscale="log", ylabel="MB per token",
             xlabel=f"blocks of the cache; context: {report.context_blocks}")
    style.sentence(axes, f"dotted: {report.where}; ringed: recommended"
                   + (", with prefetch" if report.prefetch else ""), color=style.GUIDE)


def _draw_guesses(axes, report: CacheReport):
    for name in report.selectors:
        of = report.layers.where(selector=name)
        look = {**_look(name), "markersize": 5}
        axes.plot(of["layer"], 100 * of["previous_layer_share"],
                  **{**look, "markerfacecolor": look["color"]})
        axes.plot(of["layer"], 100 * of["previous_step_share"],
                  **{**look, "linestyle": "", "markerfacecolor": "none", "alpha": 0.7})
    style.layer_axis(axes, report.layers["layer"].tolist())
    axes.set_ylabel("guessed %")
    style.sentence(axes, "filled: by the layer before; hollow: by the step before", color=style.GUIDE)


@style.styled
def cache_curves(report: CacheReport):
    """Hit rates and traffic of the link against the size of the cache, a line per selector; of
    several layers, the share of each step's blocks that the layer before selected, and the step
    before."""
    rows = 3 if report.several_layers else 2
    figure = style.new_figure(2.4 * rows)
    hits, link, *guesses = figure.subplots(rows, 1)
    _draw_hits(hits, report)
    _draw_link(link, report)
    for axes in (hits, link):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    link.sharex(hits)
    hits.tick_params(labelbottom=False)
    for axes in guesses:
        _draw_guesses(axes, report)
    figure.legend(*hits.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, report.points
