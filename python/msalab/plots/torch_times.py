# SPDX-License-Identifier: MIT
"""Times of msalab.torch beside other attentions of PyTorch: the record of `bench/time_torch.py`."""

from __future__ import annotations

import math

import numpy as np

from .. import results
from ..table import Table
from . import style

PASSES = ("forward_ms", "step_ms")


def read_torch_times(path) -> results.Report:
    """The record; ResultsError where the file is none."""
    return results.open(path, "bench/time_torch.py")


def _given(row: dict, name: str) -> bool:
    """Whether the row has it: what a record does not have is NaN or empty."""
    value = row.get(name)
    return value is not None and value != "" and value == value


def rival_table(rows) -> Table:
    """Of the records() of a table rivals, or of rows as bench/torch_rivals.py measures them: a row for each attention that is installed: what it attends to, milliseconds of the forward pass
    and of forward and backward pass (NaN where it could not), and how far its output is off that of
    msalab (NaN where it attends to other keys)."""
    here = [row for row in rows if any(_given(row, name) for name in PASSES)]
    return Table.from_rows(("name", "attends_to", *PASSES, "off"),
                           ([row["contender"], row["attends_to"],
                             *(row.get(name, math.nan) for name in (*PASSES, "off"))]
                            for row in here))


def absent_table(rows) -> Table:
    """The others, and why they, or a pass of them, were not timed."""
    return Table.from_rows(("name", "reason"), ([row["contender"], row["skipped"]] for row in rows
                                                if _given(row, "skipped")))


def layer_table(record: results.Report) -> Table:
    """A layer's stages in msalab.torch, in msa-bench of the same build where the record has it, and how
    many times as long the first take; milliseconds, NaN where msa-bench has no such stage."""
    return Table.from_rows(("stage", "torch_ms", "bench_ms", "ratio"),
                           ([row["stage"], row["torch_ms"], row["bench_ms"], row["torch_ms"] / row["bench_ms"]]
                            for row in record["layer"].records() if _given(row, "torch_ms")))


def host_table(record: results.Report) -> Table:
    """Microseconds that a call keeps the host, of them in the compiled part, and the difference, which
    Python and PyTorch add; NaN where the compiled part alone was not timed."""
    return Table.from_rows(("call", "us", "compiled_us", "added_us"),
                           ([row["call"], row["host_us"], row["compiled_us"], row["host_us"] - row["compiled_us"]]
                            for row in record["host"].records()))


def rival_title(run: dict) -> str:
    """Device and size of rivals, of the `run` of a record."""
    case = run["rival_case"]
    return (f"{run['device']}, PyTorch {run['torch']}: {case['tokens']} tokens, "
            f"{case['query_heads']}/{case['kv_heads']} heads of {case['head_dim']}, "
            f"Bk {case['block_size']}, k {case['top_k']}, {case['dtype']}")


@style.styled
def rival_bars(rows, where: str):
    """Milliseconds of each attention, forward (light) and forward and backward (dark); blue attends to
    the blocks that MSA selects, grey to all keys. `where`: device and size, for the title."""
    table = rival_table(rows)
    names = table["name"].tolist()
    figure = style.new_figure(1.2 + 0.55 * len(names))
    axes = figure.subplots()
    places = np.arange(len(names))
    selected = table["attends_to"] == "the selected blocks"
    colours = [style.PAIR[0] if chosen else style.DENSE for chosen in selected]
    timed = np.concatenate([table[name] for name in PASSES])
    for shift, name, alpha in ((-0.19, "forward_ms", 0.45), (0.19, "step_ms", 1.0)):
        axes.barh(places + shift, np.nan_to_num(table[name]), 0.36, color=colours, alpha=alpha)
        for place, ms in zip(places, table[name]):
            if not math.isnan(ms):
                axes.text(ms * 1.05, place + shift, f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", va="center")
    axes.set(xscale="log", xlabel="ms, forward; forward and backward",
             yticks=places, yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.set_xlim(np.nanmin(timed) / 3, np.nanmax(timed) * 3)
    axes.grid(axis="y", visible=False)
    figure.suptitle("\n".join(where.split(": ", 1)), x=0.01, ha="left")
    return figure, table
