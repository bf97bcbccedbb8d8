# SPDX-License-Identifier: MIT
"""What sparse attention costs: the output of `msa-cost --json`, and benchmark records beside it."""

from __future__ import annotations

from collections import ChainMap

import numpy as np
from matplotlib.ticker import FuncFormatter

from .. import results
from ..results import ResultsError
from ..table import Table
from . import style

PHASES = ("prefill", "decode")
ORDERS = ("q_outer", "union", "kv_outer", "automatic")


def read_cost(path) -> results.Report:
    """`msa-cost --json`, from sizes or from results."""
    cost = results.open(path, "msa-cost")
    if not cost.tables.keys() & {"layer", "selections"}:
        raise ResultsError(f"{path}: has neither costs from sizes (table layer) nor from results "
                           "(table selections)")
    return cost


def is_of_results(cost: results.Report) -> bool:
    return "selections" in cost.tables


def read_record(path) -> results.Report:
    """A record of msa-bench with measurements of stages."""
    record = results.open(path, "msa-bench")
    record["measurements"]
    return record


def timed(record: results.Report) -> list[dict]:
    """What a record of msa-bench measured: the columns of measurements, and those of the case."""
    cases = {case["case"]: case for case in record["cases"].records()}
    return [{**cases[measured["case"]], **measured} for measured in record["measurements"].records()
            if not measured["skipped"]]


def timed_beside(record: results.Report) -> list[dict]:
    """What others took beside it (bench/baselines.py)."""
    if "baselines" not in record.tables:
        return []
    return [baseline for baseline in record["baselines"].records() if not baseline["skipped"]]


def _phase(measured: dict) -> str:
    """Of a measurement of msa-bench, or of a baseline; empty where it is of neither."""
    if measured["case_kind"] == "square":
        return "prefill"
    if measured["case_kind"] == "decode" and measured["case_sequences"] == measured["case_queries"] == 1:
        return "decode"
    return ""


def _in_order(paths) -> list[results.Report]:
    """Records by their start. The Z goes, since 10:01Z would come after 10:01.5Z."""
    return sorted(map(read_record, paths), key=lambda record: record["benchmark"].row()["started"].rstrip("Z"))


def _measured_names(measured: dict) -> list[str]:
    """What a measurement of msa-bench counts towards, as names of read_bench()."""
    phase = _phase(measured)
    if not phase:
        return []
    stage, tokens = measured["stage"], measured["case_keys"]
    if stage == "dense_attention":
        return [f"{phase}/dense/{tokens}"]
    if stage == "index_select":
        pipelines = ["q_outer", "union", "kv_outer"]
    elif stage == "layer":
        pipelines = ["automatic"]
    elif stage == "sparse_attention" and measured["order"] != "automatic":
        pipelines = [measured["order"]]
    else:
        return []
    return [f"{phase}/{pipeline}/{tokens}/{measured['selection']}" for pipeline in pipelines]


def read_bench(*paths) -> dict[str, float]:
    """Median seconds from records of msa-bench, of square prefill and of one decoded token:
    <phase>/dense/<tokens>, and <phase>/<pipeline>/<tokens>/<selection> of MSA. Whole layers are of
    the pipeline automatic; of the other loop orders the stages were timed apart and are added up. Of
    several records, the one that was started last; of several index elements, the one that was
    measured first. ResultsError when no record holds any of these."""
    seconds: dict[str, float] = {}
    for record in _in_order(paths):
        of_record: dict[str, dict[str, float]] = {}
        for measured in timed(record):
            for name in _measured_names(measured):
                stages = of_record.setdefault(name, {})
                stages.setdefault(measured["stage"], measured["median_us"] * 1e-6)
        for name, stages in of_record.items():
            if name.split("/")[1] in ("dense", "automatic") or len(stages) == 2:
                seconds[name] = sum(stages.values())
    if paths and not seconds:
        raise ResultsError(f"{', '.join(map(str, paths))}: no square prefill and no decode of one "
                           "token was measured; one is needed")
    return seconds


def _selection(cost: results.Report) -> str:
    """The selections of a benchmark that are like those of the costs."""
    return "random" if cost.run["options"]["union_blocks"] is None else "structured"


