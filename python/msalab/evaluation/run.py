# SPDX-License-Identifier: MIT
"""A run of `msalab evaluate`: units, and the results made of them."""

from __future__ import annotations

import json
import math
from importlib import metadata
from pathlib import Path

import numpy as np

from .. import selectors
from ..capture.layer import CaptureError, require
from ..plots.evaluation import draw_all
from . import exercises, text
from .files import Units, sha256, write_h5, write_json
from .intervals import RESAMPLES, SHARE, ratio_interval
from .scoring import DENSE, Scorer, Setting

FORMAT, VERSION = "msalab-evaluation", 1
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


def settings_of(options) -> list[Setting]:
    """Every selector at every budget. CaptureError naming the option."""
    names = options.selector or ["mean-key", "window", "oracle"]
    if options.indexer is not None and "index" not in names:
        names = ["index", *names]
    known = [*selectors.SCORES, "index"]
    unknown = [name for name in names if name not in known]
    require(not unknown, f"--selector names {', '.join(unknown)}; there are: {', '.join(known)}")
    require("index" not in names or options.indexer is not None,
            "--selector index needs --indexer, the results.h5 of msa-fit-indexer")
    require(len(set(names)) == len(names), "--selector names one twice")
    size = options.block_size
    require(size >= 1, f"--block-size is {size}, must be at least 1")
    if options.top_k is not None:
        counts = options.top_k
    else:
        for budget in options.budgets:
            require(budget >= size and budget % size == 0, f"--budgets has {budget}, must be a "
                    f"multiple of --block-size = {size}")
        counts = [budget // size for budget in options.budgets]
    require(len(set(counts)) == len(counts), "a budget is named twice")
    first, local = options.forced_first, options.forced_local
    require(first >= 0, f"--forced-first is {first}, must be at least 0")
    require(local >= 1, f"--forced-local is {local}, must be at least 1")
    require(first + local <= min(counts), f"--forced-first and --forced-local are {first + local} "
            f"blocks, must be at most the least budget, {min(counts)} blocks")
    return [Setting(name, selectors.Rule(size, count, first, local))
            for name in names for count in sorted(counts)]


def check_options(options):
    for name, least in (("context", 2), ("sequences", 0), ("exercises", 1), ("depths", 1),
                        ("pairs", 1), ("seed", 0)):
        value = getattr(options, name)
        require(value >= least, f"--{name} is {value}, must be at least {least}")
    unknown = [task for task in options.tasks if task not in exercises.TASKS]
    require(not unknown, f"--tasks names {', '.join(unknown)}; there are: "
            f"{', '.join(exercises.TASKS)}")
    require(options.sequences or options.tasks, "--sequences 0 and no tasks: nothing to do")


def load(options):
    import transformers

    from .. import transformers as msa
    from ..capture.transformers_model import check_device

    check_device(options.device)
    msa.register()
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=options.dtype, revision=options.revision,
            device_map=options.device if options.device == "auto" else None,
            output_loading_info=True)
    except Exception as error:  # the library raises errors of many types
        raise CaptureError(f"{options.model} cannot be loaded: {error}") from error
    finally:
        transformers.logging.set_verbosity(before)
    missing = sorted(found["missing_keys"])
    require(not missing, f"{options.model}: {len(missing)} weights are missing, the first is "
            f"{missing[:1]}; random ones would stand in for them")
    return model if options.device == "auto" else model.to(options.device)


def _check_positions(options, model):
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    for name, values in (("context", [options.context]), ("lengths", options.lengths)):
        for value in values:
            require(value <= most, f"--{name} has {value}, must be at most {most}, the positions of "
                    "the model")


