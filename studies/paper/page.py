# SPDX-License-Identifier: MIT
"""The tables of docs/paper.md, each between marks that name it."""

from __future__ import annotations

import re

from msalab.results import ResultsError
from ..pilot import registered
from . import published
from .measured import Numbers, arm_means
from .rows import DEFINITIONS, RESULTS, SECONDS, VERDICTS, Row, numbered

# Arms of the pilot, of block A and, later, of block B2, which keeps four times as many blocks: 8, 4 and 2 for each query,
# and 32, 16 and 8.
BLOCKS = {"A": ("blocks-32", "msa", "blocks-128"), "B2": ("blocks-32-then-8k", "msa-then-8k", "blocks-128-then-8k")}
FORCED = {"A": ("msa", "forced-both", "forced-first", "forced-local"),
          "B2": ("msa-then-8k", "forced-both-then-8k", "forced-first-then-8k")}
VALUE = {"A": ("value-head", "msa")}
KEPT = {"A": "256 of 2048 bytes kept", "B2": "1024 of 8192 bytes kept"}
STORED = {"conversion_curves": "conversion", "conversion_dynamics": "conversion", "pilot_forest": "pilot"}  # study
_MARKED = re.compile(r"(<!-- table ([\w-]+) from the records -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(rows) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", line) for line in lines) + "\n"


def check(row: Row, numbers: Numbers) -> None:
    """A verdict is written for what the records say: ResultsError where they say something else now."""
    for says, verdict in row.rests:
        found = numbers.judged[says][1]
        if found != verdict:
            raise ResultsError(f'docs/paper.md: the row of {row.label} was written when the claim "{says}" was judged '
                               f'"{verdict}"; it is "{found}" now: write its verdict anew (studies/paper/rows.py)')


def ours(row: Row, numbers: Numbers) -> str:
    check(row, numbers)
    return row.ours.format_map(numbers.texts)


def results(numbers: Numbers):
    rows = [("of the paper", "it says", "msalab measures", "verdict, and where", "command", "takes", "pictures")]
    rows += [(numbered(row.label), row.says, ours(row, numbers), f"**{row.verdict}**: {row.setting}", row.command,
              SECONDS[row.command], ", ".join(map(_linked, row.pictures.split()))) for row in RESULTS]
    return rows


def _linked(name: str) -> str:
    return f"[{name}](../studies/{STORED[name]}/images/{name}.png)" if name in STORED else f"`{name}`"


def counts(_):
    """How often each verdict stands, and where."""
    return [("verdict", "of the paper"),
            *((f"{len(rows)} {verdict}", "; ".join(row.short for row in rows)) for verdict, rows in judged().items())]


def judged() -> dict[str, list[Row]]:
    """verdict -> the rows that have it."""
    of = {verdict: [row for row in RESULTS if row.verdict == verdict] for verdict in VERDICTS}
    return {verdict: rows for verdict, rows in of.items() if rows}


def headline(numbers: Numbers):
    """The three numbers of the abstract, and how many rows have which verdict."""
    of = numbers.texts
    return [("", "the paper, H800", "msalab, H100"),
            ("FLOPs at 1M tokens, dense over MSA", f"{published.FLOP_RATIO}x", of["flops 1M"]),
            ("prefill, likewise", f"{published.PREFILL}x",
             f"{of['prefill 1M structured']} structured, {of['prefill 1M fitted']} fitted, {of['prefill 1M random']} "
             f"random, over {of['prefill 1M baseline']}"),
            ("decoding, likewise", f"{published.DECODE}x",
             f"{of['decode 1M random']} for one sequence, {of['decode of 8']} for eight, over "
             f"{of['decode 1M baseline']}"),
            (f"its {len(RESULTS)} figures, tables and claims", "",
             ", ".join(f"{len(rows)} {verdict}" for verdict, rows in judged().items()))]


def definitions(_):
    rows = [("of the paper", "what it defines", "here", "its tests")]
    rows += [(numbered(one.label), one.says, f"[{one.file}](../{one.file})", f"`./msalab test -R {one.test}`")
             for one in DEFINITIONS]
    return rows


def top_k(numbers: Numbers):
    rows = [("rows", "blocks", "k", "the paper, H800, us", "torch", "TileLang", "msalab, H100, us", "torch",
             "paper over torch", "msalab over torch")]
    for tokens, blocks, k, torch, tilelang, own in published.TOP_K:
        us, beside = numbers.top_k[tokens, blocks, k]
        rows.append((f"{tokens // 1024}K", str(blocks), str(k), str(own), str(torch), str(tilelang), f"{us:.0f}",
                     f"{beside:.0f}", f"{torch / own:.1f}x", f"{beside / us:.1f}x"))
    return rows


def _ablation(heads, paper, arms_of, numbers):
    """The paper's table, and below it the same of the pilot, of those blocks of which all arms have run."""
    rows = [("", *heads)]
    rows += [(f"*{name}*" if not values else f"paper: {name}", *values, *[""] * (len(heads) - len(values)))
             for name, *values in paper]
    for block, arms in arms_of.items():
        seeds, means = arm_means(registered.of_block(numbers.records, block), arms)
        if not seeds:
            continue
        rows.append((f"*{KEPT[block]}, {seeds} seeds*", *[""] * len(heads)))
        for name, measure, scale, digits in (("bits per byte", "bits_per_byte", 1, 4),
                                             ("recall, % right", "exact_match recall", 100, 1)):
            values = [f"{scale * mean[measure]:.{digits}f}" for mean in means]
            rows.append((f"pilot: {name}", *values, *[""] * (len(heads) - len(values))))
    return rows


def block_size(numbers: Numbers):
    return _ablation(("blocks of 32", "64", "128"), published.BLOCK_SIZE, BLOCKS, numbers)


def forced(numbers: Numbers):
    return _ablation(("nothing forced", "both forced", "first block", "a local block"), published.FORCED, FORCED, numbers)


def value_head(numbers: Numbers):
    return _ablation(("value head", "no value head"), published.VALUE_HEAD, VALUE, numbers)


def main_results(numbers: Numbers):
    of = numbers.texts
    rows = [("", "full attention", "MSA from scratch", "MSA converted")]
    rows += [(f"paper: {name}", *values) for name, *values in published.MAIN]
    rows += [(f"SmolLM2-135M: excess of bits per token, {kept} of 8192 tokens kept", "", "", of[f"even msa-{kept} excess"])
             for kept in (2048, 1024, 512)]
    rows += [(f"SmolLM2-135M: right answers of 100, {kept} kept", "", "", of[f"even msa-{kept} answers"])
             for kept in (2048, 1024, 512)]
    rows.append(("14M byte models: bits per byte beside full attention", "", of["msa-full bits_per_byte"], ""))
    return rows


TABLES = {"headline": headline, "counts": counts, "results": results, "definitions": definitions, "top-k": top_k,
          "main": main_results, "block-size": block_size, "forced": forced, "value-head": value_head}


def with_tables(text: str, numbers: Numbers) -> str:
    """A page with these tables as the records have them."""
    return _MARKED.sub(lambda at: at[1] + markdown(TABLES[at[2]](numbers)) + at[3], text)
