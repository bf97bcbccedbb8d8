# SPDX-License-Identifier: MIT
"""What `msalab evaluate` makes of its finished units: results.h5, summary.json and pictures. The
units may be of one process or of several (units.py); the model is not needed any more."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from ..plots.evaluation import draw_all
from .files import write_h5, write_json
from .intervals import FEWEST, RESAMPLES, SHARE, opposite, ratio_interval

FORMAT, VERSION = "msalab-evaluation", 2
DENSE = "dense"
FIRST_BUCKET = 64  # positions; each bucket behind it ends at twice the position
DEFINITIONS = {
    "bits_per_token": "mean of -log2 of the probability that the model gives the next token",
    "bits_per_byte": "the same sum over the UTF-8 bytes of the text foretold; null where the "
                     "tokenizer does not say which they are",
    "perplexity": "2 ^ bits_per_token",
    "excess": "bits per token above the model's own attention, the same tokens under both; low "
              f"and high: percentile bootstrap interval of {SHARE:.0%}, {RESAMPLES} resamples of "
              "whole documents, or of sequences where there is one document; below "
              f"{FEWEST} of them there is none",
    "excess_beyond": "the same over the tokens that are foretold from positions beyond the budget: "
                     "before them a query reads all there is",
    "layer_error": "mean over tokens of |h - h_dense| / |h_dense| of the hidden state behind each "
                   "layer, the error of all layers before included; then over sequences. It says "
                   "where states differ, not which layer to keep dense: sensitivity does",
    "sensitivity": "bits per token: of one sparse layer, the excess with this layer alone sparse; of "
                   "one dense layer, what of the excess is gone with this layer dense, too",
    "first_block": "excess without and with the first block forced, and their paired difference",
    "differences": "bits per token of one setting above another of the same budget, on the same tokens: the "
                   "mean of the paired differences and its interval, as of excess",
    "exact_match": "share of the answers of which every token is the likeliest one, those before "
                   "it being right",
    "log_likelihood": "mean natural logarithm of the probability of an answer",
    "budget": "tokens that a query reads: block size times selected blocks",
}


def unit_names(record, plan) -> list[str]:
    """The names of all units in order: the sequences of text, then each exercise of each task and length."""
    asked = record["options"]
    return [f"text {number}" for number in range(plan["texts"])] + [
        f"{task} {length} {number}" for task in asked["tasks"] for length in asked["lengths"]
        for number in range(asked["exercises"])]


def complete(out: Path, record, plan, read) -> dict:
    """Writes summary.json, the pictures and, as the last one, results.h5; returns the summary. record and
    plan: those of the run (units.py); read(name): the arrays of a unit."""
    texts = [read(f"text {number}") for number in range(plan["texts"])]
    asked = record["options"]
    tasks = [(task, length, _joined([read(f"{task} {length} {number}")
                                     for number in range(asked["exercises"])]))
             for task in asked["tasks"] for length in asked["lengths"]]
    summary = summarise(record, plan, texts, tasks)
    write_json(out / "summary.json", summary)
    draw_all(summary, out)
    write_h5(out / "results.h5", lambda file: _fill(file, record, plan, texts, tasks))
    return summary


def _joined(exercises) -> dict:
    """By answer of all exercises: right [C, A], log_likelihood [C, A], exercise and depth [A]."""
    return {"right": np.concatenate([one["right"] for one in exercises], 1),
            "log_likelihood": np.concatenate([one["log_likelihood"] for one in exercises], 1),
            "exercise": np.repeat(np.arange(len(exercises)),
                                  [len(one["depth"]) for one in exercises]),
            "depth": np.concatenate([one["depth"] for one in exercises])}


def _fill(file, record, plan, texts, tasks):
    file.attrs["format"], file.attrs["format_version"] = "msa-results", 3
    run_group = file.create_group("run")
    for name, value in record.items():
        run_group.attrs[name] = value if isinstance(value, (str, int)) else json.dumps(value)
    run_group.attrs["definitions"] = json.dumps(DEFINITIONS)
    file["configs"] = _config_names(plan)

    def add(name, values, axes, unit, description):
        file[name] = values
        file[name].attrs.update({"axes": axes, "unit": unit, "description": description})

    if texts:
        lengths = [len(one["nats"][0]) for one in texts]
        add("evaluate/text/nats", np.concatenate([one["nats"] for one in texts], 1),
            "config,token", "nat", "-log probability of each token but a sequence's first")
        if plan.get("variants"):
            file["evaluate/sensitivity/variants"] = [one["config"] for one in plan["variants"]]
            add("evaluate/sensitivity/nats", np.concatenate([one["variants"] for one in texts], 1),
                "variant,token", "nat", "likewise, with one layer dense or sparse")
        add("evaluate/text/sequence", np.repeat(np.arange(len(texts)), lengths), "token", "1",
            "sequence of each")
        add("evaluate/text/position", np.concatenate([plan.get("first", 0) + np.arange(count) for count in lengths]),
            "token", "1", "position of the token that foretells it")
        add("evaluate/text/bytes", np.concatenate([one["bytes"] for one in texts]), "token",
            "byte", "UTF-8 bytes of each; NaN where they are not known")
        add("evaluate/text/document", [int(one["document"]) for one in texts], "sequence", "1",
            "document of each sequence")
        add("evaluate/text/layer_error", np.stack([one["layer_error"] for one in texts]),
            "sequence,config,layer", "1", DEFINITIONS["layer_error"])
    for task, length, found in tasks:
        for name, values in found.items():
            add(f"evaluate/retrieval/{task}@{length}/{name}", values,
                "config,answer" if values.ndim == 2 else "answer",
                "nat" if name == "log_likelihood" else "1", DEFINITIONS.get(name, name))
    file["done"] = unit_names(record, plan)


def _config_names(plan) -> list[str]:
    return [DENSE, *(setting["config"] for setting in plan["settings"])]


def _number(value):
    return float(value) if value is not None and math.isfinite(value) else None


def summarise(record, plan, texts, tasks) -> dict:
    names, asked, seed = _config_names(plan), record["options"], record["seed"]
    described = [{"config": DENSE}, *map(dict, plan["settings"])]
    documents = [int(one["document"]) for one in texts]
    by_position, resampled = [], None
    if texts:
        resampled = "documents" if len(set(documents)) > 1 else "sequences"
        clusters = documents if resampled == "documents" else list(range(len(texts)))
        over = _Means(clusters, texts, seed, plan.get("first", 0))
        _describe_text(described, over)
        by_position = _by_position(names, over)
    return {"format": FORMAT, "format_version": VERSION, "model": plan["model"],
            "options": {name: asked[name] for name in ("context", "dense_layers")} |
                       {"seed": seed},
            "definitions": DEFINITIONS, "layers": plan["layers"], "sequences": len(texts),
            "tokens": int(sum(one["nats"].shape[1] for one in texts)),
            "documents": len(set(documents)), "resampled": resampled,
            "configs": described, "by_position": by_position,
            "differences": _differences(described, over) if texts else [],
            "first_block": _first_block(described, over) if texts else [],
            "sensitivity": _sensitivity(plan, described, over) if texts else [],
            "retrieval_total": [row for task, length, found in tasks
                                for row in _retrieval(seed, 1, names, task, length, found)],
            "retrieval": [row for task, length, found in tasks
                          for row in _retrieval(seed, asked["depths"], names, task, length, found)]}


def _clustered(values, clusters) -> np.ndarray:
    """Sums of one value per sequence by cluster."""
    return np.bincount(np.unique(clusters, return_inverse=True)[1], weights=values)


class _Means:
    """Means of bits over the tokens of all sequences, and how sure they are. start: the first position that
    foretells a token of the text; those before it are of what the tokenizer puts before one."""

    def __init__(self, clusters, texts, seed, start):
        self.clusters, self.texts, self.seed, self.start = clusters, texts, seed, start

    def between(self, first: int, end: int | None) -> slice:
        return slice(max(first - self.start, 0), None if end is None else max(end - self.start, 0))

    def excess(self, row, base=0, first=0, end=None, rows="nats") -> dict:
        """Of a config over another one, at the positions from first to end."""
        bits, counts = [], []
        for one in self.texts:
            more = (one[rows][row].astype(float) - one["nats"][base])[self.between(first, end)]
            bits.append(more.sum() / math.log(2))
            counts.append(len(more))
        return ratio_interval(_clustered(bits, self.clusters), _clustered(counts, self.clusters),
                              self.seed) | {"tokens": sum(counts)}

    def bits(self, row, first=0, end=None) -> tuple[float, int]:
        """Sum, and of how many tokens."""
        found = [one["nats"][row, self.between(first, end)].astype(float) for one in self.texts]
        return sum(some.sum() for some in found) / math.log(2), sum(map(len, found))


def _describe_text(described, over):
    total_bytes = sum(one["bytes"].sum() for one in over.texts)
    for row, config in enumerate(described):
        bits, tokens = over.bits(row)
        config["bits_per_token"] = bits / tokens
        config["bits_per_byte"] = _number(bits / total_bytes if total_bytes else math.nan)
        config["perplexity"] = _number(np.exp2(config["bits_per_token"]))
        if row == 0:
            continue
        config["excess"] = over.excess(row)
        config["excess_beyond"] = over.excess(row, first=config["budget"])
        errors = np.mean([one["layer_error"][row - 1] for one in over.texts], 0)
        config["layer_error"] = [_number(error) for error in errors]


def _by_position(names, over) -> list[dict]:
    rows, first, end = [], 0, FIRST_BUCKET
    longest = over.start + max(one["nats"].shape[1] for one in over.texts)
    while first < longest:
        for row, name in enumerate(names):
            bits, tokens = over.bits(row, first, end)
            rows.append({"config": name, "first": first, "end": min(end, longest), "tokens": tokens,
                         "bits_per_token": bits / tokens})
            if row:
                rows[-1]["excess"] = over.excess(row, first=first, end=end)
        first, end = end, 2 * end
    return rows


def _differences(described, over) -> list[dict]:
    """Of every two settings of one budget, the second one above the first."""
    settings = [(row, config) for row, config in enumerate(described) if row]
    return [{"budget": one["budget"], "config": other["config"], "above": one["config"],
             "bits": over.excess(at, row)}
            for row, one in settings for at, other in settings if row < at and one["budget"] == other["budget"]]


def _first_block(described, over) -> list[dict]:
    """Selectors that ran with and without it."""
    places = {(c["selector"], c["budget"], c["forced_first"]): row
              for row, c in enumerate(described) if c.get("forced_first") is not None}
    rows = []
    for (selector, budget, first), row in places.items():
        forced = places.get((selector, budget, 1))
        if first == 0 and forced is not None:
            rows.append({"selector": selector, "budget": budget, "excess": described[row]["excess"],
                         "forced": described[forced]["excess"], "gain": over.excess(row, forced)})
    return rows


def _sensitivity(plan, described, over) -> list[dict]:
    """A row for each layer of each setting, that which matters most first."""
    place = {config["config"]: row for row, config in enumerate(described)}
    rows = []
    for number, one in enumerate(plan.get("variants", [])):
        alone = one["one"] == "sparse"
        bits = over.excess(number, 0 if alone else place[one["of"]], rows="variants")
        if not alone:  # less excess is what a dense layer gains
            bits = opposite(bits)
        rows.append({"config": one["of"], "one": one["one"], "layer": one["layer"], "bits": bits})
    return sorted(rows, key=lambda row: (place[row["config"]], -row["bits"]["mean"]))


def _retrieval(seed, depths, names, task, length, found) -> list[dict]:
    rows = []
    for part in range(depths):
        low, high = part / depths, (part + 1) / depths
        here = np.minimum((found["depth"] * depths).astype(int), depths - 1) == part
        if not here.any():
            continue
        exercise = found["exercise"][here]
        answers = _clustered(np.ones(len(exercise)), exercise)
        for row, name in enumerate(names):
            right, likelihood = (found[key][:, here].astype(float)
                                 for key in ("right", "log_likelihood"))
            share = ratio_interval(_clustered(right[row], exercise), answers, seed)
            rows.append({"task": task, "length": length, "shallowest": low, "deepest": high,
                         "config": name, "exercises": len(answers), "answers": int(here.sum()),
                         "exact_match": share["mean"],
                         "exact_match_interval": [share["low"], share["high"]],
                         "log_likelihood": likelihood[row].mean()})
            if row:
                for key, values in (("exact_match", right), ("log_likelihood", likelihood)):
                    rows[-1][f"{key}_difference"] = ratio_interval(
                        _clustered(values[row] - values[0], exercise), answers, seed)
    return rows
