# SPDX-License-Identifier: MIT
"""What a report shows, in order: a question, how to read the answer, and its pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure

from ..explore.two_runs import options_apart, require_comparable
from ..results import Report
from ..table import Table
from .advice import Advice, cost_front
from .by_layer import mass_by_layer, sink_by_layer
from .cache import CacheReport, cache_curves
from .comparison import (Comparison, comparison_definitions, comparison_numbers,
                         mass_kept_versus_budget, mass_kept_versus_cost)
from . import evaluation
from .difference import DEFINITIONS as OF_DIFFERENCES
from .difference import METRICS, difference_by_layer, differences, selection_difference
from .cost import (chip_of, efficiency_triple, loop_orders, predicted_over_measured,
                   predicted_over_measured_bars, read_speedups, roofline, union_blocks)
from .entropy import entropy_per_layer
from .fit import FitResults
from .heat_map import selection_heat_map
from .lorenz import lorenz_curve
from .mass_kept import mass_kept_curve, recall_by_k
from .needle import needle_depth_map
from .overlap import overlap_map
from .popularity import queries_per_block
from .precision import Precisions, loss_by_bits
from .results import Results
from .reuse import Sharing, loss_by_distance, sharing_patterns
from .sink import sink_bars
from .training import training_curves
from .traffic import bytes_by_context


ORDERS_OF_PAPER = "Q-outer and KV-outer"
# What a section may be of the paper, in the order of the page.
PAPER = ("Figure 5 (fig:vis-selection)", "Figure 6 (fig:attention-sink)", "mass by k", "recall by k", ORDERS_OF_PAPER,
         "Figure 4 (fig:efficiency)")


@dataclass(frozen=True)
class Picture:
    name: str  # of its files
    figure: Figure
    table: Table
    layer: int | None = None  # None: shows all of them
    selector: str | None = None  # likewise


@dataclass(frozen=True)
class Section:
    key: str
    question: str
    reading: tuple[str, ...]
    draw: Callable[[Results, list[int]], Iterator[Picture]]
    table: Table | None = None  # to be read beside the pictures
    table_name: str = ""  # of its file
    definitions: Mapping[str, str] = field(default_factory=dict)  # of its table's columns
    is_overview: bool = False  # of all layers, whichever the page shows by themselves
    suits: Callable[[Results], bool] = lambda results: True  # where not, it is left out
    note: str = ""  # what must be known before the pictures are looked at
    paper: str = ""  # the figure of the paper that it is; the page shows these first, and folds the rest
    is_first: bool = False  # before these, unfolded


def _counted(draw, count):
    """count(results, layers): how many pictures draw() will make of them, for those who wait."""
    draw.count = count
    return draw


def _per_layer(stem: str, draw) -> Callable[[Results, list[int]], Iterator[Picture]]:
    def pictures(results, layers):
        for layer in layers:
            yield Picture(f"{stem}_layer{layer}", *draw(results, layer), layer)

    return _counted(pictures, lambda results, layers: len(layers))


def _per_layer_and_selector(stem: str, draw,
                            without=()) -> Callable[[Results, list[int]], Iterator[Picture]]:
    def chosen(results):
        return [selector for selector in results.selectors if selector not in without]

    def pictures(results, layers):
        for layer in layers:
            for selector in chosen(results):
                figure_and_table = draw(results, selector, layer)
                yield Picture(f"{stem}_{selector}_layer{layer}", *figure_and_table, layer, selector)

    return _counted(pictures, lambda results, layers: len(layers) * len(chosen(results)))


def _per_selector(stem: str, draw) -> Callable[[Results, list[int]], Iterator[Picture]]:
    def pictures(results, layers):
        for selector in results.selectors:
            yield Picture(f"{stem}_{selector}", *draw(results, selector, layers), None, selector)

    return _counted(pictures, lambda results, layers: len(results.selectors))


def expected(section: Section, results: Results, layers) -> int:
    """Pictures that a section is expected to make."""
    return getattr(section.draw, "count", lambda *_: 1)(results, layers)


SECTIONS = (
    Section(
        "layers",
        "Which layers can be sparse?",
        ("The attention that the blocks of this run keep, layer by layer; each line is a selector, "
         "the shade its 95 % interval, the dashed black line the oracle, where it was run.",
         "Where the oracle is low the budget is too small for the layer, whatever selects. Where a "
         "line drops far below it, this selector misses what the layer needs: an attention sink, if "
         "the next picture shows one there. Mass is not the model's loss: msalab evaluate "
         "--sensitivity finds which layers it hangs on."),
        lambda results, layers: iter([Picture("mass_by_layer", *mass_by_layer(results, layers))]),
        is_overview=True,
    ),
    Section(
        "sink-by-layer",
        "Where is an attention sink?",
        ("Mean attention probability on token 0, by layer (across) and query head (down; white lines "
         "part the GQA groups): above of dense attention, below over the blocks that the selector "
         "kept. All these pictures have one scale, from 0 to the largest value of all of them.",
         "Bright cells above and dark ones below are a sink that the selector drops: keep the first "
         "block (--forced-first 1)."),
        _per_selector("sink_by_layer", sink_by_layer),
        is_overview=True,
    ),
    Section(
        "mass-kept",
        "What would a larger budget keep?",
        ("Each line is a selector: how much of the dense attention probability falls on the "
         "blocks it keeps, as the number of kept blocks k grows (each step doubles k).",
         "The dashed black line, where it was run, is the oracle, the best that any choice of blocks can do. The "
         "distance below it is the selector's own loss; the distance from the oracle to 1 is the "
         "price of sparsity itself. The dotted line marks the k of this run, and the bars on it "
         "are 95 % intervals of the bootstrap over blocks of queries. The axis of mass starts "
         "where the lowest line needs it."),
        _per_layer("mass_kept", lambda results, layer: mass_kept_curve(results, [layer])),
        paper="mass by k",
    ),
    Section(
        "recall",
        "How many of the best blocks are found?",
        ("Against the number of kept blocks k: above the share of the oracle's k blocks that the selector chose, too "
         "(block recall), below the share of their probability that lies in those (score recall). The dotted line "
         "marks the k of this run.",
         "Score recall far above block recall is a selector that finds the heavy blocks and misses light ones. Both "
         "count the query's own block, which is always kept, and both reach 1 where all blocks are kept. The scale "
         "starts where the lowest line needs it."),
        _per_layer("recall", recall_by_k),
        suits=lambda results: results.has_recall_by_k and results.selectors != ["oracle"],
        paper="recall by k",
    ),
    Section(
        "selection",
        "Which blocks are selected?",
        ("One panel per GQA group. Down: blocks of queries; across: blocks of keys. Yellow: every "
         "query of the block selects that key block; dark: none does. Grey is the future; rows "
         "that are left empty had no analysed query.",
         "The diagonal is the local block, always kept. A bright left column is an attention "
         "sink, lines parallel to the diagonal are far stripes at a fixed distance. While a query "
         "sees at most k blocks it keeps them all: the bright triangle at the top."),
        _per_layer_and_selector("selection", selection_heat_map),
        paper="Figure 5 (fig:vis-selection)",
    ),
    Section(
        "sink",
        "Is there an attention sink, and does it survive selection?",
        ("Mean attention probability on token 0, per query head. Grey: dense attention; colour: "
         "attention over the selected blocks alone.",
         "Tall grey bars mean a sink. Where the coloured bar is far shorter, the selector dropped "
         "the first block; where it is taller, the sink took the mass of what was left out. All "
         "these pictures have one scale, which reaches 0.05 at least: without a sink the bars are "
         "hardly seen."),
        _per_layer_and_selector(
            "sink", lambda results, selector, layer: sink_bars(results, selector, [layer])),
        paper="Figure 6 (fig:attention-sink)",
    ),
    Section(
        "popularity",
        "How evenly are the blocks used?",
        ("How many (block, group) pairs are selected by so many of the analysed queries; each bin "
         "is twice as wide as the one before, both axes are logarithmic. The dashed outline is "
         "the oracle, where it was run.",
         "Bars far to the right are hot blocks: a kernel that walks blocks (KV-outer) reads them "
         "once for very many queries, and must split them to balance the load. Bars at the left "
         "fill their tiles badly. Gini 0 is perfectly even, 1 is all on one block."),
        _per_layer("queries_per_block", queries_per_block),
    ),
    Section(
        "lorenz",
        "How much of the work do the hottest blocks draw?",
        ("The blocks in order of their popularity, least popular first, against the share of all "
         "queries that they draw. On the dotted diagonal all blocks are alike.",
         "The further a line sags, the more a few blocks carry. Their queries are what a KV-outer "
         "kernel splits into chunks. The Gini number is twice the area between line and "
         "diagonal."),
        _per_layer("lorenz", lorenz_curve),
    ),
    Section(
        "overlap",
        "Do groups and layers choose alike?",
        ("Each cell compares two (layer, group) pairs: the blocks that both chose over the blocks "
         "that either chose, mean over the queries that had a choice. The diagonal is 1.",
         "Bright cells off the diagonal mean that one selection could serve both. Where groups of "
         "one layer differ, a selection per group is worth its cost; where neighbouring layers "
         "agree, one may reuse the other's. The local block alone makes a little of it."),
        _per_selector("overlap", overlap_map),
        is_overview=True,
    ),
    Section(
        "entropy",
        "How widely does attention spread?",
        ("Entropy in nats of dense attention (grey, the bar spans its heads) and of attention over "
         "each selector's blocks, mean over heads, layer by layer. The right scale says how many "
         "keys an even spread of that entropy would cover.",
         "A layer of low entropy needs few blocks. A selector far below dense has cut off a tail "
         "that the layer used."),
        lambda results, layers: iter(
            [Picture("entropy", *entropy_per_layer(results, layers))]),
        is_overview=True,
    ),
    Section(
        "needle",
        "Is what matters found wherever it lies?",
        ("Of the far blocks that the oracle wanted, neither the first one nor the query's newest two, "
         "the share that the selector found: down by how deep they lie in the context (0 % is its beginning), across by how "
         "much context the query saw.",
         "Yellow everywhere is a selector that finds needles at any depth. A dark band in the "
         "middle is a selector that knows only the beginning and the end. White: nothing was "
         "wanted there."),
        _per_layer_and_selector("needle", needle_depth_map, without=("oracle",)),
        suits=lambda results: "oracle" in results.selectors and len(results.selectors) > 1,
    ),
)


def selections_section(whole: Results, results: Results) -> Section:
    """The heat maps, drawn from another run over more of the queries."""
    section = next(section for section in SECTIONS if section.key == "selection")
    layer = results.layers[0]
    drawn, counted = (len(run.queries(layer).token) for run in (whole, results))
    return replace(
        section,
        reading=(*section.reading, f"These maps show {drawn} queries; the numbers of this page "
                                   f"are of {counted} of them."),
        draw=lambda _, layers: section.draw(whole, [n for n in layers if n in whole.layers]))


def difference_section(a: Results, b: Results, activations=None, layers=None) -> Section:
    """Of two comparable runs. layers: of the table; default: all that both have."""
    both = [layer for layer in require_comparable(a, b) if layer in (layers or a.layers)]
    table = differences(a, b, both, activations)

    def pictures(_, drawn):
        for metric in METRICS:
            if metric in table["metric"].tolist():
                yield Picture(f"difference_{metric}", *difference_by_layer(table, metric))
        for layer in drawn:
            for selector in b.selectors if layer in both else ():
                if selector in a.selectors:
                    yield Picture(f"difference_{selector}_layer{layer}", *selection_difference(a, b, selector, layer),
                                  layer, selector)

    apart = options_apart(a, b)
    return Section(
        "differences",
        "What does the second run keep that the first does not?",
        (f"A is {a.path}, B is {b.path}; {f'what differs: {apart}' if apart else 'their options are the same'}. "
         "Above 0, B keeps or finds more. The bars are 95 % intervals, of blocks of queries that are drawn with their "
         "differences.",
         "The maps show which blocks are chosen more in B (blue) or less (vermilion), by query block down and key block "
         "across."),
        pictures, table, "differences", OF_DIFFERENCES, is_first=True)


def comparison_section(comparison: Comparison) -> Section:
    """Of the summary of msa-compare."""
    counted = " or ".join(str(rows) for rows in sorted(set(comparison["rows_counted"].tolist())))

    def pictures(_, layers):
        for layer in sorted(set(comparison["layer"].tolist()) & set(layers)):
            yield Picture(f"budget_layer{layer}", *mass_kept_versus_budget(comparison, layer),
                          layer)
            for cost in ("flops", "bytes"):
                yield Picture(f"pareto_{cost}_layer{layer}",
                              *mass_kept_versus_cost(comparison, layer, cost), layer)

    return Section(
        "comparison",
        "Which selector keeps most at an equal budget?",
        ("First: mass kept against the tokens that a query reads, at each budget; the shade around a "
         "coloured line is the 95 % interval of the bootstrap. Every line is named where the "
         "pointer rests, the grey ones, too. A hollow marker is a "
         "selector that reads more tokens than its budget, as snapkv does in the decode phase. "
         "Then the same mass against all FLOPs, and against all bytes read, per query, scores and "
         "attention together: up and to the left is better, and no point lies above the broad "
         "grey line, the Pareto front.",
         "Small gaps in mass may hide large losses: on SmolLM2-135M selectors that keep 0.05 less than "
         "the oracle cost the model 3.5 times as much (docs/smollm2.md). msalab evaluate measures the loss.",
         "A selector may keep more than the oracle's line only where it spends its budget "
         "unevenly over the queries, as top-p does.",
         f"Averages over {counted} queries in the {comparison['phase'][0]} phase, all of which see "
         "more keys than the largest budget."),
        pictures, comparison_numbers(comparison), "comparison",
        comparison_definitions(comparison))


def evaluation_section(answer: Report) -> Section:
    """Of the answer of msalab evaluate."""
    of = answer["evaluated"].row()

    def drawn(*_):
        for name, draw in evaluation.pictures(answer):
            yield Picture(f"evaluation_{name}", *draw(answer))

    counted = (f"{of['foretold_tokens']} tokens of {of['text_sequences']} sequences from "
               f"{of['documents']} documents, each under every setting; the shaded intervals "
               f"are of a bootstrap over {of['resampled']}." if of["resampled"] else "")
    return Section(
        "evaluation",
        "What does the model itself lose?",
        (f"The model {of['model']} with MSA in place of its attention, so that the error of a "
         "layer is carried through all that follow. 0 is the model's own attention. " + counted,
         "Behind a layer, the error is that of its hidden states, relative to their norm. Right "
         "answers are those of which every token is the likeliest one; the grey line is the "
         "model's own attention."),
        drawn, evaluation.numbers(answer), "evaluation", answer.definitions)


def advice_section(advice: Advice) -> Section:
    """Of the summary of msa-advise."""
    found = ("The ring marks the setting recommended" if advice.recommended else
             "No setting reaches the target; the ring marks the nearest")
    dense, layers = len(advice.plan[2]), len(set(advice.layers["layer"].tolist()))
    arrow = (f" The arrow leads to it from the same setting on all layers: with {dense} of {layers} "
             "layers dense it takes more time, and its mass is of the sparse "
             f"layer{'s' * (layers - dense > 1)} alone, where all other points are of all layers."
             if dense else "")
    return Section(
        "advice",
        "Which setting should I use?",
        (f"A point is a setting on all layers together: time by the roofline, {advice.where}, "
         "against the attention mass that it keeps. Up and to the left is better. The broad grey "
         "line is the Pareto front of what can be had, with 95 % intervals; the oracle needs the "
         f"attention that it is to spare, and only bounds it. {found} for the target "
         f"\"{advice.target}\", which every layer that is sparse must reach by itself.{arrow}",
         "The table has each layer's own cheapest setting that reaches the target; a layer without "
         "one should stay dense."),
        lambda *_: iter([Picture("advice", *cost_front(advice))]), advice.layers, "advice_layers",
        advice.definitions)


def cache_section(report: CacheReport) -> Section:
    """Of the summary of msa-cache."""
    counted = ("; what is prefetched in vain is counted" if report.prefetch else "")
    guesses = ("Last: how many of a step's blocks could be fetched ahead, because the layer before "
               "selected them, too. The hollow marks are those of the step before: any cache that "
               "holds a step has them already. " if report.several_layers else "")
    return Section(
        "cache",
        "What would a KV cache off the GPU see?",
        ("Every query is a decode step, and each layer and group has a cache of so many blocks on "
         "the GPU. First: the share of the selected blocks that it holds where the least recently "
         "used one leaves first. The shade reaches up to Belady's optimum, which knows the future: "
         "all that a better policy could gain. Then what crosses the link per token of the whole "
         f"model{counted}; the dotted line is all that the link carries ({report.where}), and a "
         "ring in a selector's colour marks the smallest cache below it.",
         f"{guesses}The table has each layer's first uses and distances of reuse, and the share "
         "of a step's blocks that the step before had selected."),
        lambda *_: iter([Picture("cache", *cache_curves(report))]), report.layers, "cache_layers",
        report.definitions)


def sharing_section(sharing: Sharing) -> Section:
    """Of the summary of msa-reuse."""
    def drawn(*_):
        yield Picture("reuse_distance", *loss_by_distance(sharing))
        yield Picture("reuse_patterns", *sharing_patterns(sharing))

    reached = ("The rings mark the fewest layers that compute ids with which every layer, or the "
               "mean over the layers, reaches the target" if sharing.chosen else
               "No pattern reaches the target")
    return Section(
        "reuse",
        "Which layers may share a selection?",
        (f"Mass lost is what a layer keeps with its own ids, here of {sharing.selector}, less what "
         "it keeps with those of an earlier layer. A grey point is a pair of layers, "
         "named where the pointer rests; the line is the mean of those at one distance, with "
         "95 % intervals.",
         "In the second picture, a point is a pattern: some layers compute ids, and each of the "
         "others takes those of the last one before it. Down and to the left is better. The line "
         "joins the patterns that lose least with so many layers that compute ids, found exactly; "
         "the other marks are "
         f"patterns that were asked for. {reached}: \"{sharing.target}\"."
         + (" The dotted line is the target." if sharing.target.startswith("lose") else "")),
        drawn, sharing.patterns, "reuse_all_patterns", sharing.definitions)


def precision_section(precisions: Precisions) -> Section:
    """Of the summary of msa-precision."""
    return Section(
        "precision",
        "Which number format may the index operands and the KV cache have?",
        ("A point is a number format with its scales, mean over the layers, with 95 % intervals: "
         "down and to the left is better. It is named where the pointer rests. "
         "Above, what the Index Branch loses with its operands in the format: of the attention mass "
         "that full precision keeps or of its recall of the oracle's blocks, whichever is more. "
         "Below, the relative error of attention with K and V in the format, dense or sparse, "
         "whichever is more. Points at 0.00001 lose that or less: some nothing, some gain."
         + (" Between them, what the Index Branch loses with the weights of its projections in the "
            "format; hollow points have the product rounded to it as well."
            if "index projections" in set(precisions.drawn["part"]) else ""),
         "Hollow points of operands and of the cache have their channels rotated by a Hadamard "
         "matrix before they are stored. "
         "The dotted lines are the targets, and a ring marks the format with the fewest bits whose "
         "interval reaches it."),
        lambda *_: iter([Picture("precision", *loss_by_bits(precisions))]), precisions.rows,
        "precision_all", precisions.definitions)


def efficiency_section(cost: Report, bench: dict[str, float], records: Sequence = ()) -> Section:
    """Of a cost file from sizes, with what the benchmark records measured beside it."""
    measured = predicted_over_measured(cost, bench)
    speedups = read_speedups(*records)

    def pictures(*_):
        yield Picture("efficiency", *efficiency_triple(cost, speedups))
        if len(measured):
            yield Picture("predicted_over_measured", *predicted_over_measured_bars(cost, bench))
        yield Picture("roofline", *roofline(cost))

    found = (f"Solid lines were measured ({', '.join(Path(path).name for path in records)}), "
             "each beside the fastest dense attention of the same card and record, which the title "
             "names. They and the dashed roofline are of the same selections: blocks chosen by "
             "chance, or where msa-cost was given --union-blocks, structured ones, in which "
             "neighbouring queries share most of their blocks. A measured ratio may lie above that of "
             "the roofline, where dense attention is further from its own."
             if len(measured) else "Nothing has been measured for these sizes yet.")
    bars = (("The bars and the table hold prediction against measurement: the roofline's time over "
             "the measured one, on random selections where blocks are taken to be chosen by chance "
             "and on structured ones where the union of a tile was given. Bars to the left of 1 say "
             "what a kernel leaves unused.",) if len(measured) else ())
    return Section(
        "efficiency",
        "What does it save at length?",
        (f"For {cost['model'].row()['model']}: FLOPs of dense attention over those of MSA, and how much faster "
         f"prefill and decode could run on {chip_of(cost)} if every stage ran at the "
         f"roofline. {found}",
         *bars,
         "The roofline picture says why: q_outer, one query at a time, reads so many keys per FLOP "
         "that memory is its limit, kv_outer less so; a tile that walks the union of its blocks, "
         "index select and dense attention are bound by arithmetic. "
         "Decode reads what it needs once and is bound by memory in either case."),
        pictures, measured if len(measured) else None, "predicted_over_measured", paper="Figure 4 (fig:efficiency)")


def traffic_section(cost: Report) -> Section:
    """Of a cost file from sizes."""
    longest = cost["contexts"].row(tokens=max(cost["contexts"]["tokens"].tolist()))
    return Section(
        "traffic",
        "How many bytes do Q-outer and KV-outer move?",
        (f"Sparse attention in prefill, one layer of {cost['model'].row()['model']}, at each context, by the paper's "
         "formulas: Q-outer, where each query reads its own blocks again, beside KV-outer, where each block gathers its "
         "queries once and a second pass combines what they made. The scale is logarithmic.",
         f"The paper's intensity is {longest['paper_q_outer_intensity']:.1f} FLOP/byte of Q-outer and "
         f"{longest['paper_kv_outer_intensity']:.1f} of KV-outer. Our kernels move other numbers of bytes: tiles share what "
         "neighbours chose, and caches serve a part (the section on loop orders, and fig:efficiency)."),
        lambda *_: iter([Picture("traffic", *bytes_by_context(cost))]), paper=ORDERS_OF_PAPER)


def orders_section(cost: Report) -> Section:
    """Of a cost file from measured selections."""
    costed = set(cost["selections"]["layer"].tolist())
    cache_is_known = not math.isnan(cost["chip"].row()["chip_cache_bytes_per_second"])

    def pictures(results, layers):
        for layer in sorted(costed & set(layers)):
            yield Picture(f"loop_orders_layer{layer}", *loop_orders(cost, layer, results.sizes(layer).tokens), layer)
            yield Picture(f"unions_layer{layer}", *union_blocks(cost, layer), layer)

    return Section(
        "loop-orders",
        "In which order should a kernel walk?",
        ("Predicted time of sparse attention on the blocks really chosen, and the bytes that it reads, for "
         f"{chip_of(cost)}, at the context that the title states, where most reads hit the cache if it is short: "
         "q_outer, each query walks its blocks, one at a time; union, a "
         "tile of neighbouring queries walks all their blocks; kv_outer, each block gathers its "
         "queries; automatic, union for the blocks that enough of a tile's queries share, kv_outer "
         "for the rest, and never q_outer, even where that bar is shorter.",
         "The second picture says why: where neighbours choose alike, the union of their blocks "
         "grows slowly and a tile shares what it reads. Random choices have no such neighbours."
         + ("" if cache_is_known else
            " The cache's bandwidth is not known for this chip; q_outer lives on it, so its bar "
            "is a lower bound.")),
        pictures, paper=ORDERS_OF_PAPER)


def training_section(fit: FitResults) -> Section:
    """Beside the analysis of a fitted indexer: how the fit went."""
    def pictures(_, layers):
        for layer in layers:
            if layer in fit.layers:
                yield Picture(f"training_layer{layer}", *training_curves(fit, layer), layer)

    closed_form = "" if fit.start in ("", "normal") else " Step 0 is the closed-form start."
    splits = "; ".join(sorted({fit.curves(layer).split for layer in fit.layers}))
    return Section(
        "training",
        "How did the Index Branch learn?",
        ("Above: the KL divergence of the index distribution from the attention it imitates. "
         "Coloured: the loss of each training step, solid in warm-up, where it runs over all "
         "visible keys, dashed afterwards, over the selected blocks alone; the two do not compare. "
         "Black: held-out queries, over all visible keys; black and dotted, over the selected "
         "blocks alone, which is what the dashed steps train.",
         "Below, on the held-out queries: how much of the oracle's blocks and mass the Index "
         f"Branch finds, against the dashed oracle. The bars stand at the weights that are kept, "
         "those of the evaluation that keeps most mass, and are 95 % intervals of the bootstrap over "
         f"blocks of queries.{closed_form} A black line that rises while the "
         "coloured one falls is overfitting.",
         f"Split: {splits}."),
        pictures)