def predicted_over_measured(cost: results.Report, bench: dict[str, float]) -> Table:
    """Roofline over measured milliseconds, of what read_bench() found: on random selections where
    the costs take blocks to be chosen by chance, on structured ones where they were given the union
    of a tile; without records an empty table."""
    selection = _selection(cost)
    rows = []
    columns = cost["layer"].select("phase", "tokens", "pipeline", "kernels_seconds")
    for tokens in cost["contexts"]["tokens"].tolist():
        for phase, _, pipeline, seconds in columns.where(tokens=tokens).rows():
            name = f"{phase}/{pipeline}/{tokens}"
            if pipeline != "dense":
                name += f"/{selection}"
            if name in bench:
                rows.append((phase, pipeline, tokens, seconds * 1e3, bench[name] * 1e3,
                             seconds / bench[name]))
    return Table.from_rows(("phase", "pipeline", "tokens", "predicted_ms", "measured_ms",
                            "predicted_over_measured"), rows)


def _fastest_dense(record: results.Report) -> dict[tuple[str, int], tuple[float, str]]:
    """(microseconds, name) of the fastest dense attention of a record by (phase, tokens), as
    bench/baselines.py has it: its own by cuDNN, and what others' kernels took beside it."""
    found = [(m, "cuDNN" if m["answered_by"].startswith("cuDNN") else "msalab") for m in timed(record)
             if m["stage"] == "dense_attention"]
    found += [(m, m["library"]) for m in timed_beside(record)]
    fastest: dict[tuple[str, int], tuple[float, str]] = {}
    for measured, name in found:
        phase = _phase(measured)
        if phase:
            case = phase, int(measured["case_keys"])
            fastest[case] = min(fastest.get(case, (np.inf, "")), (measured["median_us"], name))
    return fastest


def read_speedups(*paths) -> Table:
    """How much faster a layer was than the fastest dense attention, the baseline, of the same
    record; where that has none of a case, of another record of the same device. Of several
    records, the one that was started last; of several index elements, the one that was measured
    first."""
    records = _in_order(paths)
    devices = [record["benchmark"].row()["device"] for record in records]
    fastest = [_fastest_dense(record) for record in records]
    found = {}
    for record, device, own in zip(records, devices, fastest):
        same_card = [of for other, of in zip(devices, fastest) if other == device]
        beside = ChainMap(own, *reversed(same_card))
        of_record: dict[tuple, tuple] = {}
        for measured in timed(record):
            case = _phase(measured), measured["case_keys"]
            if measured["stage"] == "layer" and case in beside:
                baseline, name = beside[case]
                of_record.setdefault((*case, measured["selection"]), (
                    measured["median_us"] / 1e3, name, baseline / 1e3,
                    baseline / measured["median_us"]))
        found |= of_record
    return Table.from_rows(("phase", "tokens", "selection", "layer_ms", "baseline", "baseline_ms",
                            "ratio"), [(*case, *found[case]) for case in sorted(found)])


def tokens_text(tokens: float, _=None) -> str:
    for unit, suffix in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens / unit:g}{suffix}"
    return f"{tokens:g}"


@style.styled
def predicted_over_measured_bars(cost: results.Report, bench: dict[str, float]):
    """The roofline's time over the measured one, a bar per measured pipeline and context."""
    measured = predicted_over_measured(cost, bench)
    figure = style.new_figure(1.0 + 0.27 * len(measured))
    axes = figure.subplots()
    places, ratios = np.arange(len(measured)), measured["predicted_over_measured"]
    axes.set_xscale("log")
    axes.barh(places, ratios - 1, 0.6, left=1,
              color=[style.PAIR[PHASES.index(phase)] for phase in measured["phase"]])
    for place, ratio in zip(places, ratios):
        side = 1 if ratio > 1 else -1
        axes.annotate(f"{ratio:.2f}", (ratio, place), (4 * side, 0), textcoords="offset points",
                      va="center", ha="left" if side > 0 else "right")
    axes.axvline(1, color=style.REFERENCE, linewidth=1.2)
    axes.set_yticks(places, [f"{phase}, {pipeline}, {tokens_text(tokens)}"
                             for phase, pipeline, tokens, *_ in measured.rows()])
    axes.set_xlim(0.6 * min([1, *ratios]), 1.7 * max([1, *ratios]))
    style.plain_log_ticks(axes.xaxis)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("predicted over measured time")
    return figure, measured


