# SPDX-License-Identifier: MIT
"""A run of `msalab train`: its steps, its curves, and what it goes on from."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from argparse import Namespace
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from .. import indexer as indexers
from ..arguments import counted, note_if_dense, refuse_unknown
from ..capture.fitted import file_of
from ..capture.gguf import place_of, storable
from ..capture.layer import CaptureError, require
from ..capture.partial_file import PartialFile
from ..capture.transformers_model import check_positions, own_dtype, positions_of
from ..evaluation import text
from ..evaluation.files import alone_in, read_json, remove_folder, same_or_refused, sha256, write_json
from ..evaluation.run import device_name, load, model_sums, software, version
from ..progress import Progress
from ..report import content
from ..selectors import Rule
from . import attention as attentions
from . import checkpoint, data, unread
from .columns import AVERAGED, LAST_SHARE, SHAPES
from .learner import (Group, Learner, check_logits, clip, compile_parts, keep_no_activations, make_optimizer, set_rates,
                      shard)
from .replay import Passes, why_no_graph

DECIDE = ("attention", "block_size", "top_k", "forced_first", "forced_local", "index_dim", "index_norm", "index_rotary",
          "dense_layers", "steps", "warmup", "detach", "kl_weight", "kl_support", "lr", "index_lr", "lr_warmup",
          "weight_decay", "clip", "context", "batch", "dtype", "compile", "cuda_graph", "bytes", "diverged",
          "probe_every", "log_every")
MAY_CHANGE = ("device", "options cuda_graph", "options log_every")  # of a run that goes on
FINISHED, STOPPED, DIVERGED = 0, 130, 3  # exit codes
SMOOTH = 0.1  # share of the newest loss in the smoothed one


class Curves:
    """OUT/curves.csv as msa-pretrain has it: step,group,name,part,value."""

    HEADER = "step,group,name,part,value\n"

    def __init__(self, path: Path, kept: list[str]):
        """kept: lines of a run that goes on; what else stands there goes."""
        self._path = path
        with PartialFile(path, overwrite=True) as file:
            file.write((self.HEADER + "".join(kept)).encode())
            file.finish()
        self._file = open(path, "ab", buffering=0)

    @staticmethod
    def before(path: Path, step: int) -> list[str]:
        """Lines of the steps before; a last one that is cut off is none. CaptureError unless all are there."""
        try:
            lines = path.read_bytes().decode().splitlines(True)[1:] if path.exists() else []
        except UnicodeDecodeError as error:
            raise CaptureError(f"{path}: is damaged, and no UTF-8 text: {error}") from error
        kept, seen = [], set()
        for number, line in enumerate(lines, 2):
            if not line.endswith("\n"):
                continue
            found = re.fullmatch(r"([0-9]{1,18}),(\w+),(\w+),\w*,[-+.e0-9]+\n", line)
            require(found, f"{path}: line {number} is damaged: {line[:60]!r} is no {Curves.HEADER.strip()}")
            if int(found[1]) < step:
                kept.append(line)
                seen |= {int(found[1])} if found[3] == "loss" else set()
        lacks = next((number for number in range(step) if number not in seen), None)
        require(lacks is None, f"{path}: is damaged: it has no loss of step {lacks}; --overwrite begins anew")
        return kept

    def add(self, step: int, group: str, values):
        lines = (f"{step},{group},{name},{part},{value:.7g}\n" for name, part, value in values if math.isfinite(value))
        rest = memoryview("".join(lines).encode())
        try:
            while rest:
                rest = rest[self._file.write(rest):]
        except OSError as error:
            raise CaptureError(f"{self._path}: {error.strerror}") from error

    def wait(self):
        """Until its lines are on the device."""
        os.fsync(self._file.fileno())


def answer(out: Path, tokens: int) -> dict:
    """The content of summary.json, of a run that has ended. tokens: of a step."""
    lines = [line.split(",") for line in (out / "curves.csv").read_text().splitlines()[1:]]
    steps = 1 + max(int(line[0]) for line in lines)

    def mean(name):
        values = [float(line[4]) for line in lines
                  if line[2] == name and int(line[0]) >= (1 - LAST_SHARE) * (steps - 1)]
        return sum(values) / len(values) if values else None

    record = json.loads((out / "run.json").read_text())
    row = {"last_step": steps, "trained_tokens": steps * tokens} | {f"last_{name}": mean(name) for name in AVERAGED}
    return content(record, f"{counted(steps, 'steps')} of training with --attention {record['options']['attention']}", SHAPES,
                   {"trained": [row]}, {})


@dataclass
class Health:
    """Is the loss where it has been? smooth, least: in nats a token, of this stage."""

    smooth: float | None = None
    least: float = math.inf

    def add(self, loss: float):
        self.smooth = loss if self.smooth is None else (1 - SMOOTH) * self.smooth + SMOOTH * loss
        self.least = min(self.least, self.smooth)

    def above(self, loss: float | None = None) -> float:
        """Rise of the smoothed loss, or of one that is higher, over the least."""
        return max(value for value in (self.smooth, loss) if value is not None) - self.least


def check_options(options):
    for name, least in (("steps", 1), ("context", 2), ("batch", 1), ("rows", 1), ("seed", 0), ("lr_warmup", 0),
                        ("save_every", 1), ("log_every", 1), ("probe_every", 0), ("index_dim", 1)):
        value = getattr(options, name)
        require(value >= least, f"--{name.replace('_', '-')} is {value}, must be at least {least}")
    for name in ("lr", "index_lr", "clip", "diverged"):
        value = getattr(options, name)
        require(value > 0 and math.isfinite(value), f"--{name.replace('_', '-')} is {value}, must be above 0")
    for name in ("kl_weight", "weight_decay"):
        value = getattr(options, name)
        require(0 <= value < math.inf, f"--{name.replace('_', '-')} is {value}, must be a number of at least 0")
    given = options.warmup is not None
    require(options.attention == "msa" or not given and options.indexer is None, "--warmup-steps and --indexer are of "
            "--attention msa")
    if not given:
        options.warmup = _usual_warmup(vars(options))
    require(0 <= options.warmup <= options.steps, f"--warmup-steps is {options.warmup}, must be from 0 to --steps = "
            f"{options.steps}")


def _usual_warmup(options: dict) -> int:
    return options["steps"] // 10 if options["attention"] == "msa" else 0


def rule_of(options) -> Rule:
    """The fit's, or the defaults, but for what is asked."""
    rule = Rule() if options.indexer is None else indexers.rule(options.indexer)
    for name in vars(rule):
        if getattr(options, name) is None:
            setattr(options, name, getattr(rule, name))
    return Rule(*(getattr(options, name) for name in vars(rule)))