def record_of(options, model, settings) -> dict:
    """Which run this is: what decides its numbers."""
    folder = Path(options.model)
    kept = (*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.json"))
    weights = ({path.name: sha256(path) for path in sorted(kept)} if folder.is_dir()
               else {"commit": str(getattr(model.config, "_commit_hash", None))})
    files = [Path(path) for path in options.text]
    if options.indexer is not None:
        given = Path(options.indexer)
        files.append(given / "results.h5" if given.is_dir() else given)
    inputs: dict[str, str] = {}
    for path in files:
        require(path.is_file(), f"{path}: no such file")
        name, copy = path.name, 2
        while name in inputs:
            name, copy = f"{path.name} ({copy})", copy + 1
        inputs[name] = sha256(path)
    names = ("block_size", "forced_first", "forced_local", "dense_layers", "context",
             "sequences", "tasks", "lengths", "exercises", "depths", "pairs", "dtype", "bytes")
    return {"program": "msalab evaluate", "commit": _version(), "compiler": _software(),
            "model": weights, "inputs": inputs, "seed": options.seed,
            "options": {name: getattr(options, name) for name in names} |
                       {"configs": [setting.name for setting in settings]}}


def _version() -> str:
    try:
        return f"msalab {metadata.version('msalab')}"
    except metadata.PackageNotFoundError:
        return "unknown"  # a copy of the package that is not installed


def _software() -> str:
    import torch
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"


def run(options, note) -> dict:
    """Writes results.h5, summary.json and the pictures into options.out; returns the summary."""
    check_options(options)
    settings = settings_of(options)
    documents = text.read_documents(options.text)
    vocabulary = text.Bytes() if options.bytes else text.Tokenizer(options.model, options.revision)
    model = load(options)
    scorer = Scorer(model, settings, options.indexer, options.dense_layers)
    sequences = text.cut(documents, vocabulary, options.context, options.sequences)
    require(sequences or not options.sequences, "the text has no sequence of two tokens")
    options.lengths = options.lengths or [options.context]
    _check_positions(options, model)
    filler = [vocabulary.with_bytes(document)[0] for document in documents] if options.tasks else []
    planned = [(task, length, [_exercise(options, task, length, number, vocabulary, filler)
                               for number in range(options.exercises)])
               for task in options.tasks for length in options.lengths]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    units = Units(out / "results.h5", record_of(options, model, settings), options.resume,
                  options.overwrite)
    try:
        texts = []
        for number, sequence in enumerate(sequences):
            note(f"sequence {number + 1}/{len(sequences)}, {len(sequence.ids)} tokens")
            texts.append(units.get(f"text {number}", lambda s=sequence: vars(scorer(s.ids))))
        tasks = []
        for task, length, all_of_it in planned:
            note(f"{task}, {len(all_of_it)} exercises of {length} tokens")
            tasks.append(units.get(f"{task} {length}", lambda e=all_of_it: _answer(scorer, e)))
        summary = summarise(options, settings, scorer.layers, sequences, texts, planned, tasks)
        record = json.loads((units.folder / "run.json").read_text("utf-8"))
        whole = units.folder / "results.h5"
        write_h5(whole, lambda file: _fill(file, record, settings, sequences, texts, planned,
                                           tasks))
        whole.replace(out / whole.name)
        write_json(out / "summary.json", summary)
        draw_all(summary, out)
        units.done()
    finally:
        units.close()
    return summary


def _exercise(options, task, length, number, vocabulary, filler):
    depth = (number + 0.5) / options.exercises
    return exercises.make_exercise(task, vocabulary, filler, length, depth, options.pairs,
                                   [options.seed, exercises.TASKS.index(task), length, number])


def _answer(scorer, all_of_it) -> dict:
    """By answer: right bool [C, A], log_likelihood float64 [C, A], exercise and depth [A]."""
    right, likelihood, of, depth = [], [], [], []
    for number, exercise in enumerate(all_of_it):
        scores = scorer(exercise.ids)
        for begin, end in exercise.answers:
            right.append(scores.right[:, begin - 1:end - 1].all(1))
            likelihood.append(-scores.nats[:, begin - 1:end - 1].sum(1))
            of.append(number)
            depth.append(exercise.depth)
    return {"right": np.stack(right, 1), "log_likelihood": np.stack(likelihood, 1),
            "exercise": np.asarray(of), "depth": np.asarray(depth)}


def _fill(file, record, settings, sequences, texts, planned, tasks):
    file.attrs["format"], file.attrs["format_version"] = "msa-results", 2
    run_group = file.create_group("run")
    for name, value in record.items():
        run_group.attrs[name] = value if isinstance(value, (str, int)) else json.dumps(value)
    run_group.attrs["definitions"] = json.dumps(DEFINITIONS)
    names = [DENSE, *(setting.name for setting in settings)]
    file["configs"] = names

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
        add("evaluate/text/bytes", np.concatenate([one.bytes for one in sequences]), "token",
            "byte", "UTF-8 bytes of each; NaN where they are not known")
        add("evaluate/text/document", [one.document for one in sequences], "sequence", "1",
            "document of each sequence")
        add("evaluate/text/layer_error", np.stack([one["layer_error"] for one in texts]),
            "sequence,config,layer", "1", DEFINITIONS["layer_error"])
    for (task, length, _), found in zip(planned, tasks):
        for name, values in found.items():
            add(f"evaluate/retrieval/{task}@{length}/{name}", values,
                "config,answer" if values.ndim == 2 else "answer",
                "nat" if name == "log_likelihood" else "1", DEFINITIONS.get(name, name))
    file["done"] = [f"text {number}" for number in range(len(texts))] + [
        f"{task} {length}" for task, length, _ in planned]


def _number(value):
    return float(value) if value is not None and math.isfinite(value) else None


def summarise(options, settings, layers, sequences, texts, planned, tasks) -> dict:
    names = [DENSE, *(setting.name for setting in settings)]
    described = [{"config": DENSE}, *({
        "config": setting.name, "selector": setting.selector, "budget": setting.budget,
        "top_k": setting.rule.top_k, "block_size": setting.rule.block_size}
        for setting in settings)]
    by_position, resampled = [], None
    if texts:
        resampled = "documents" if len({one.document for one in sequences}) > 1 else "sequences"
        clusters = [one.document if resampled == "documents" else number
                    for number, one in enumerate(sequences)]
        _describe_text(options, described, clusters, sequences, texts)
        by_position = _by_position(options, names, clusters, texts)
    return {"format": FORMAT, "format_version": VERSION, "model": str(options.model),
            "options": {"context": options.context, "block_size": options.block_size,
                        "dense_layers": options.dense_layers, "seed": options.seed},
            "definitions": DEFINITIONS, "layers": layers, "sequences": len(texts),
            "tokens": int(sum(one["nats"].shape[1] for one in texts)),
            "documents": len({one.document for one in sequences}), "resampled": resampled,
            "configs": described, "by_position": by_position,
            "retrieval": [row for (task, length, _), found in zip(planned, tasks)
                          for row in _retrieval(options, names, task, length, found)]}


def _clustered(values, clusters) -> np.ndarray:
    """Sums of one value per sequence by cluster."""
    return np.bincount(np.unique(clusters, return_inverse=True)[1], weights=values)


def _describe_text(options, described, clusters, sequences, texts):
    tokens = [one["nats"].shape[1] for one in texts]
    total_bytes = sum(one.bytes.sum() for one in sequences)
    for row, config in enumerate(described):
        bits = sum(one["nats"][row].sum() for one in texts) / math.log(2)
        config["bits_per_token"] = bits / sum(tokens)
        config["bits_per_byte"] = _number(bits / total_bytes if total_bytes else math.nan)
        config["perplexity"] = _number(np.exp2(config["bits_per_token"]))
        if row == 0:
            continue
        excess = [(one["nats"][row] - one["nats"][0]).sum() / math.log(2) for one in texts]
        config["excess"] = ratio_interval(_clustered(excess, clusters),
                                          _clustered(tokens, clusters), options.seed)
        errors = np.mean([one["layer_error"][row - 1] for one in texts], 0)
        config["layer_error"] = [_number(error) for error in errors]


def _by_position(options, names, clusters, texts) -> list[dict]:
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
                    options.seed)
        first, end = end, 2 * end
    return rows


def _retrieval(options, names, task, length, found) -> list[dict]:
    rows = []
    for part in range(options.depths):
        low, high = part / options.depths, (part + 1) / options.depths
        here = np.minimum((found["depth"] * options.depths).astype(int), options.depths - 1) == part
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
                        _clustered(values[row] - values[0], exercise), answers, options.seed)
    return rows
