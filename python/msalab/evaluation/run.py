# SPDX-License-Identifier: MIT
"""A run of `msalab evaluate`, and its units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from .. import advice as advices
from .. import indexer as indexers
from .. import rounding, selectors
from ..arguments import counted, note_if_dense, refuse_unknown
from ..capture.fitted import file_of
from ..capture.gguf import not_loaded, place_of
from ..capture.layer import require
from ..operations import _msalab, backend_of
from ..progress import Progress
from ..results import Report
from . import exercises, text
from .files import require_folder, sha256
from .results import unit_names
from .scoring import Scorer, Setting
from .units import PROGRAM, work


def settings_of(options, note) -> list[Setting]:
    """Every selector at every budget, with and without forced first blocks, and the advice; then all of them in each
    element type. CaptureError naming the option."""
    names = _selectors_of(options)
    fitted = None if options.indexer is None else indexers.rule(options.indexer)
    size, counts = _sizes_of(options, fitted)
    local = options.forced_local
    if local is None:
        local = 1 if fitted is None else fitted.forced_local
    require(local >= 1, f"--forced-local is {local}, must be at least 1")
    firsts = options.forced_first or [0, 1]
    require(min(firsts) >= 0, f"--forced-first is {min(firsts)}, must be at least 0")
    most = max(options.forced_first) if options.forced_first else 0
    require(most + local <= min(counts), f"--forced-first and --forced-local are "
            f"{counted(most + local, 'blocks')}, must be at most the least budget, {counted(min(counts), 'blocks')}")
    if fitted is not None:
        _note_fit(fitted, size, local, note)
    found: dict[str, Setting] = {}
    for name in names:
        own = firsts
        if selectors.sharing(name)[0] == "index" and options.forced_first is None:
            own = sorted({*firsts, fitted.forced_first})
        for count in sorted(counts):
            for first in own:
                if first + local <= count:
                    one = _setting(name, selectors.Rule(size, count, first, local), options)
                    found.setdefault(one.name, one)
    if options.from_advice is not None:
        found["advice"] = Setting("advice", "advice", advices.read(options.from_advice),
                                  tuple(options.dense_layers))
    require(found or not options.element, "--element is of settings, and --selectors names none")
    for element in options.element or []:
        found |= {f"{name},{element}": replace(one, name=f"{name},{element}", element=element)
                  for name, one in found.items() if one.element is None}
    require(found or not names, "the selector index keeps "
            f"{fitted and counted(fitted.forced_first + local, 'blocks')} in any case, more than each budget has")
    return list(found.values())


def _selectors_of(options) -> list[str]:
    names = options.selectors
    if names is None:
        names = [] if options.from_advice else ["mean-key", "window", "oracle"]
        if options.indexer is not None and not options.from_advice:
            names = ["index", *names]
    known = [*selectors.SCORES, "index"]
    bare = [selectors.sharing(name)[0] for name in names]
    require(set(bare) <= set(known), refuse_unknown(bare, known, "--selectors names"))
    require("index" not in bare or options.indexer is not None,
            "--selectors index needs --indexer, the results.h5 of msa-fit-indexer")
    return names


def _sizes_of(options, fitted) -> tuple[int, list[int]]:
    """Tokens of a block, and the budgets in blocks."""
    size = options.block_size
    if size is None:
        size = 128 if fitted is None else fitted.block_size
    require(size >= 1, f"--block-size is {size}, must be at least 1")
    if options.top_k is not None:
        counts = options.top_k
    else:
        budgets = options.budgets or ([512, 1024] if fitted is None else [fitted.tokens])
        for budget in budgets:
            require(budget >= size and budget % size == 0, f"--budgets has {budget}, must be a "
                    f"multiple of --block-size = {size}")
        counts = [budget // size for budget in budgets]
    require(len(set(counts)) == len(counts), "a budget is named twice")
    return size, counts


def _note_fit(fitted, size, local, note):
    note(f"the Index Branch was fitted for {counted(fitted.top_k, 'blocks')} of {fitted.block_size} tokens, the first "
         f"{fitted.forced_first} and the newest {fitted.forced_local} forced")
    for what, asked, own in (("blocks of {} tokens", size, fitted.block_size),
                             ("the newest {} forced", local, fitted.forced_local)):
        if asked != own:
            note(f"note: it selects with {what.format(asked)} instead, as asked")


def _setting(name, rule, options) -> Setting:
    selector, shares = selectors.sharing(name)
    first = selectors.held_first(rule, selector)
    rule = replace(rule, forced_first=first)
    text = f"{name}@{rule.tokens}" + (f",first={first}" if first else "")
    return Setting(text, name, selectors.Choice(selector, rule, **shares), tuple(options.dense_layers))


@dataclass(frozen=True)
class Variant:
    """A setting with one more layer dense, or with one alone sparse."""

    setting: Setting
    of: str
    one: str
    layer: int


def variants_of(settings, plans, one: str | None) -> list[Variant]:
    found = []
    for setting, plan in zip(settings, plans):
        for layer in plan.sparse if one else []:
            others = [number for number in plan.sparse if number != layer]
            dense = (*setting.dense_layers, *([layer] if one == "dense" else others))
            found.append(Variant(replace(setting, name=f"{setting.name},{one}={layer}",
                                         dense_layers=dense), setting.name, one, layer))
    return found


def check_options(options):
    for name, least in (("context", 2), ("sequences", 0), ("exercises", 1), ("depths", 1),
                        ("pairs", 1), ("seed", 0)):
        value = getattr(options, name)
        require(value >= least, f"--{name} is {value}, must be at least {least}")
    for name in ("selectors", "element", "tasks", "lengths"):
        values = getattr(options, name) or []
        require(len(set(values)) == len(values), f"--{name} names one twice")
    least = min(options.lengths or [1])
    require(least >= 1, f"--lengths has {least}, must be at least 1")
    unknown = [task for task in options.tasks if task not in exercises.TASKS]
    require(not unknown, refuse_unknown(options.tasks, exercises.TASKS, "--tasks names"))
    unknown = refuse_unknown(options.element or [], rounding.ELEMENTS, "--element names")
    require(not unknown, unknown)
    require(not options.sensitivity or options.sequences, "--sensitivity is of text, and --sequences is 0")
    require(options.sequences or options.tasks, "--sequences 0 and no tasks: nothing to do")


def load(options, unexpected: set | None = None):
    """unexpected: takes the names of tensors that the model has no place for."""
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
        raise not_loaded(options.model, error) from error
    finally:
        transformers.logging.set_verbosity(before)
    missing = sorted(found["missing_keys"])
    require(not missing, f"{options.model}: {len(missing)} weights are missing, the first is "
            f"{missing[:1]}; random ones would stand in for them")
    if unexpected is not None:
        unexpected |= set(found["unexpected_keys"])
    return model if options.device == "auto" else model.to(options.device)


def _check_positions(options, model):
    from ..capture.transformers_model import check_positions, positions_of

    check_positions("--context is", options.context, positions_of(model))
    for length in options.lengths:
        check_positions("--lengths has", length, positions_of(model))


def record_of(options, model, settings) -> dict:
    """Which run this is: what decides its numbers."""
    files = [Path(path) for path in options.text]
    if options.indexer is not None:
        files.append(file_of(options.indexer))
    if options.from_advice is not None:
        given = Path(options.from_advice)
        files.append(given / "summary.json" if given.is_dir() else given)
    inputs: dict[str, str] = {}
    for path in files:
        require(path.is_file(), f"{path}: no such file")
        name, copy = path.name, 2
        while name in inputs:
            name, copy = f"{path.name} ({copy})", copy + 1
        inputs[name] = sha256(path)
    names = ("dense_layers", "sensitivity", "context", "sequences", "tasks", "lengths", "exercises", "depths", "pairs", "dtype", "bytes")
    return {"program": PROGRAM, "commit": version(), "compiler": software(),
            "model": model_sums(options.model, model), "inputs": inputs, "seed": options.seed,
            "options": {name: getattr(options, name) for name in names} |
                       {"configs": [_described(setting) for setting in settings]}}


def model_sums(name, model) -> dict:
    """sha256 of the files of a model, or its commit on the hub."""
    folder = Path(name)
    if not folder.exists():
        return {"commit": str(getattr(model.config, "_commit_hash", None))}
    kept = (*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.json"))
    kept = [folder] if folder.is_file() else kept  # a GGUF file
    return {path.name: sha256(path) for path in sorted(kept)}


def version() -> str:
    """The commit that the compiled module was built of; of a build that knows none, the release."""
    if _msalab.commit != "unknown":
        return _msalab.commit
    try:
        return f"msalab {metadata.version('msalab')}"
    except metadata.PackageNotFoundError:
        return "unknown"  # a copy of the package that is not installed


def software() -> str:
    import torch
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"


def _described(setting) -> dict:
    """A setting in results: what differs by layer is in `layers`."""
    found = {"config": setting.name, "selector": setting.selector, "budget": setting.budget,
             "forced_first": setting.forced_first, "element": setting.element}
    if not isinstance(setting.how, dict):
        return found | vars(setting.how.rule)
    return found | {"layers": {str(layer): one and {"selector": one.selector} | vars(one.rule)
                               for layer, one in setting.how.items()}}


def plan_of(options, model, settings, variants, layers, sequences) -> dict:
    """What the results need beside the record and the units."""
    return {"model": str(options.model), "device": device_name(model.get_input_embeddings().weight.device),
            "layers": layers,
            "texts": len(sequences),
            "first": max((int(one.foretold[0]) - 1 for one in sequences), default=0),
            "settings": [_described(one) for one in settings],
            "variants": [{"config": one.setting.name, "of": one.of, "one": one.one,
                          "layer": one.layer} for one in variants]}


def device_name(device) -> str:
    """Of a torch.device, as records have it."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def run(options, note) -> Report:
    """The answer. It, the pictures and results.h5 are in options.out, written by this process or by another one of
    the same run."""
    check_options(options)
    require_folder(options.out)
    settings = settings_of(options, note)
    documents = text.read_documents(options.text)
    vocabulary = text.vocabulary_of(options)()
    model = load(options)
    scorer = Scorer(model, settings, options.indexer)
    variants = variants_of(settings, scorer.plans, options.sensitivity)
    scorer.add([one.setting for one in variants])
    sequences = text.cut(documents, vocabulary, options.context, options.sequences)
    require(sequences or not options.sequences, "the text has no sequence of two tokens")
    options.lengths = options.lengths or [options.context]
    _check_positions(options, model)
    longest = max([*(options.lengths if options.tasks else []), *(len(sequence.ids) for sequence in sequences)])
    for budget in sorted({min(rule.tokens for rule in one.rules()) for one in settings}):
        note_if_dense(budget, longest, note)
    note_if_plain(scorer, model.get_input_embeddings().weight, note)
    record = record_of(options, model, settings)
    plan = plan_of(options, model, settings, variants, scorer.layers, sequences)
    watch = Watch(scorer, note)
    units = [(len(sequence.ids), lambda s=sequence: _text(scorer, s, len(settings)))
             for sequence in sequences]
    for task in options.tasks:
        for length in options.lengths:
            exercises.require_room(task, vocabulary, *_of_exercise(options, task, length, 0))
            units += [(length, lambda *which: _answer(scorer, _exercise(options, *which, vocabulary, documents),
                                                      len(settings)), task, length, number)
                      for number in range(options.exercises)]
    makers = {name: watch.watched(name, tokens, 1 + len(
        scorer.settings if name.startswith("text") else settings), partial(make, *which))
        for name, (tokens, make, *which) in zip(unit_names(record, plan), units)}
    return work(Path(options.out), options, record, plan, makers, note, watch)