def record_of(options, device, model, rows) -> dict:
    """Which run this is: what decides its numbers."""
    inputs = {"tokens": rows.sum()}
    if options.indexer is not None:
        inputs["indexer"] = sha256(file_of(options.indexer))
    return {"program": "msalab train", "commit": version(), "compiler": software(),
            "device": device_name(device), "model": model_sums(options.model, model), "inputs": inputs,
            "seed": options.seed,
            "options": {name: getattr(options, name) for name in DECIDE}}


def _has_usual_warmup(record) -> bool:
    try:
        return record["options"]["warmup"] == _usual_warmup(record["options"])
    except (KeyError, TypeError):
        return False  # no record of a run


def check_folder(out: Path, record: dict, options):
    """Raises CaptureError if OUT holds anything but the run to be resumed; otherwise adds that run's devices to the
    record."""
    path = out / "run.json"
    if not path.exists():
        require({one.name for one in out.iterdir()} <= {"run.json.partial"},  # of a run that was killed
                f"{out}: exists, and holds no run of msalab train")
    elif not options.overwrite:
        require(options.resume, f"{out}: holds a run; --resume goes on with it, --overwrite replaces it")
        before = read_json(path)
        derived = _has_usual_warmup(before) and _has_usual_warmup(record)
        same_or_refused(str(path), before, json.loads(json.dumps(record)),
                        "; --resume needs the options and the build of msalab as recorded, --overwrite begins anew",
                        MAY_CHANGE + ("options warmup",) * derived)
        devices = str(before.get("device", "unknown")).split(", ")
        record["device"] = ", ".join(dict.fromkeys([*devices, record["device"]]))


