# SPDX-License-Identifier: MIT
"""The tables of docs/models.md, each between marks that name it, from the records of studies/models."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from msalab.capture.capture import ranges
from msalab.ending import Refusal
from msalab.results import ENDS, Report

from . import records, rule, texts

PAGE = Path(__file__).parents[2] / "docs/models.md"
MODELS = {"smollm2": "SmolLM2-135M", "gemma3": "Gemma 3 270M", "qwen": "Qwen2.5-Coder-0.5B"}
CONTEXTS = (2048, 8192, 16384, 32768)
POSITIONS = {"smollm2": 8192, "gemma3": 32768, "qwen": 32768}  # a model's own
_MARKED = re.compile(r"(<!-- table ([\w-]+) from studies/models/records -->\n).*?(<!-- end -->)", re.DOTALL)
SINK, STRONG, NEAR = 0.1, 0.5, 0.01  # of a layer, of a head; share of the bits that "works" may lose
PAPER = 2048  # the budget of MSA's paper
NONE = [("not run",)]


@dataclass
class Records:
    """found: [model, context, kind] -> piece -> its record. crossover: of a model."""

    found: dict = field(default_factory=lambda: defaultdict(dict))
    crossover: dict = field(default_factory=dict)

    def each(self, piece: str):
        """Model, context, kind, rest of the piece's name and record of all pieces of this name, in order."""
        for (model, context, kind), pieces in self.found.items():
            for name, record in pieces.items():
                if records.piece_of(name) == piece:
                    yield model, context, kind, name.removeprefix(piece).lstrip("-"), record