PLAIN = "index_select_any"


def note_if_plain(scorer, like, note):
    """Says where an Index Branch has no fast kernel on the device of `like`, which a first call of it shows."""
    import torch

    from .. import torch as m

    known = set()
    for setting, plan in zip(scorer.settings, scorer.plans):
        for branch, rule in ((one.branch, one.rule) for one in plan.layers.values() if one.branch is not None):
            sizes = branch.groups, len(branch.w_k), rule
            if sizes in known:
                continue
            known.add(sizes)
            q = torch.zeros(rule.block_size, *sizes[:2], dtype=like.dtype if like.is_cuda else torch.float32,
                            device=like.device)
            m.index_select(q, q.new_zeros(rule.block_size, sizes[1]), rule.top_k, block_size=rule.block_size,
                           forced_first=rule.forced_first, forced_local=rule.forced_local)
            kernel, _, why = backend_of(q).answered_by.partition("; ")
            if kernel == PLAIN:
                note(f"note: {setting.name}: the Index Branch selects by the plain kernel, many times slower than another "
                     f"would ({why})")


class Watch:
    """How far a run is: a pass of the model over a unit counts its tokens."""

    def __init__(self, scorer, note):
        self._note, self._work, self._now = note, {}, ("", 0)
        self._progress = Progress(note, 1)
        scorer.tell = self._passed

    def watched(self, name, tokens, passes, make):
        self._work[name] = tokens * passes

        def made():
            self._now = name, tokens
            return make()

        return made

    def begin(self, names):
        self._progress = Progress(self._note, sum(self._work[name] for name in names))

    def count(self, names):
        """Others have done these."""
        self._progress.count(sum(self._work[name] for name in names))

    def left(self) -> str:
        return self._progress.left()

    def _passed(self, setting):
        name, tokens = self._now
        self._progress.advance(tokens, f"  {name}, {setting}")


