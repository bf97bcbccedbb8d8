# SPDX-License-Identifier: MIT
"""Our numbers, from the records in data/ and studies/, their pages and msa-cost, as text for the rows of the page."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msalab
import numpy as np
from msalab.plots.cost import efficiency_triple, read_bench, read_cost, read_record, read_speedups, timed, timed_beside
from msalab.results import Report, ResultsError, blamed

from ..pilot import answers, figures, registered
from ..pilot.runs import Records, read_records

MUCH = 0.2  # of a head's attention, by the prediction of block G
TOKENS = {1 << 13: "8K", 1 << 15: "32K", 1 << 17: "128K", 1 << 19: "512K", 1 << 20: "1M"}


@dataclass(frozen=True)
class Tree:
    """A clone of the repository, and the programs that were built in it."""

    root: Path
    programs: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def studies(self) -> Path:
        return self.root / "studies"

    def program(self, name: str) -> Path:
        path = self.programs / name
        if not path.exists():
            raise ResultsError(f"{path}: no such program; ./msalab build makes it")
        return path


def bench_records(tree: Tree) -> list[Path]:
    return sorted((tree.data / "bench").glob("cuda-h100*.json"))


def paper_cost(tree: Tree, out: Path) -> Report:
    """What msa-cost says of the paper's sizes on its GPU; written to `out`."""
    done = subprocess.run([tree.program("msa-cost"), "--preset", "paper", "--hardware", "h800", "--json"],
                          check=True, capture_output=True, text=True)
    out.write_text(done.stdout, encoding="utf-8")
    return read_cost(out)


def cost_numbers(cost: Report) -> dict[str, str]:
    found = {}
    for context in cost["contexts"].records():
        tokens = TOKENS[context["tokens"]]
        found[f"flops {tokens}"] = f"{context['paper_flop_ratio']:.2f}x"
        for order in ("q_outer", "kv_outer"):
            stages = cost["stages"].where(tokens=context["tokens"], accounting="paper", phase="prefill",
                                          pipeline=order).records()
            moved = sum(one["stage_bytes"] for one in stages if one["stage"] in ("sparse attention", "combine"))
            found[f"{order} bytes {tokens}"] = f"{moved / 1e9:.0f} GB"
            found[f"{order} intensity"] = f"{context[f'paper_{order}_intensity']:.1f}"
    return found


def speed_numbers(tree: Tree) -> dict[str, str]:
    table, found = read_speedups(*bench_records(tree)), {}
    for row in table.records():
        tokens = TOKENS[row["tokens"]]
        name = f"{row['phase']} {tokens} {row['selection']}"
        found[name] = f"{row['ratio']:.1f}x"
        found[f"{row['phase']} {tokens} baseline"] = row["baseline"]
    for name, seconds in read_bench(*bench_records(tree)).items():
        phase, order, tokens, *selection = name.split("/")
        if (phase, TOKENS[int(tokens)]) == ("prefill", "128K") and order in ("union", "kv_outer"):
            found[f"{order} {selection[0]}"] = f"{1e3 * seconds:.1f} ms"
    found["decode of 8"] = f"{eight_sequences(tree):.1f}x"
    return found


def eight_sequences(tree: Tree) -> float:
    """Of a layer, one token of each over 1M, beside the fastest dense attention of the same record."""
    record = read_record(tree.data / "bench/cuda-h100-decode-1m-batch8.json")
    measured = timed(record)

    def fastest(of):
        return min(m["median_us"] for m in of if m["case_kind"] == "decode" and
                   m["case_sequences"] == m["case_queries"] == 8)

    layers = [m for m in measured if m["stage"] == "layer" and m["selection"] == "random" and m["index_form"] == "bf16"]
    dense = [m for m in measured if m["stage"] == "dense_attention"]
    return fastest([*dense, *timed_beside(record)]) / fastest(layers)


def top_k_times(tree: Tree) -> dict[tuple[int, int, int], tuple[float, float]]:
    """(rows, blocks, k) -> microseconds of select_blocks and of torch.topk on the same GPU."""
    return top_k_of(read_record(tree.data / "bench/cuda-h100-top-k.json"))


