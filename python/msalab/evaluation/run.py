# SPDX-License-Identifier: MIT
"""A run of `msalab evaluate`: its units, and which of them this process has."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path

import numpy as np

from .. import selectors
from ..capture.gguf import place_of
from ..capture.layer import CaptureError, require
from . import exercises, text
from .files import sha256
from .results import unit_names
from .scoring import Scorer, Setting
from .shard import Shard, launched, parse_shard
from .units import work


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
    place, how = place_of(options.model)
    msa.register()
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=options.dtype, revision=options.revision,
            device_map=options.device if options.device == "auto" else None,
            output_loading_info=True, **how)
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
    kept = [folder] if folder.is_file() else kept  # a GGUF file
    weights = ({path.name: sha256(path) for path in sorted(kept)} if folder.exists()
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


def plan_of(options, model, settings, layers, sequences) -> dict:
    """What the results need beside the record and the units."""
    return {"model": str(options.model), "device": _device(model), "layers": layers,
            "texts": len(sequences),
            "settings": [{"config": one.name, "selector": one.selector, "budget": one.budget,
                          "top_k": one.rule.top_k, "block_size": one.rule.block_size}
                         for one in settings]}


def _device(model) -> str:
    import torch

    device = model.get_input_embeddings().weight.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def run(options, note) -> dict | None:
    """Writes results.h5, summary.json and the pictures into options.out and returns the summary; of
    a part that others outlast its units, and returns nothing."""
    check_options(options)
    shard, part = parse_shard(options.shard) if options.shard else None, launched()
    require(not (shard and part), "--shard is given, and so are several processes of one run: one of "
            "the two spreads it")
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
    makers = [lambda s=sequence: _text(scorer, s) for sequence in sequences]
    makers += [lambda e=_exercise(options, task, length, number, vocabulary, filler): _answer(
        scorer, e) for task in options.tasks for length in options.lengths
        for number in range(options.exercises)]
    out = Path(options.out)
    record = record_of(options, model, settings)
    plan = plan_of(options, model, settings, scorer.layers, sequences)
    return work(out, shard or part or Shard(0, 1), options, record, plan,
                dict(zip(unit_names(record, plan), makers)), note)


def _text(scorer, sequence) -> dict:
    return vars(scorer(sequence.ids)) | {"bytes": sequence.bytes, "document": sequence.document}


def _exercise(options, task, length, number, vocabulary, filler):
    depth = (number + 0.5) / options.exercises
    return exercises.make_exercise(task, vocabulary, filler, length, depth, options.pairs,
                                   [options.seed, exercises.TASKS.index(task), length, number])


def _answer(scorer, exercise) -> dict:
    """By answer: right bool [C, A], log_likelihood float64 [C, A], depth [A]."""
    scores = scorer(exercise.ids)
    told = [slice(begin - 1, end - 1) for begin, end in exercise.answers]
    return {"right": np.stack([scores.right[:, here].all(1) for here in told], 1),
            "log_likelihood": np.stack([-scores.nats[:, here].sum(1) for here in told], 1),
            "depth": np.full(len(told), exercise.depth)}