def _text(scorer, sequence, settings: int) -> dict:
    scores = scorer(sequence.ids, sequence.foretold)
    rows = 1 + settings
    return {"nats": scores.nats[:rows], "right": scores.right[:rows],
            "layer_error": scores.layer_error[:settings], "variants": scores.nats[rows:],
            "bytes": sequence.bytes, "document": sequence.document}


def _of_exercise(options, task, length, number) -> tuple:
    """Its length, depth, pairs and seed."""
    return (length, (number + 0.5) / options.exercises, options.pairs,
            [options.seed, exercises.TASKS.index(task), length, number])


def _exercise(options, task, length, number, vocabulary, documents):
    return exercises.make_exercise(task, vocabulary, documents, *_of_exercise(options, task, length, number))


def _answer(scorer, exercise, settings: int) -> dict:
    """By answer: right bool [C, A], log_likelihood float64 [C, A], depth [A]."""
    scores = scorer(exercise.ids, np.concatenate([np.arange(*answer) for answer in exercise.answers]),
                    settings, by_layer=False)
    begins = np.cumsum([0, *(end - begin for begin, end in exercise.answers[:-1])])
    return {"right": np.logical_and.reduceat(scores.right, begins, 1),
            "log_likelihood": -np.add.reduceat(scores.nats.astype(float), begins, 1),
            "depth": np.full(len(begins), exercise.depth)}