@style.styled
def efficiency_triple(cost: results.Report, speedups: Table | None = None):
    """FLOPs of dense attention over MSA by the paper's count, and the speed-ups of prefill and
    decode against the context (fig:efficiency): dashed what the roofline allows with the kernels'
    accounting, solid what read_speedups() found, both on the same kind of selection: blocks chosen
    by chance, or structured ones where the costs were given the union of a tile."""
    united = cost.run["options"]["union_blocks"]
    allowed_label = "roofline, " + ("blocks chosen by chance" if united is None
                                    else f"unions of {united:g} blocks")
    contexts = cost["contexts"]
    tokens = contexts["tokens"].tolist()
    figure = style.new_figure(6.4)
    panels = figure.subplots(3, 1, sharex=True)
    rows = [("flops", "sizes", *point)
            for point in zip(tokens, contexts["paper_flop_ratio"].tolist())]
    panels[0].plot(tokens, [row[3] for row in rows], color=style.REFERENCE, marker="o")
    panels[0].set_title("FLOPs, dense over MSA", loc="left")
    for panel, phase, colour in zip(panels[1:], PHASES, style.PAIR):
        allowed = contexts[f"{phase}_speedup"].tolist()
        panel.plot(tokens, allowed, color=colour, linestyle="--", label=allowed_label)
        rows += [(phase, "roofline", *point) for point in zip(tokens, allowed)]
        found = (speedups.where(phase=phase, selection=_selection(cost)) if speedups is not None
                 else ())
        points, over = [], "dense"
        if len(found):
            points = list(zip(found["tokens"].tolist(), found["ratio"].tolist()))
            over = "the fastest dense: " + ", ".join(dict.fromkeys(found["baseline"].tolist()))
            panel.plot(*zip(*points), color=colour, marker="s",
                       label=f"measured, {_selection(cost)} blocks")
        rows += [(phase, "measured", *point) for point in points]
        style.sentence(panel, f"{phase} speed-up over {over}")
        panel.legend(loc="best")
    for panel in panels:
        panel.set_ylim(0, None)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    panels[-1].set_xscale("log", base=2)
    ticks = sorted({*tokens, *(n for _, source, n, _ in rows if source == "measured")})
    panels[-1].set_xticks(ticks, [tokens_text(n) for n in ticks])
    panels[-1].minorticks_off()
    panels[-1].set_xlabel(f"context, tokens ({cost['model'].row()['model']}; {chip_of(cost)})")
    return figure, Table.from_rows(("quantity", "source", "tokens", "ratio"), rows)


def chip_of(cost: results.Report) -> str:
    return cost["chip"].row()["chip"]


def _roofline_points(cost: results.Report, tokens: int) -> list[tuple[str, float, float, float]]:
    """(name, FLOPs, bytes, seconds) of what the picture shows."""
    all_stages = cost["stages"].where(tokens=tokens, accounting="kernels")

    def together(name, phase, pipeline, stages=slice(None)):
        of = all_stages.where(phase=phase, pipeline=pipeline)
        return (name, *(sum(of[key][stages].tolist())
                        for key in ("stage_flops", "stage_bytes", "stage_seconds")))

    return [together("dense", "prefill", "dense"),
            together("index select", "prefill", "q_outer", slice(1)),
            *(together(order, "prefill", order, slice(1, None))
              for order in ("q_outer", "union", "kv_outer")),
            together("dense decode", "decode", "dense"),
            together("MSA decode", "decode", "automatic")]


def _short(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.3g}"