def top_k_of(record: Report) -> dict[tuple[int, int, int], tuple[float, float]]:
    def times(measured):
        return {(m["case_queries"], m["case_blocks"], m["top_k"]): m["median_us"] for m in measured
                if m["case_kind"] == "top-k"}

    ours, torch = times(timed(record)), times(timed_beside(record))
    return {shape: (us, torch[shape]) for shape, us in ours.items() if shape in torch}


def top_k_numbers(times: dict) -> dict[str, str]:
    ratios = [torch / us for us, torch in times.values()]
    us = [f"{us:.0f}" for us, _ in times.values()]
    return {"top-k us": f"{us[0]} to {us[-1]}", "top-k ratio": f"{min(ratios):.1f}x to {max(ratios):.1f}x"}


def claims(records: Records, before: Records) -> dict[str, tuple]:
    """What a claim says -> its checks, and its verdict."""
    return {claim.says: registered.judge(records, claim, before) for claim in registered.CLAIMS}


def check_numbers(judged: dict[str, tuple]) -> dict[str, str]:
    """"ARM-AGAINST MEASURE" -> the difference with its interval, in the digits of the pilot's own page."""
    found = {}
    for checks, _ in judged.values():
        for one in checks:
            if not np.isnan(one.mean):
                found.setdefault(f"{one.check.arm}-{one.check.against} {one.check.measure}",
                                 f"{one.mean:+.4f}" + ("" if np.isnan(one.low) else
                                                       f" ({one.low:+.4f} to {one.high:+.4f})"))
            if one.check.measure == "failed":
                found[f"{one.check.arm} fails"] = f"{sum(map(bool, one.seeds.values()))} of {len(one.seeds)}"
    return found


def entropy_numbers(records: Records) -> dict[str, str]:
    """Of full attention's probes, mean over layers and seeds (fig:prelim-warmup-entropy)."""
    _, table = answers.from_step_0(records)
    own = table.where(measure="entropy_dense", arm="full")
    values = dict(zip(own["step"].tolist(), own["value"].tolist()))
    found = {f"entropy {step}": f"{values[step]:.2f}" for step in (0, 200)}
    return {**found, "entropy last": f"{values[max(values)]:.2f}"}


def arm_means(records: Records, arms) -> tuple[int, list[dict[str, float]]]:
    """How many seeds there are in which all arms have run and none failed, and the means over these of each arm's values."""
    seeds = set.intersection(*({seed for seed, run in records.get(arm, {}).items() if not registered.failed(run)}
                               for arm in arms))
    return len(seeds), [{name: float(np.mean([records[arm][seed].values.get(name, np.nan) for seed in sorted(seeds)]))
                         for name in ("bits_per_byte", "exact_match recall")} for arm in arms if seeds]


def _heads(count: int) -> str:
    return {0: "no head gives", 1: "1 head gives"}.get(count, f"{count} heads give")


def sink_by_head(records: Records, before: Records) -> dict[str, str]:
    """Of the runs with a learnable sink, those of block G where they are there (fig:prelim-learnable-sink-vis)."""
    _, table = figures.sink_by_head(records if figures.with_sink(records) else before)
    texts = []
    for arm, words in (("sink", "with MSA"), ("full-sink", "with full attention")):
        own = table.where(arm=arm)
        if len(own):
            much = [f"{_heads(int((own[name] > MUCH).sum()))} {words_of} more than a fifth "
                    f"(at most {100 * own[name].max():.1f} %)"
                    for name, words_of in (("learnable_sink", "the learnable sink"), ("token_0", "token 0"))]
            texts.append(f"of {len(own)} heads {words}, {much[0]}, {much[1]}")
    return {"sink by head": "; ".join(texts)}


def _scripts(tree: Tree, name: str):
    """A script of studies/conversion as a module."""
    folder = str(tree.studies / "conversion")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def run_script(tree: Tree, name: str, *words) -> None:
    """A script of studies/conversion, as one types it."""
    package = str(Path(msalab.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, tree.studies / "conversion" / name, *map(str, words)], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})


def _interval(found: dict) -> str:
    return f"{100 * found['mean']:+.2f} % ({100 * found['low']:+.2f} to {100 * found['high']:+.2f})"