def begin_folder(out: Path, record: dict, options):
    """Creates the run's folder, after its first good step. Removes an overwritten run's files, and diverged.json."""
    (out / "diverged.json").unlink(missing_ok=True)
    if options.overwrite:
        checkpoint.clear(out)
        if (out / "model").exists():
            remove_folder(out / "model")
        for name in ("summary.json", "curves.csv"):
            (out / name).unlink(missing_ok=True)
    write_json(out / "run.json", record)


def write_tokens(options, note) -> int:
    with PartialFile(options.tokens_out, options.overwrite) as file:  # refuses before the text is read
        rows = data.read(options.data, text.vocabulary_of(options), options.context, note)
        data.write(rows, file)
    note(f"{options.tokens_out}: {counted(len(rows.tokens), 'tokens')}, "
         f"{counted(len(rows.begins), 'documents')}")
    return FINISHED


class Training:
    """A model on its way. note(): of the first process."""

    def __init__(self, options, group: Group, note):
        self.options, self.group, self.note = options, group, note
        self.out, self.rule, self.health = Path(options.out), rule_of(options), Health()
        self.dtype = getattr(torch, options.dtype)
        require(self.dtype == torch.float32 or group.device.type == "cuda", "--dtype must be float32 on the CPU")
        share = options.batch / group.size / options.rows
        require(share == int(share), f"--batch is {options.batch}, must be a multiple of "
                f"{counted(group.size, 'processes')} times --rows = {options.rows}")
        self.micros = int(share)
        attentions.check_config(options)
        self.words = text.vocabulary_of(options)()
        self.rows = data.read(options.data, lambda: self.words, options.context, note)
        require(len(self.rows) >= options.batch, f"the text has {len(self.rows)} rows of --context = "
                f"{options.context} tokens, fewer than --batch = {options.batch}")
        self._load()

    def _load(self):
        options = self.options
        dtype = own_dtype("auto", place_of(options.model)[1])
        unexpected: set[str] = set()
        model = storable(load(Namespace(model=options.model, revision=options.revision, dtype=dtype,
                                         device="cpu"), unexpected))
        self.others = unread.candidates(options.model, options.revision, model, unexpected)
        check_positions("--context is", options.context, positions_of(model))
        size = len(model.get_input_embeddings().weight)
        require(self.rows.tokens.max() < size, f"the text has token {self.rows.tokens.max()}; the vocabulary of "
                f"{options.model} is 0 to {size - 1}")
        check_logits(model)
        self.types = {name: one.dtype for name, one in model.state_dict().items()} | {"": model.dtype}
        model = model.float()
        modules, windows, layers = attentions.trainable(model, options)
        if layers:
            note_if_dense(self.rule.tokens, self.rows.longest, self.note)
        is_msa = options.attention == "msa"
        self.forms = attentions.forms_of(model, layers, options) if is_msa else {}
        self.branches = {number: attentions.branch_of(form) for number, form in self.forms.items()}
        if windows:
            self.note(f"note: layers {sorted(windows)} have a sliding window, which they keep")
        if layers and all(module.num_key_value_groups == 1 for module in modules.values()):
            self.note("note: the model has no grouped queries: each head selects blocks of its own")
        with self.group.together():
            if self.group.rank == 0:
                self.record = record_of(options, self.group.device, model, self.rows)
                check_folder(self.out, self.record, options)
        self.attention = attentions.Attention(options.attention, self.rule, frozenset(options.dense_layers),
                                              options.detach, options.kl_support == "full")
        attentions.attach(modules, windows, model, self.attention, self.branches)
        attentions.check_documents(model, self.attention)
        if options.checkpointing:
            keep_no_activations(model, self.attention)
        self.learner = Learner(model.to(self.group.device), self.attention)
        if self.group.device.type == "cuda" and (options.warmup or options.attention == "dense" or options.dense_layers):
            attentions.note_if_plain(modules, self.dtype, self.group.device, self.note)
        if options.compile:
            compile_parts(self.learner, options.cuda_graph)
        shard(self.learner, self.group, self.dtype)
        self.optimizer = make_optimizer(self.learner, options)
        why_not = why_no_graph(self.learner, self.group.device, options.compile)
        require(not options.cuda_graph or why_not is None, f"--cuda-graph: {why_not}")
        self.passes = Passes(self.learner, self.micros, options.kl_weight, options.cuda_graph, self.note)

    def save(self, step: int):
        checkpoint.save(self.out, self.group, self.learner, self.optimizer, {"step": step} | asdict(self.health))
        self.save_model(step)

    def save_model(self, step: int):
        checkpoint.save_model(self.out, self.group, self.learner, self.branches, self.forms, self.rule, self.words,
                              self.types, self.others, step)

    def go_on(self) -> tuple[int, list[str]]:
        """The steps that are done, and their curves. A run that was killed within a save gets the rest of it."""
        group, out = self.group, self.out
        found = None if self.options.overwrite else checkpoint.load(out, group, self.learner, self.optimizer)
        if found is None:
            return 0, []
        state, progress = found
        step = progress.pop("step")
        self.health = Health(**progress)
        lines, is_stale = [], False
        with group.together():
            require(step <= self.options.steps, f"{state}: is behind --steps = {self.options.steps}")
            if group.rank == 0:
                lines = Curves.before(out / "curves.csv", step)
                checkpoint.clear(out, state)
                is_stale = not checkpoint.is_model_of(out, state)
        if group.gathered(is_stale)[0]:
            self.save_model(step)
        return step, lines

    def run(self, wants_stop) -> int:
        options = self.options
        begin, lines = self.go_on()
        curves = None
        progress, tokens = Progress(self.note, options.steps - begin), options.batch * options.context
        started, saved = time.monotonic(), begin
        for step in range(begin, options.steps):
            if step == options.warmup:
                self.health = Health()
            began = time.monotonic()
            loss, values, probes, stop = self.step(step, wants_stop())
            if not math.isfinite(loss) or not all(math.isfinite(value) for *_, value in values):
                return self._diverge(step, f"the loss is {loss:.4g}, or a gradient is not finite", saved)
            if step == begin and self.group.rank == 0:
                begin_folder(self.out, self.record, options)
                curves = Curves(self.out / "curves.csv", lines)
            self.health.add(loss)
            if curves:
                curves.add(step, "train", [("loss", "", loss)])
                if step % options.log_every == 0 or step + 1 == options.steps:
                    rate = tokens / (time.monotonic() - began)
                    curves.add(step, "train", [*values, ("tokens_per_second", "", rate)])
                curves.add(step, "probe", probes)
            if self.health.above() > options.diverged:
                return self._diverge(step, f"the loss rose from {self.health.least:.4g} to "
                                     f"{self.health.smooth:.4g}", saved)
            stop = stop or time.monotonic() - started > options.seconds
            done, good = step + 1, self.health.above(loss) <= options.diverged / 2
            if good and (stop or done - saved >= options.save_every) or done == options.steps:
                if curves:
                    curves.wait()  # a state without its curves would be refused
                self.save(done)
                saved = done
            progress.advance(1, f"step {done}, loss {loss:.4f}")
            if stop and done < options.steps:
                self.note(f"stopped behind step {done}; --resume goes on")
                return STOPPED
        if self.group.rank == 0:
            found = answer(self.out, tokens)
            write_json(self.out / "summary.json", found)
            (trained,) = found["tables"]["trained"]["rows"]
            self.note(f"{self.out}/model: {counted(trained['last_step'], 'steps')}, loss {trained['last_loss']:.4f} in the "
                      "last tenth")
        return FINISHED

    def step(self, step: int, wants_stop: bool):
        """(loss in nats a token, [(name, part, value)] of the curves, of the probe, does a process want to
        stop)."""
        options, group, attention = self.options, self.group, self.attention
        attention.warming = step < options.warmup
        self.learner.train(not attention.warming)
        set_rates(self.optimizer, step, options)
        rows = self.rows.order(step, options.batch, options.seed)
        targets = int((self.rows.batch(rows)[2] != data.NO_TARGET).sum())
        each, nats, probes = len(rows) // group.size, 0.0, []
        kl = torch.zeros(len(self.branches), dtype=torch.float64, device=group.device)
        mine = rows[group.rank * each:(group.rank + 1) * each]
        is_probed = options.probe_every and (step % options.probe_every == 0 or step + 1 == options.steps)
        for micro in range(self.micros):
            some = mine[micro * options.rows:(micro + 1) * options.rows]
            torch.manual_seed(hash((options.seed, step, some[0])))  # of dropout
            loss, probe = self._backward(some, targets, bool(is_probed) and micro == group.rank == 0)
            nats += loss
            probes += probe
            if attention.kl:
                kl += torch.stack([value.detach() for value in attention.kl.values()]).double() / self.micros
        norms = clip(self.optimizer, options.clip)
        self.optimizer.step()  # behind a gradient that is not finite the run ends, and leaves what was saved
        self.optimizer.zero_grad()
        nats, wishes, *kls = group.summed([nats, wants_stop, *kl])  # the host waits here alone
        values = [("learning_rate", "", self.optimizer.param_groups[0]["lr"])]
        values += [(("index_" if of_index else "") + "gradient_norm", "", float(norm))
                   for of_index, norm in norms.items()]
        values += [("kl_loss", layer, value / group.size) for layer, value in zip(attention.kl, kls)]
        return nats / max(targets, 1), values, probes, wishes > 0

    def _backward(self, rows, targets: int, measure: bool):
        """(nats, probes) of a micro-batch, whose gradients are added to the others'. The host does not wait for
        the GPU: while that computes, the next micro-batch is made ready."""
        tokens, cu, told = self.rows.batch(rows)
        starts = torch.tensor(cu[:-1]).repeat_interleave(torch.tensor(cu).diff())
        share = self.group.size / max(targets, 1)  # processes take the mean of their gradients
        nats = self.passes(cu, *map(self._moved, (
            torch.from_numpy(tokens), torch.arange(len(tokens)) - starts, torch.from_numpy(told),
            torch.tensor(share, dtype=torch.float32))), measure=measure)
        return nats.double(), self.passes.measured if measure else []

    def _moved(self, tensor):
        """To the device, without waiting for it."""
        device = self.group.device
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    def _diverge(self, step: int, why: str, saved: int) -> int:
        kept = f"{self.out}/model has the weights behind step {saved}, the last good ones" if saved else (
            "nothing was saved before")
        self.note(f"error: step {step}: {why}: diverged; {kept}")
        if step and self.group.rank == 0:  # the first step leaves nothing, as where it fails
            write_json(self.out / "diverged.json", {"step": step, "why": why, "kept": saved})
        return DIVERGED


@contextmanager
def stop_asked():
    """A function that says whether SIGTERM or SIGINT has come."""
    asked = []
    before = {number: signal.signal(number, lambda *_: asked.append(True))
              for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(options, note) -> int:
    """The exit code: finished, stopped or diverged."""
    require(options.out is not None, "--out is missing")
    require(options.device != "auto", "--device is auto, must be one device: cpu or cuda")
    require(options.attention in attentions.KINDS,
            refuse_unknown([options.attention], attentions.KINDS, "--attention is"))
    check_options(options)
    torch.use_deterministic_algorithms(options.deterministic)
    transformers.logging.disable_progress_bar()
    group = Group(options.device)
    try:
        with stop_asked() as wants_stop, alone_in(Path(options.out)) if group.rank == 0 else nullcontext():
            quiet = note if group.rank == 0 else lambda _: None
            return Training(options, group, quiet).run(wants_stop)
    finally:
        group.close()