def load(folder: Path) -> Records:
    of = Records()
    order = {name: number for number, name in enumerate(MODELS)}
    found = {(path.parent.name, int(path.name.split(".")[0]), *name): record
             for path in folder.glob("*/*.json.xz") for name, record in records.read(path).items()}
    for key in sorted(found, key=lambda one: (order.get(one[0], len(order)), one[0], one[1], texts.KINDS.index(one[2]),
                                              records.piece_of(one[3]), len(one[3]), one[3])):
        of.found[key[:3]][key[3]] = found[key]
    for path in sorted(folder.glob("*/crossover.json")):
        of.crossover[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    return of


def called(context: int) -> str:
    return f"{context // 1024}K"


def markdown(rows) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", line) for line in lines) + "\n"


def mean(values) -> float:
    return float(np.mean(list(values)))


def estimate(row: dict, key: str) -> tuple[float, float, float]:
    return tuple(row[key + end] for end in ENDS)


def within(found: tuple[float, float, float], form: str, unit: str = "") -> str:
    middle, low, high = found
    return f"{middle:{form}}{unit}" + (f" ({low:{form}} to {high:{form}})" if low == low else "")


def interval(row: dict, key: str, form: str) -> str:
    return within(estimate(row, key), form)


def together(names) -> str:
    """`loss-512/1024` of loss-512 and loss-1024."""
    found = defaultdict(list)
    for name in names:
        found[records.piece_of(name)].append(name.removeprefix(records.piece_of(name)).lstrip("-"))
    shown = []
    for piece, rest in found.items():
        shown += [piece] * ("" in rest)
        more = [one for one in rest if one]
        shown += [f"{piece}-{'/'.join(more)}"] * bool(more)
    return ", ".join(f"`{one}`" for one in shown)


def ran(of: Records):
    """What has a record."""
    rows = [("model", "context", *texts.KINDS)]
    for model, name in MODELS.items():
        for context in CONTEXTS:
            left = "not run" if context <= POSITIONS[model] else "beyond its positions"
            rows.append((name, called(context),
                         *(together(of.found.get((model, context, kind), {})) or left for kind in texts.KINDS)))
    return rows


def sink(of: Records):
    rows = [("model", "context", "text", f"layers with a mean of {SINK} or more", f"heads with {STRONG} or more",
             "strongest head")]
    for model, context, kind, _, record in of.each("heads"):
        heads = record["heads"].records()
        by_layer = defaultdict(list)
        for head in heads:
            by_layer[head["layer"]].append(head["head_sink"])
        most = max(heads, key=lambda one: one["head_sink"])
        rows.append((MODELS[model], called(context), kind,
                     ranges(layer for layer, one in by_layer.items() if mean(one) >= SINK) or "none",
                     f"{sum(one['head_sink'] >= STRONG for one in heads)} of {len(heads)}",
                     f"layer {most['layer']}, head {most['head']}: {most['head_sink']:.2f}"))
    return rows if len(rows) > 1 else NONE


def sink_by_layer(of: Records):
    """Of mixed text at the shortest context: mean and largest of a layer's heads."""
    found = {model: record for model, context, kind, _, record in of.each("heads")
             if (context, kind) == (CONTEXTS[0], "mixed")}
    values = {model: defaultdict(list) for model in found}
    for model, record in found.items():
        for head in record["heads"].records():
            values[model][head["layer"]].append(head["head_sink"])
    layers = sorted({layer for one in values.values() for layer in one})
    rows = [("layer", *(MODELS[model] for model in found))]
    rows += [(str(layer), *(f"{mean(one[layer]):.2f}, {max(one[layer]):.2f}" if layer in one else "-"
                            for one in values.values())) for layer in layers]
    return rows if found else NONE


SETTINGS = (("oracle", 0), ("mean-key", 0), ("mean-key", 1), ("quest", 0), ("quest", 1), ("window", 1), ("random", 0))
FEW = (("oracle", 0), ("mean-key", 1))


def setting(selector: str, first: int) -> str:
    return selector if selector == "window" or not first else f"{selector}, first"


def _kept(table, key: str, selector: str, budget: int, first: int) -> float | None:
    own = [row[key] for row in table
           if (row["selector"], row["token_budget"], row["forced_first"]) == (selector, budget, first)]
    return mean(own) if own else None


def mass(of: Records):
    """Of mixed text, blocks of 64."""
    rows = [("model", "context", "budget", *(setting(*one) for one in SETTINGS))]
    for model, context, kind, block, record in of.each("keeps"):
        if (kind, block) != ("mixed", "64"):
            continue
        table = record["selectors"].records()
        for budget in sorted({row["token_budget"] for row in table}):
            kept = [[_kept(table, key, selector, budget, first) for key in ("mass_kept", "block_recall")]
                    for selector, first in SETTINGS]
            rows.append((MODELS[model], called(context), str(int(budget)),
                         *("-" if one[0] is None else f"{one[0]:.3f}, {one[1]:.2f}" for one in kept)))
    return rows if len(rows) > 1 else NONE


def kinds(of: Records):
    """Sink, the mean over the heads of the full layers, and mass kept, each by the kind of text."""
    found = defaultdict(lambda: ["-"] * (1 + len(FEW)) * len(texts.KINDS))
    for (model, context, kind), pieces in of.found.items():
        at = texts.KINDS.index(kind)
        budget = min(PAPER, context // 2)
        cells = found[model, f"{budget} of {called(context)}"]
        if "heads" in pieces:
            cells[at] = f"{mean(pieces['heads']['heads']['head_sink']):.2f}"
        if "keeps-64" in pieces:
            table = pieces["keeps-64"]["selectors"].records()
            for n, (selector, first) in enumerate(FEW, 1):
                cells[at + n * len(texts.KINDS)] = f"{_kept(table, 'mass_kept', selector, budget, first):.3f}"
    rows = [("model", "tokens", *(f"{name}, {kind}" for name in ("sink", *(setting(*one) for one in FEW))
                                  for kind in texts.KINDS))]
    rows += [(MODELS[model], tokens, *cells) for (model, tokens), cells in found.items()]
    return rows if found else NONE


def blocks(of: Records):
    """Mass kept by the size of a block, of mixed text."""
    found = defaultdict(dict)
    for model, context, kind, block, record in of.each("keeps"):
        if kind == "mixed":
            found[model, context][block] = record["selectors"].records()
    sizes = ("32", "64", "128")
    rows = [("model", "context", "budget", *(f"{setting(*one)}, {size}" for one in FEW for size in sizes))]
    for (model, context), own in found.items():
        budget = min(PAPER, context // 2)
        if len(own) == len(sizes):
            rows.append((MODELS[model], called(context), str(budget), *(
                f"{_kept(own[size], 'mass_kept', selector, budget, first):.3f}" for selector, first in FEW
                for size in sizes)))
    return rows if len(rows) > 1 else NONE


def fit(of: Records):
    rows = [("model", "context", "text", "channels", "recall", "by chance", "mass kept", "first block forced", "mean-key",
             "window", "oracle", "layers below a rival, or like chance")]
    for model, context, kind, width, record in of.each("fit"):
        kept = record["evaluations"].where(is_kept=True).records()
        layers = record["layers"].records()
        rows.append((MODELS[model], called(context), kind, "the head's" if width == "wide" else width,
                     *(f"{mean(row[key] for row in source):.3f}" for source, key in (
                         (kept, "block_recall"), (layers, "random_recall"), (kept, "mass_kept"),
                         (layers, "first_forced_mass"), (layers, "mean_key_mass"), (layers, "window_mass"),
                         (kept, "oracle_mass"))),
                     ranges({row["layer"] for row in record["weak_indexers"].records()}) or "none"))
    return rows if len(rows) > 1 else NONE


def _losses(of: Records):
    """Model, context, kind, dense bits and the row of each setting, of pieces that measure on text."""
    for piece in ("loss", "wide", "advised"):
        for model, context, kind, _, record in of.each(piece):
            configs = record["configs"].records()
            dense = next(row for row in configs if row["config"] == "dense")["bits_of_text"]
            for row in configs:
                if row["config"] != "dense":
                    yield model, context, kind, piece, dense, row


def by_position(of: Records):
    """At the paper's budget, beyond it, of mixed text."""
    shown = (("oracle", "oracle", ""), ("mean-key, first", "mean-key", ",first=1"), ("window", "window", ",first=1"),
             ("index, first", "index", ",first=1"))
    rows = [("model", "context", "positions", "dense, bits per token", *(name for name, _, _ in shown))]
    for model, context, kind, budget, record in of.each("loss"):
        if (kind, budget) != ("mixed", str(PAPER)):
            continue
        table = record["by_position"].records()
        for first, end in sorted({(row["first_position"], row["end_position"]) for row in table}):
            own = {row["config"]: row for row in table if row["first_position"] == first}
            cells = [own.get(f"{name}@{budget}{more}") for _, name, more in shown]
            if first >= PAPER:
                rows.append((MODELS[model], called(context), f"{first} to {end - 1}", f"{own['dense']['bits_of_text']:.3f}",
                             *(f"{row['excess']:+.4f}" if row else "-" for row in cells)))
    return rows if len(rows) > 1 else NONE


def asked(of: Records):
    """What a model retrieves with its own attention, of each task by the record with most exercises."""
    found = defaultdict(dict)
    for piece in ("asked", "solved"):
        for model, context, _, _, record in of.each(piece):
            found[model, context] |= {row["task"]: row for row in record["retrieval_total"].where(config="dense").records()}
    tasks = list(dict.fromkeys(task for own in found.values() for task in own))
    rows = [("model", "context", *(f"`{task}`" for task in tasks))]
    for (model, context), own in found.items():
        rows.append((MODELS[model], called(context), *(
            f"{interval(own[task], 'right_answers', '.2f')} of {own[task]['exercises']}" if task in own else "-"
            for task in tasks)))
    return rows if found else NONE


def _retrieved(of: Records) -> dict[tuple, dict]:
    """[model, context, task, budget] -> the row of each selector. `wide` is the Index Branch of the head's own width."""
    found = defaultdict(dict)
    for model, context, _, rest, record in of.each("retrieval"):
        table = record["retrieval_total"].records()
        sparse = [(row, *row["config"].split(",")[0].split("@")) for row in table if row["config"] != "dense"]
        dense = {row["task"]: row for row in table if row["config"] == "dense"}
        for row, selector, budget in sparse:
            own = found[model, context, row["task"], int(budget)]
            own["wide" if rest == "wide" else selector] = row
            own.setdefault("dense", dense[row["task"]])
    return found


def retrieval(of: Records):
    """Of the tasks that a model solves: right answers of each selector, the first block forced."""
    selectors = ("dense", "oracle", "index", "wide", "mean-key")
    rows = [("model", "context", "task", "budget", *selectors)]
    rows += [(MODELS[model], called(context), f"`{task}`", str(budget), *(
        interval(own[name], "right_answers", ".2f") if name in own else "-" for name in selectors))
        for (model, context, task, budget), own in _retrieved(of).items()]
    return rows if len(rows) > 1 else NONE


def advice(of: Records):
    rows = [("model", "context", "text", "advice for a quarter of the context", "mass kept", "time, of dense attention",
             "stays dense", "excess, bits (95 %)")]
    found = {(model, context, kind): interval(row, "excess", "+.4f")
             for model, context, kind, piece, _, row in _losses(of) if piece == "advised"}
    for model, context, kind, _, record in of.each("advice"):
        best = record["advice"].records()[0]
        rows.append((MODELS[model], called(context), kind,
                     f"{best['selector']}, {best['top_k']} blocks of {best['block_size']}, first {best['forced_first']}",
                     f"{best['mass_kept']:.3f}", f"{best['share_of_dense']:.2f}", str(best["dense_layers"] or "none"),
                     found.get((model, context, kind), "not run")))
    return rows if len(rows) > 1 else NONE


def layers(of: Records):
    """Shared ids, few bits, a small cache; of the Index Branch of 64 channels."""
    own = {piece: {tuple(key[:3]): record for *key, record in of.each(piece)} for piece in ("reuse", "precision", "cache")}
    rows = [("model", "context", "text", "layers that compute ids", "mass lost by sharing", "by the layer that loses most",
             "same ids with an index in e4m3, int8", "error of attention, keys and values in e4m3", "in int8",
             "hits of a cache of a quarter, a half")]
    for key in [key for key in of.found if any(key in one for one in own.values())]:
        shared, bits, cache = (own[piece].get(key) for piece in own)
        rows.append((MODELS[key[0]], called(key[1]), key[2], *(_shared(shared) if shared else "---"),
                     *(_of_formats(bits) if bits else "---"),
                     ", ".join(_hits(cache, share) for share in (0.25, 0.5)) if cache else "-"))
    return rows if len(rows) > 1 else NONE


def _shared(record: Report) -> tuple[str, str, str]:
    """Of the fewest layers with which the mean loses at most the target."""
    by_role = {row["pattern_role"]: row for row in record["patterns"].records()}
    every = by_role["own"]
    best = by_role.get("target_mean", every)
    layers = ranges(map(int, best["computing_layers"].split()))
    return (f"{best['computing']:.0f} of {every['computing']:.0f}: {layers}", interval(best, "mass_lost", ".4f"),
            f"{best['most_lost']:.3f}")


def _of_formats(record: Report) -> tuple[str, str, str]:
    """Of index operands as the kernels take them, e4m3 without a scale; else with one for each token."""
    same, error = ({(row["format"], row["scale"]): row for row in record[table].records()} for table in ("index", "cache"))
    found = [", ".join(f"{same[one]['precision_recall']:.2f}" for one in (("e4m3", "none"), ("int8", "token")))]
    for row in (error["e4m3", "token"], error["int8", "token"]):
        worst = max(record["cache_layers"].where(precision=row["precision"]).records(), key=lambda one: one["sparse_error"])
        found.append(f"{row['sparse_error']:.3f}, layer {worst['layer']}: {worst['sparse_error']:.2f}")
    return tuple(found)


def _hits(record: Report, share: float) -> str:
    found = [row["hit_rate"] for row in record["caches"].where(cache_role="tried").records()
             if row["share_of_context"] == share]
    return f"{found[0]:.3f}" if found else "-"


def points(of: Records) -> list[rule.Point]:
    """Of every setting that both `keeps-64` and a loss have."""
    keeps = {(model, context, kind): record["selectors"].records()
             for model, context, kind, block, record in of.each("keeps") if block == "64"}
    found = []
    for model, context, kind, piece, dense, row in _losses(of):
        own = [one for one in keeps.get((model, context, kind), []) if piece == "loss" and (
            one["selector"], one["token_budget"], one["forced_first"])
            == (row["selector"], row["token_budget"], row["forced_first"])]
        if own:
            found.append(rule.Point(model, f"{called(context)} {kind} {row['config']}", row["excess"] / dense,
                                    mean(1 - one["mass_kept"] for one in own),
                                    mean(one["group_output_error"] for one in own),
                                    mean(max(one["sink_mass_dense"] - one["sink_mass_sparse"], 0) for one in own)))
    return found


def judged_rule(of: Records):
    found = rule.trials(points(of))
    rows = [("predictor", "tested on", "points fitted on the other two", "tested", "within their interval",
             "widest interval, factor", "median factor off")]
    rows += [(one.predictor, MODELS[one.model], str(one.fitted_points), str(one.points), str(one.within),
              f"{one.widest:.3g}", f"{one.off:.2f}") for one in found]
    return rows if found else NONE


def verdict(of: Records) -> str:
    """Whether the rule of studies/models/README.md carries, in a sentence."""
    found = rule.trials(points(of))
    if not found:
        return "The rule is not judged: fewer than three models have points.\n"
    good = [name for name in rule.PREDICTORS if rule.carries([one for one in found if one.predictor == name])]
    if good:
        return f"The rule carries, by {' and '.join(good)}.\n"
    return "The rule does not carry, by any of its predictors: `msa-advise` has no prediction in bits to print.\n"


def pays(of: Records):
    rows = [("model", "layers", "prefill", "decode", "training")]
    for model, name in MODELS.items():
        if model in of.crossover:
            one = of.crossover[model]
            rows.append((name, re.sub(r", [\d.e+]+ weights.*", "", one["what"]), *(
                f"from {called(one['pays'][work])} on" if one["pays"][work] else "at none"
                for work in ("prefill", "decode", "training"))))
    return rows if len(rows) > 1 else NONE


@dataclass(frozen=True)
class Answer:
    """Of a budget: the least loss of each selector with its interval, percent of the bits, and what forcing the first
    block gains, bits, where the interval is above 0; `wide` is the Index Branch of the head's own width."""

    model: str
    context: int
    kind: str
    budget: int
    dense: float
    losses: dict[str, tuple[float, float, float]]
    gains: dict[str, tuple[float, float, float]]

    @property
    def branch(self) -> str | None:
        """The better Index Branch; None where none was measured."""
        return min((one for one in ("index", "wide") if one in self.losses), key=self.losses.get, default=None)

    @property
    def index(self) -> float:
        return self.losses[self.branch][0]

    @property
    def works(self) -> bool:
        return self.index < 100 * NEAR

    def of(self, selector: str) -> str:
        return within(self.losses[selector], ".2f") if selector in self.losses else "-"


def judged(of: Records) -> list[Answer]:
    """Each model, context, text and budget whose loss was measured."""
    losses, gains, bits = defaultdict(lambda: defaultdict(list)), defaultdict(dict), {}
    for model, context, kind, piece, dense, row in _losses(of):
        if piece in ("loss", "wide"):
            key = model, context, kind, int(row["token_budget"])
            bits.setdefault(key, dense)
            losses[key]["wide" if piece == "wide" else row["selector"]].append(
                tuple(100 * one / dense for one in estimate(row, "excess")))
    for piece in ("loss", "wide"):
        for model, context, kind, budget, record in of.each(piece):
            for row in record["first_block"].records():
                name = "wide" if piece == "wide" and row["selector"] == "index" else row["selector"]
                gain = estimate(row, "first_block_gain")
                if gain[1] > 0 and name in ("index", "wide", "mean-key"):
                    gains[model, context, kind, int(budget)].setdefault(name, gain)
    return [Answer(*key, bits[key], {selector: min(found) for selector, found in own.items()}, gains[key])
            for key, own in sorted(losses.items(), key=lambda one: (list(MODELS).index(one[0][0]), one[0][1:]))]


def loss(of: Records):
    """A row for each budget that was measured."""
    selectors = ("oracle", "mean-key", "window", "index", "wide")
    rows = [("model", "tokens", "text", "dense, bits per token", *selectors, "forcing the first block gains, bits")]
    rows += [(MODELS[one.model], f"{one.budget} of {called(one.context)}", one.kind, f"{one.dense:.4f}",
              *(one.of(selector) for selector in selectors),
              "; ".join(f"{name} {within(gain, '.3f')}" for name, gain in one.gains.items()) or "no")
             for one in judged(of)]
    return rows if len(rows) > 1 else NONE


def answers(of: Records) -> str:
    """An answer for each model, then what the better Index Branch loses by budget."""
    found = [one for one in judged(of) if one.branch]
    budgets = sorted({one.budget for one in found})
    rows = [("model", "context", "text", *(f"{budget} tokens" for budget in budgets))]
    for key in dict.fromkeys((one.model, one.context, one.kind) for one in found):
        own = {one.budget: one for one in found if (one.model, one.context, one.kind) == key}
        rows.append((MODELS[key[0]], called(key[1]), key[2], *(_cell(own.get(budget)) for budget in budgets)))
    said = "\n".join(textwrap.fill(f"- {_in_short(of, model, found)}", 120, subsequent_indent="  ",
                                   break_on_hyphens=False) for model in MODELS)
    return said + "\n" + ("\n" + markdown(rows) if len(rows) > 1 else "")


def _cell(one: Answer | None) -> str:
    return "-" if one is None else f"**{one.index:.2f}**" if one.works else f"{one.index:.2f}"


def _in_short(of: Records, model: str, found: list[Answer]) -> str:
    """With the paper's budget in mixed text: whether it works, what it loses and finds, from where on it pays, what to
    force."""
    own = [one for one in found if (one.model, one.kind, one.budget) == (model, "mixed", PAPER)]
    name = f"**{MODELS[model]}.**"
    if not own:
        return " ".join([name, f"Its loss with {PAPER} tokens was not measured.", *_price(of, model)])
    good, bad = ([called(one.context) for one in own if one.works == works] for works in (True, False))
    works = "works" if not bad else f"works at {_listed(good)}, but not at {_listed(bad)}" if good else "does not work"
    lost = [f"{within(one.losses[one.branch], '+.2f', ' %')} at {called(one.context)}" for one in own]
    return " ".join([name, f"By bits, MSA {works}: the bits change by {_listed(lost)}.", _needles(of, own),
                     *_price(of, model), _first_block(own)])


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _needles(of: Records, own: list[Answer]) -> str:
    """What the better Index Branch finds, and dense attention."""
    rows = _retrieved(of)
    found = [(one, rows.get((one.model, one.context, "needle", one.budget), {})) for one in own]
    found = [(one, *(100 * row[name]["right_answers"] for name in (one.branch, "dense"))) for one, row in found
             if one.branch in row]
    if not found:
        return "Needles were not measured there."
    contexts, sparse, dense = (_listed(list(words)) for words in zip(*(
        (called(one.context), f"{share:.0f}", f"{of_all:.0f}") for one, share, of_all in found)))
    return f"At {contexts} it finds {sparse} % of the needles, dense attention {dense} %."


def _price(of: Records, model: str) -> list[str]:
    if model not in of.crossover:
        return []
    pays = of.crossover[model]["pays"]
    faster = [f"{f'from {called(pays[work])} on' if pays[work] else 'nowhere'} in {work}"
              for work in ("prefill", "decode", "training")]
    return [f"MSA is faster {_listed(faster)}; the model's own context is {called(POSITIONS[model])}."]


def _first_block(own: list[Answer]) -> str:
    """For which selector, and where it gains most."""
    for whom, names in (("", [one.branch for one in own]), (" for mean keys alone", ["mean-key"] * len(own))):
        gains = [(one.gains[name], called(one.context)) for one, name in zip(own, names) if name in one.gains]
        if gains:
            most, context = max(gains)
            return f"Force the first block{whom}: that gains up to {within(most, '.3f', ' bits')} at {context}."
    return "Force no block: nothing gains."


def took(of: Records):
    """Seconds of the pieces; on a processor, those of the processor."""
    rows = [("model", "context", "text", "where", "pieces", "seconds, all pieces", "of the longest one")]
    for (model, context, kind), pieces in of.found.items():
        by_device = defaultdict(dict)
        for name, record in pieces.items():
            run = record.run["survey"]
            device = run["device"].split(":")[0]
            by_device[device][name] = run.get("seconds" if device == "cuda" else "processor_seconds")
        for device, own in sorted(by_device.items()):
            known = {name: seconds for name, seconds in own.items() if seconds is not None}
            longest = max(known, key=known.get, default=None)
            rows.append((MODELS[model], called(context), kind, "GPU" if device == "cuda" else "CPU", str(len(own)),
                         f"{sum(known.values()):.0f}" + f" ({len(known)} of them)" * (len(known) < len(own)),
                         f"{known[longest]:.0f}, `{longest}`" if known else "-"))
    return rows if len(rows) > 1 else NONE


TABLES = {"ran": ran, "sink": sink, "sink-by-layer": sink_by_layer, "mass": mass, "kinds": kinds, "blocks": blocks,
          "fit": fit, "loss": loss, "by-position": by_position, "asked": asked, "retrieval": retrieval, "advice": advice,
          "layers": layers, "rule": judged_rule, "verdict": verdict, "pays": pays, "answers": answers, "took": took}


def with_tables(text: str, of: Records) -> str:
    def made(at) -> str:
        if at[2] not in TABLES:
            raise Refusal(f"docs/models.md: there is no table {at[2]}; there are: {', '.join(TABLES)}")
        content = TABLES[at[2]](of)
        return at[1] + (content if isinstance(content, str) else markdown(content)) + at[3]

    return _MARKED.sub(made, text)


def write(path: Path, folder: Path) -> None:
    """The page with its tables anew; nothing where there is no page."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    new = with_tables(text, load(folder))
    if new != text:
        part = path.with_name(path.name + ".partial")
        part.write_text(new, encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    write(PAGE, records.FOLDER)
    sys.exit(0)
