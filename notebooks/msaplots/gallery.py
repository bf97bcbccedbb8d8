# SPDX-License-Identifier: MIT
"""What a report shows, in order: a question, how to read the answer, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from .fit import FitResults
from .heat_map import selection_heat_map
from .mass_kept import mass_kept_curve
from .popularity import queries_per_block
from .results import Results
from .sink import sink_bars
from .table import Table
from .training import training_curves


@dataclass(frozen=True)
class Picture:
    name: str  # of its files
    figure: Figure
    table: Table
    layer: int
    selector: str | None = None  # None: shows all of them


@dataclass(frozen=True)
class Section:
    key: str
    question: str
    reading: tuple[str, ...]
    draw: Callable[[Results, list[int]], Iterator[Picture]]


def _per_layer(stem: str, draw) -> Callable[[Results, list[int]], Iterator[Picture]]:
    def pictures(results, layers):
        for layer in layers:
            yield Picture(f"{stem}_layer{layer}", *draw(results, layer), layer)

    return pictures


def _per_layer_and_selector(stem: str, draw) -> Callable[[Results, list[int]], Iterator[Picture]]:
    def pictures(results, layers):
        for layer in layers:
            for selector in results.selectors:
                figure_and_table = draw(results, selector, layer)
                yield Picture(f"{stem}_{selector}_layer{layer}", *figure_and_table, layer, selector)

    return pictures


def training_section(fit: FitResults) -> Section:
    """Beside the analysis of a fitted indexer: how the fit went."""
    def pictures(_, layers):
        for layer in layers:
            if layer in fit.layers:
                yield Picture(f"training_layer{layer}", *training_curves(fit, layer), layer)

    splits = "; ".join(sorted({fit.curves(layer).split for layer in fit.layers}))
    return Section(
        "training",
        "How did the Index Branch learn?",
        ("Above: the KL divergence of the index distribution from the attention it imitates. "
         "Coloured: the loss of each training step, solid in warm-up, where it runs over all "
         "visible keys, dashed afterwards, over the selected blocks alone; the two do not compare. "
         "Black: held-out queries, always over all visible keys.",
         "Below, on the held-out queries: how much of the oracle's blocks and mass the Index "
         "Branch finds, against the dashed oracle. Step 0 is the closed-form start. A black line "
         "that rises while the coloured one falls is overfitting.",
         f"Split: {splits}."),
        pictures)


SECTIONS = (
    Section(
        "mass-kept",
        "What would a larger budget keep?",
        ("Each line is a selector: how much of the dense attention probability falls on the "
         "blocks it keeps, as the number of kept blocks k grows (each step doubles k).",
         "The dashed black line is the oracle, the best that any choice of blocks can do. The "
         "distance below it is the selector's own loss; the distance from the oracle to 1 is the "
         "price of sparsity itself. The dotted line marks the k of this run. The axis of mass "
         "starts where the lowest line needs it."),
        _per_layer("mass_kept", lambda results, layer: mass_kept_curve(results, [layer])),
    ),
    Section(
        "selection",
        "Which blocks are selected?",
        ("One panel per GQA group. Down: blocks of queries; across: blocks of keys. Yellow: every "
         "query of the block selects that key block; dark: none does. Grey is the future; white "
         "rows had no analysed query.",
         "The diagonal is the local block, always kept. A bright left column is an attention "
         "sink, lines parallel to the diagonal are far stripes at a fixed distance. While a query "
         "sees at most k blocks it keeps them all: the bright triangle at the top."),
        _per_layer_and_selector("selection", selection_heat_map),
    ),
    Section(
        "sink",
        "Is there an attention sink, and does it survive selection?",
        ("Mean attention probability on token 0, per query head. Grey: dense attention; colour: "
         "attention over the selected blocks alone.",
         "Tall grey bars mean a sink. Where the coloured bar is far shorter, the selector dropped "
         "the first block; where it is taller, the sink took the mass of what was left out. Mind "
         "the scale: without a sink the bars are tiny."),
        _per_layer_and_selector(
            "sink", lambda results, selector, layer: sink_bars(results, selector, [layer])),
    ),
    Section(
        "popularity",
        "How evenly are the blocks used?",
        ("How many (block, group) pairs are selected by so many of the analysed queries; each bin "
         "is twice as wide as the one before, both axes are logarithmic. The dashed outline is "
         "the oracle.",
         "Bars far to the right are hot blocks: a kernel that walks blocks (KV-outer) reads them "
         "once for very many queries, and must split them to balance the load. Bars at the left "
         "fill their tiles badly. Gini 0 is perfectly even, 1 is all on one block."),
        _per_layer("queries_per_block", queries_per_block),
    ),
)
