# SPDX-License-Identifier: MIT
"""What `msalab evaluate` makes of its finished units: results.h5, summary.json and pictures. The
units may be of one process or of several (units.py); the model is not needed any more."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from ..plots.evaluation import draw_all
from ..report import content, csv, write_tables
from ..results import ENDS, Report
from .columns import INTERVALS, SHAPES
from .files import write_h5, write_json, write_text
from .intervals import opposite, ratio_interval

DENSE = "dense"
FIRST_BUCKET = 64  # positions; each bucket behind it ends at twice the position
DEFINITIONS = {key: column.definition for shape in SHAPES for key, column in shape.columns.items()}


def unit_names(record, plan) -> list[str]:
    """The names of all units in order: the sequences of text, then each exercise of each task and length."""
    asked = record["options"]
    return [f"text {number}" for number in range(plan["texts"])] + [
        f"{task} {length} {number}" for task in asked["tasks"] for length in asked["lengths"]
        for number in range(asked["exercises"])]


def complete(out: Path, record, plan, read) -> Report:
    """Writes summary.json, its tables, the pictures and, as the last one, results.h5; returns the answer. record and
    plan: those of the run (units.py); read(name): the arrays of a unit."""
    texts = [read(f"text {number}") for number in range(plan["texts"])]
    asked = record["options"]
    tasks = [(task, length, _joined([read(f"{task} {length} {number}")
                                     for number in range(asked["exercises"])]))
             for task in asked["tasks"] for length in asked["lengths"]]
    summary = summarise(record, plan, texts, tasks)
    answer = Report(out / "summary.json", summary)
    write_json(answer.path, summary)
    (out / "tables").mkdir(exist_ok=True)
    for name in summary["tables"]:
        write_text(out / "tables" / f"{name}.csv", csv(summary, name))
    draw_all(answer, out)
    write_h5(out / "results.h5", lambda file: _fill(file, record, plan, texts, tasks, summary))
    return answer


def _joined(exercises) -> dict:
    """By answer of all exercises: right [C, A], log_likelihood [C, A], exercise and depth [A]."""
    return {"right": np.concatenate([one["right"] for one in exercises], 1),
            "log_likelihood": np.concatenate([one["log_likelihood"] for one in exercises], 1),
            "exercise": np.repeat(np.arange(len(exercises)),
                                  [len(one["depth"]) for one in exercises]),
            "depth": np.concatenate([one["depth"] for one in exercises])}


def _fill(file, record, plan, texts, tasks, summary):
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
    write_tables(file, summary)
    file["done"] = unit_names(record, plan)


def _config_names(plan) -> list[str]:
    return [DENSE, *(setting["config"] for setting in plan["settings"])]


def summarise(record, plan, texts, tasks) -> dict:
    """The content of summary.json."""
    names, asked, seed = _config_names(plan), record["options"], record["seed"]
    described = [{"config": DENSE}, *map(dict, plan["settings"])]
    documents = [int(one["document"]) for one in texts]
    rows = {shape.name: [] for shape in SHAPES}
    resampled = None
    if texts:
        resampled = "documents" if len(set(documents)) > 1 else "sequences"
        clusters = documents if resampled == "documents" else list(range(len(texts)))
        over = _Means(clusters, texts, seed, plan.get("first", 0))
        _describe_text(described, over)
        rows |= {"layer_errors": _layer_errors(plan, described, over), "by_position": _by_position(names, over),
                 "differences": _differences(described, over), "first_block": _first_block(described, over),
                 "sensitivity": _sensitivity(plan, described, over)}
    rows["configs"] = [config | {"token_budget": config.get("budget")} for config in described]
    for name, depths in (("retrieval_total", 1), ("retrieval", asked["depths"])):
        rows[name] = [row for task, length, found in tasks
                      for row in _retrieval(seed, depths, names, task, length, found)]
    rows["evaluated"] = [{"model": plan["model"], "foretold_tokens": int(sum(one["nats"].shape[1] for one in texts)),
                          "text_sequences": len(texts), "documents": len(set(documents)), "resampled": resampled,
                          "context": asked["context"], "model_layers_run": " ".join(map(str, plan["layers"]))}]
    return content(record, f"What the model {plan['model']} loses where its attention is sparse", SHAPES, rows,
                   {"intervals": INTERVALS})


def _estimate(key: str, found: dict) -> dict:
    """The three entries of a column."""
    return {key: found["mean"], f"{key}_low": found["low"], f"{key}_high": found["high"]}


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
        config["bits_of_text"] = bits / tokens
        config["bits_of_bytes"] = bits / total_bytes if total_bytes else math.nan
        config["perplexity"] = np.exp2(config["bits_of_text"])
        if row == 0:
            continue
        excess, beyond = over.excess(row), over.excess(row, first=config["budget"])
        config.update(_estimate("excess", excess) | _estimate("excess_beyond", beyond),
                      units=excess["units"], beyond_tokens=beyond["tokens"], beyond_units=beyond["units"])


def _layer_errors(plan, described, over) -> list[dict]:
    return [{"config": config["config"], "layer": layer, "layer_error": error}
            for row, config in enumerate(described) if row
            for layer, error in zip(plan["layers"], np.mean([one["layer_error"][row - 1] for one in over.texts], 0))]


def _by_position(names, over) -> list[dict]:
    rows, first, end = [], 0, FIRST_BUCKET
    longest = over.start + max(one["nats"].shape[1] for one in over.texts)
    while first < longest:
        for row, name in enumerate(names):
            bits, tokens = over.bits(row, first, end)
            rows.append({"config": name, "first_position": first, "end_position": min(end, longest),
                         "foretold_tokens": tokens, "bits_of_text": bits / tokens})
            if row:
                excess = over.excess(row, first=first, end=end)
                rows[-1].update(_estimate("excess", excess), units=excess["units"])
        first, end = end, 2 * end
    return rows


def _differences(described, over) -> list[dict]:
    """Of every two settings of one budget, the second one above the first."""
    settings = [(row, config) for row, config in enumerate(described) if row]
    return [{"token_budget": one["budget"], "config": other["config"], "above": one["config"],
             "units": (bits := over.excess(at, row))["units"]} | _estimate("more_bits", bits)
            for row, one in settings for at, other in settings if row < at and one["budget"] == other["budget"]]


def _first_block(described, over) -> list[dict]:
    """Selectors that ran with and without it."""
    places = {(c["selector"], c["budget"], c["forced_first"]): row
              for row, c in enumerate(described) if c.get("forced_first") is not None and not c.get("element")}
    rows = []
    for (selector, budget, first), row in places.items():
        forced = places.get((selector, budget, 1))
        if first == 0 and forced is not None:
            gain = over.excess(row, forced)
            rows.append({"selector": selector, "token_budget": budget, "units": gain["units"]} | _estimate("first_block_gain", gain) |
                        {f"{of}excess{end}": config[f"excess{end}"] for end in ENDS
                         for of, config in (("", described[row]), ("forced_", described[forced]))})
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
        rows.append({"config": one["of"], "one": one["one"], "layer": one["layer"], "units": bits["units"]}
                    | _estimate("layer_bits", bits))
    return sorted(rows, key=lambda row: (place[row["config"]], -row["layer_bits"]))


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
            rows.append({"task": task, "exercise_tokens": length, "shallowest": low, "deepest": high,
                         "config": name, "exercises": len(answers), "answers": int(here.sum()),
                         "log_likelihood": likelihood[row].mean()} | _estimate("right_answers", share))
            if row:
                for key, values in (("right_answers", right), ("log_likelihood", likelihood)):
                    rows[-1].update(_estimate(f"{key}_above", ratio_interval(
                        _clustered(values[row] - values[0], exercise), answers, seed)))
    return rows