def conversion_numbers(tree: Tree) -> dict[str, str]:
    judge, found = _scripts(tree, "judge"), {}
    for form, arms in (("large", ("msa-1024", "msa-512", "window-1024", "window-512")),
                       ("even", ("msa-2048", "msa-1024", "msa-512"))):
        folder = tree.studies / "conversion/records" / form
        base = judge.records(folder, "dense", "dense")
        for arm in arms:
            kind, _, budget = arm.partition("-")
            own = judge.records(folder, arm, judge.OWN[kind + "-{}"].format(budget))
            one, dense = zip(*((own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())))
            named = arm if form == "large" else f"{form} {arm}"
            found[f"{named} excess"] = _interval(judge.excess(one, dense))
            found[f"{named} less first"] = _interval(judge.less_first(one, dense, int(budget)))
            answers = judge.gained(one, dense)
            found[f"{named} answers"] = (f"{100 * answers['mean']:+.1f} ({100 * answers['low']:+.1f} to "
                                       f"{100 * answers['high']:+.1f})")
    return found


def dynamics_numbers(tree: Tree) -> dict[str, str]:
    """Of the Index Branches of msa-1024 while they train: seeds and layers averaged."""
    curves = _scripts(tree, "curves")
    folder = tree.studies / "conversion/records/large"
    runs = [found["msa-1024"] for seed in ("1", "2", "3") if "msa-1024" in (found := curves.read(folder, seed))]
    table, found = curves.dynamics(runs), {}
    for name in ("kl_loss", "block_recall", "score_recall"):
        values = table.where(name=name)["value"]
        found[f"{name} first"], found[f"{name} last"] = f"{values[0]:.2f}", f"{values[-1]:.2f}"
    return found


def quoted(tree: Tree, page: str, pattern: str) -> str:
    """What a page says: the group of a pattern."""
    text = re.sub(r"\s+", " ", (tree.root / page).read_text(encoding="utf-8"))
    found = re.search(pattern, text)
    if not found:
        raise ResultsError(f"{tree.root / page}: says nothing like {pattern!r} any more")
    return found[1]


QUOTED = {
    "first block chosen": ("studies/conversion/README.md", r"at least ([\d.]+ %) of the queries in each group"),
    "sink layer": ("docs/smollm2.md", r"The sink begins at layer (\d+)"),
    "value head warm": ("studies/pilot/README.md",
                        r"the difference here is (-[\d.]+ \(-[\d.]+ to [\d.]+); `both-no-warmup`"),
    "far from emerged": ("studies/pilot/README.md",
                         r"the gap is ([\d.]+ at step 600, [\d.]+ at 1200, [\d.]+ at 1800 and [\d.]+ at 2000)"),
    "without languages": ("studies/pilot/README.md",
                          r"On C, other code and English prose MSA loses ([\d.]+ to [\d.]+) bits per byte"),
}


def page_numbers(tree: Tree) -> dict[str, str]:
    return {name: quoted(tree, *where) for name, where in QUOTED.items()}


@dataclass(frozen=True)
class Numbers:
    texts: dict[str, str]  # what the rows name
    top_k: dict
    records: Records  # of Pilot II
    before: Records  # of the exploratory part
    cost: Report
    judged: dict


def gather(tree: Tree, cost_file: Path) -> Numbers:
    """ResultsError names what is missing or damaged."""
    cost = paper_cost(tree, cost_file)
    records, before = (read_records(tree.studies / "pilot" / name) for name in ("records_2", "records"))
    with blamed(tree.data, "its records cannot be read"):
        judged = claims(records, before)
        times = top_k_times(tree)
        texts = {**cost_numbers(cost), **speed_numbers(tree), **top_k_numbers(times), **check_numbers(judged),
                 **entropy_numbers(records), **sink_by_head(records, before), **conversion_numbers(tree),
                 **dynamics_numbers(tree), **page_numbers(tree)}
        return Numbers(texts, times, records, before, cost, judged)


def efficiency_picture(tree: Tree, cost: Report):
    return efficiency_triple(cost, read_speedups(*bench_records(tree)))


def as_json(numbers: Numbers) -> str:
    return json.dumps(numbers.texts, indent=1, sort_keys=True, ensure_ascii=False)
