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
from .intervals import RESAMPLES, SHARE, ratio_interval

FORMAT, VERSION = "msalab-evaluation", 1
DENSE = "dense"
FIRST_BUCKET = 64  # positions; each bucket behind it ends at twice the position
DEFINITIONS = {
    "bits_per_token": "mean of -log2 of the probability that the model gives the next token",
    "bits_per_byte": "the same sum over the UTF-8 bytes of the text foretold; null where the "
                     "tokenizer does not say which they are",
    "perplexity": "2 ^ bits_per_token",
    "excess": "bits per token above the model's own attention, the same tokens under both; low "
              f"and high: percentile bootstrap interval of {SHARE:.0%}, {RESAMPLES} resamples of "
              "whole documents, or of sequences where there is one document",
    "layer_error": "|h - h_dense| / |h_dense| of the hidden states behind each layer, the error of "
                   "all layers before included; mean over sequences",
    "exact_match": "share of the answers of which every token is the likeliest one, those before "
                   "it being right",
    "log_likelihood": "mean natural logarithm of the probability of an answer",
    "budget": "tokens that a query reads: block size times selected blocks",
}


def unit_names(record, plan) -> list[str]:
    """Of all units, in order: the sequences of text, then each exercise of each task and length."""
    asked = record["options"]
    return [f"text {number}" for number in range(plan["texts"])] + [
        f"{task} {length} {number}" for task in asked["tasks"] for length in asked["lengths"]
        for number in range(asked["exercises"])]


def complete(out: Path, record, plan, read) -> dict:
    """Writes results.h5, then summary.json and the pictures; returns the summary. record and plan:
    those of the run (units.py); read(name): the arrays of a unit."""
    texts = [read(f"text {number}") for number in range(plan["texts"])]
    asked = record["options"]
    tasks = [(task, length, _joined([read(f"{task} {length} {number}")
                                     for number in range(asked["exercises"])]))
             for task in asked["tasks"] for length in asked["lengths"]]
    write_h5(out / "results.h5", lambda file: _fill(file, record, plan, texts, tasks))
    summary = summarise(record, plan, texts, tasks)
    write_json(out / "summary.json", summary)
    draw_all(summary, out)
    return summary


def _joined(exercises) -> dict:
    """By answer of all exercises: right [C, A], log_likelihood [C, A], exercise and depth [A]."""
    return {"right": np.concatenate([one["right"] for one in exercises], 1),
            "log_likelihood": np.concatenate([one["log_likelihood"] for one in exercises], 1),
            "exercise": np.repeat(np.arange(len(exercises)),
                                  [len(one["depth"]) for one in exercises]),
            "depth": np.concatenate([one["depth"] for one in exercises])}


def _fill(file, record, plan, texts, tasks):
    file.attrs["format"], file.attrs["format_version"] = "msa-results", 2
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
        add("evaluate/text/sequence", np.repeat(np.arange(len(texts)), lengths), "token", "1",
            "sequence of each")
        add("evaluate/text/position", np.concatenate([np.arange(count) for count in lengths]),
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
        _describe_text(seed, described, clusters, texts)
        by_position = _by_position(seed, names, clusters, texts)
    return {"format": FORMAT, "format_version": VERSION, "model": plan["model"],
            "options": {name: asked[name] for name in ("context", "block_size", "dense_layers")} |
                       {"seed": seed},
            "definitions": DEFINITIONS, "layers": plan["layers"], "sequences": len(texts),
            "tokens": int(sum(one["nats"].shape[1] for one in texts)),
            "documents": len(set(documents)), "resampled": resampled,
            "configs": described, "by_position": by_position,
            "retrieval": [row for task, length, found in tasks
                          for row in _retrieval(seed, asked["depths"], names, task, length, found)]}


def _clustered(values, clusters) -> np.ndarray:
    """Sums of one value per sequence by cluster."""
    return np.bincount(np.unique(clusters, return_inverse=True)[1], weights=values)


def _describe_text(seed, described, clusters, texts):
    tokens = [one["nats"].shape[1] for one in texts]
    total_bytes = sum(one["bytes"].sum() for one in texts)
    for row, config in enumerate(described):
        bits = sum(one["nats"][row].sum() for one in texts) / math.log(2)
        config["bits_per_token"] = bits / sum(tokens)
        config["bits_per_byte"] = _number(bits / total_bytes if total_bytes else math.nan)
        config["perplexity"] = _number(np.exp2(config["bits_per_token"]))
        if row == 0:
            continue
        excess = [(one["nats"][row] - one["nats"][0]).sum() / math.log(2) for one in texts]
        config["excess"] = ratio_interval(_clustered(excess, clusters),
                                          _clustered(tokens, clusters), seed)
        errors = np.mean([one["layer_error"][row - 1] for one in texts], 0)
        config["layer_error"] = [_number(error) for error in errors]


def _by_position(seed, names, clusters, texts) -> list[dict]:
    rows, first, end = [], 0, FIRST_BUCKET
    longest = max(one["nats"].shape[1] for one in texts)
    while first < longest:
        counts = [len(one["nats"][0, first:end]) for one in texts]
        for row, name in enumerate(names):
            bits = [one["nats"][row, first:end].sum() / math.log(2) for one in texts]
            own = [one["nats"][0, first:end].sum() / math.log(2) for one in texts]
            rows.append({"config": name, "first": first, "end": min(end, longest),
                         "tokens": sum(counts), "bits_per_token": sum(bits) / sum(counts)})
            if row:
                rows[-1]["excess"] = ratio_interval(
                    _clustered(np.subtract(bits, own), clusters), _clustered(counts, clusters),
                    seed)
        first, end = end, 2 * end
    return rows


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
            rows.append({"task": task, "length": length, "shallowest": low, "deepest": high,
                         "config": name, "exercises": len(answers), "answers": int(here.sum()),
                         "exact_match": right[row].mean(),
                         "log_likelihood": likelihood[row].mean()})
            if row:
                for key, values in (("exact_match", right), ("log_likelihood", likelihood)):
                    rows[-1][f"{key}_difference"] = ratio_interval(
                        _clustered(values[row] - values[0], exercise), answers, seed)
    return rows