@style.styled
def roofline(cost: results.Report):
    """The chip's roof over FLOP/byte, and where the parts of a layer stand under it at the longest
    context: sparse attention in its loop orders, index select, dense attention, decode."""
    element, tokens = cost.run["options"]["element"], cost["contexts"]["tokens"].tolist()[-1]
    peak = cost["peaks"].row(element=element)["flops_per_second"]
    bandwidth = cost["chip"].row()["memory_bytes_per_second"]
    points = _roofline_points(cost, tokens)
    figure = style.new_figure(4.2)
    axes = figure.subplots()
    reach = np.geomspace(2, 2 * max(2e4, *(flops / moved for _, flops, moved, _ in points)), 200)
    axes.plot(reach, np.minimum(peak, reach * bandwidth) / 1e12, color=style.REFERENCE)
    axes.axvline(peak / bandwidth, color=style.GUIDE, linestyle=":", linewidth=1.2)
    axes.annotate(f"ridge {peak / bandwidth:.0f}", (peak / bandwidth, 0.94), (-4, 0),
                  textcoords="offset points", xycoords=("data", "axes fraction"), ha="right", color=style.GUIDE)
    rows = []
    for place, (name, flops, moved, seconds) in enumerate(points):
        intensity, rate = flops / moved, flops / seconds
        axes.plot(intensity, rate / 1e12, linestyle="", markersize=9 - place,  # one may hide one
                  label=f"{name}, {_short(intensity)} FLOP/byte", **style.series_style(place))
        rows.append((name, flops, moved, seconds, intensity, rate))
    axes.set(xscale="log", yscale="log", xlim=(reach[0], reach[-1]),
             xlabel="FLOP per byte of memory traffic", ylabel="TFLOP/s")
    style.sentence(axes, f"{chip_of(cost)}, {element}; {tokens_text(tokens)} tokens")
    axes.legend(loc="lower right")
    return figure, Table.from_rows(("part", "flops", "bytes", "seconds", "flop_per_byte",
                                    "flop_per_second"), rows)


def _selectors(cost: results.Report, layer: int) -> list[str]:
    """Those of a layer, the oracle first."""
    found = cost["selections"].where(layer=layer)["selector"].tolist()
    if not found:
        raise ResultsError(f"{cost.path}: has no costs of layer {layer}")
    return sorted(found, key=lambda name: (name != "oracle", name))


@style.styled
def loop_orders(cost: results.Report, layer: int, tokens: int | None = None):
    """Predicted time of sparse attention in each loop order, and the bytes that it reads, on the blocks that each
    selector really chose. tokens: of the context."""
    found = _selectors(cost, layer)
    useful = [cost["selections"].row(layer=layer, selector=selector)["useful_flops"]
              for selector in found]
    figure = style.new_figure(1.6 + 1.2 * len(found))
    panels = figure.subplots(2, 1, sharey=True)
    rows = []
    for place, name in enumerate(ORDERS):
        orders = [cost["orders"].row(layer=layer, selector=selector, accounting="kernels", order=name)
                  for selector in found]
        where = np.arange(len(found)) + 0.2 * (place - 1.5)
        for axes, values in zip(panels, ([order["order_seconds"] * 1e6 for order in orders],
                                         [order["read_bytes"] / 1e6 for order in orders])):
            axes.barh(where, values, 0.19, color=style.series_style(place)["color"], label=name)
        rows += [(layer, selector, name, flops, order["executed_flops"], order["memory_bytes"],
                  order["read_bytes"], order["order_seconds"])
                 for selector, flops, order in zip(found, useful, orders)]
    panels[0].set_yticks(np.arange(len(found)), found)
    panels[0].invert_yaxis()
    for axes, label in zip(panels, (f"predicted µs, {chip_of(cost)}", "MB that are read, of memory or the cache")):
        axes.grid(False, axis="y")
        axes.set_xlabel(label)
    context = f"{tokens:,}".replace(",", "\u202f") if tokens else ""
    panels[0].set_title(f"layer {layer}" + (f", context of {context} tokens" if tokens else ""), loc="left")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "order", "useful_flops",
                                    "executed_flops", "memory_bytes", "cache_bytes", "seconds"),
                                   rows)


@style.styled
def union_blocks(cost: results.Report, layer: int):
    """Blocks that neighbouring queries select together, against how many neighbours share a tile:
    flat lines let a tile walk the union of its blocks."""
    figure = style.new_figure(3.2)
    axes = figure.subplots()
    rows = []
    for selector in _selectors(cost, layer):
        unions = cost["unions"].where(layer=layer, selector=selector)
        points = list(unions.select("neighbours", "union_blocks").rows())
        axes.plot(*zip(*points), label=selector, **style.selector_style(selector))
        rows += [(layer, selector, *point) for point in points]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(ylim=(0, None), xlabel=f"neighbouring queries in a tile, layer {layer}",
             ylabel="blocks in their union")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "tile_queries", "union_blocks"), rows)
