# SPDX-License-Identifier: MIT
"""What MSA would do to a public model, from its folder to the records of docs/models.md, by the rules of
studies/models/README.md.

Each piece of each context and kind of text is a record, and a record that is there is not made again: the same command
goes on where it was stopped. What a record was made from, captures and fits, lies in --work and is made when a missing
record needs it. A piece that fails is said, and the others go on. With --workers, pieces run side by side, of all
contexts and kinds alike.

It ends by writing the tables of docs/models.md anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py

from msalab.arguments import CommandLine
from msalab.ending import Refusal, ended
from msalab.results import Report
from msalab.programs import find_program

from . import page, records, texts

BLOCKS = (64, 32, 128)
BUDGETS = (512, 1024, 2048, 4096)
TASKS = ("needle", "multi_key", "tracking", "definition")
FIRST_EXERCISES, PROMISING = 16, 0.5  # of each task; what a model solves of them, if more are worth a pass
LEAST_RIGHT = 0.8  # of a task that the model solves with its own attention
RETRIEVED = (512, 1024, 2048)  # budgets, of a sixteenth to a half of the context
LOSE = 0.01  # of the mass, that layers may lose with ids of others
STEPS = 1024  # of decode, that a cache sees
SELECTORS = "oracle,mean-key,window,index"  # that a model runs with


def tokens(word: str) -> int:
    """2K is 2048."""
    return int(word[:-1]) * 1024 if word[-1:] in "Kk" else int(word)


def parser() -> CommandLine:
    top = CommandLine(prog="python -m studies.models", description=__doc__, example="python -m studies.models "
                      "results/smollm2 --name smollm2 --corpus results/corpus --context 2K 8K")
    top.add_argument("model", help="folder of a model")
    top.add_argument("--name", required=True, help="of its records")
    top.add_argument("--context", nargs="+", type=tokens, default=[2048], metavar="N", help="2K 8K 16K 32K (2K)")
    top.add_argument("--kinds", nargs="+", choices=texts.KINDS, default=list(texts.KINDS))
    top.add_argument("--pieces", nargs="+", metavar="NAME", help="these alone, in the study's order (all): "
                     f"{' '.join(PIECES)}")
    top.add_argument("--corpus", type=Path, metavar="DIR", help="of ./msalab corpus; for texts that --work has not")
    top.add_argument("--texts-only", action="store_true", help="write the texts into --work, for a machine without corpus")
    top.add_argument("--work", type=Path, default=Path("results/models"), metavar="DIR", help="(results/models)")
    top.add_argument("--records", type=Path, default=records.FOLDER, metavar="DIR", help="(studies/models/records)")
    top.add_argument("--page", type=Path, default=page.PAGE, metavar="FILE", help="(docs/models.md)")
    top.add_argument("--device", default="cpu", help="cpu (default), cuda")
    top.add_argument("--backend", metavar="NAME", help="of the programs (cuda with --device cuda, else their own default)")
    top.add_argument("--learnt", type=int, default=2, metavar="N", help="sequences that are captured (2)")
    top.add_argument("--held-out", type=int, default=6, metavar="N", help="documents that the loss is measured on (6)")
    top.add_argument("--queries", type=int, default=256, metavar="N", help="of each layer that are analysed (256)")
    top.add_argument("--steps", type=int, default=0, metavar="N", help="of a fit (0, the closed form)")
    top.add_argument("--exercises", type=int, default=256, metavar="N", help="of each task that the model may solve; "
                     "a record of fewer is made again (256)")
    top.add_argument("--bytes", action="store_true", help="a model of bytes, without a tokenizer")
    top.add_argument("--workers", type=int, default=1, metavar="N", help="pieces that run at once (1)")
    top.add_argument("--fitters", type=int, default=1, metavar="N", help="processes that share the layers of a fit (1)")
    top.add_argument("--evaluators", type=int, default=1, metavar="N", help="processes that share the exercises of a piece "
                     "(1)")
    top.add_argument("--seconds", type=float, metavar="N", help="no piece begins after so many")
    return top


WRITING = threading.Lock()  # of texts
LOOK = 1.0  # seconds between two looks at what a waiting piece needs


@dataclass(eq=False)
class Survey:
    """The pieces of one context and kind of text."""

    options: object
    context: int
    kind: str

    @property
    def work(self) -> Path:
        return self.options.work / self.options.name / f"{self.context}-{self.kind}"

    @property
    def texts(self) -> dict[str, list[Path]]:
        options = self.options
        with WRITING:
            return texts.write(options.work / "texts", options.corpus, self.kind, self.context, options.learnt,
                               options.held_out)

    @cached_property
    def budgets(self) -> list[int]:
        return [one for one in BUDGETS if one < self.context]

    @property
    def how(self) -> list[str]:
        return ["--device", self.options.device, *["--bytes"] * self.options.bytes]

    @cached_property
    def backend(self) -> list[str]:
        name = self.options.backend or ("cuda" if self.options.device.startswith("cuda") else None)
        return ["--backend", name] if name else []

    @property
    def archive(self) -> Path:
        return records.path_of(self.options.records, self.options.name, self.context)

    def exercises(self, piece: str) -> int:
        return min(FIRST_EXERCISES, self.options.exercises) if piece == "asked" else self.options.exercises

    def record(self, piece: str) -> Report | None:
        """None also of one with fewer exercises than are asked for."""
        found = records.read(self.archive).get((self.kind, piece))
        has_few = found is not None and piece in OF_EXERCISES and (
            min(found["retrieval_total"]["exercises"]) < self.exercises(piece))
        return None if has_few else found

    # What pieces read

    def capture(self) -> Path:
        path = self.work / "capture.h5"
        if not path.exists():
            learnt = [word for one in self.texts["learnt"] for word in ("--text", one)]
            _msalab("capture", self.options.model, *learnt, "--max-tokens", self.context, "--out", path,
                    *self.how)
        return path

    def head_dim(self) -> int:
        with h5py.File(self.capture()) as file:
            return next(iter(file["layers"].values()))["q"].shape[2]

    def fit(self, dim: int) -> Path:
        """The folder of a fit to the captured layers."""
        out = self.work / f"fit-{dim}"
        if not (out / "summary.json").exists():
            # Without --overwrite, which would have one process remove what another has begun
            _program("msa-fit-indexer", self.capture(), "--out", out, "--index-dim", dim, "--steps", self.options.steps,
                     "--block-size", BLOCKS[0], "--top-k", self.budgets[0] // BLOCKS[0], "--eval-queries",
                     self.options.queries, *self.backend, times=self.options.fitters)
            if dim != 64:
                (out / "indexer.h5").unlink(missing_ok=True)  # large, and read by nobody
        return out

    def indexed(self) -> Path:
        """The captured layers with the Index Branch of 64 channels."""
        path = self.fit(64) / "indexer.h5"
        if not path.exists():
            raise Refusal(f"{path} is not there, of an older version of this script: remove {path.parent}")
        return path

    # Pieces: each runs its program, and answers with the folder of its results

    def keeps(self, block: int) -> Path:
        out = self.work / f"keeps-{block}"
        _program("msa-compare", self.capture(), "--out", out, "--selectors", "oracle,mean-key,quest,window,random",
                 "--budgets", ",".join(map(str, self.budgets)), "--block-size", block, "--forced-first", "0,1",
                 "--sample-queries", self.options.queries, *self.backend, "--overwrite")
        return out

    def heads(self) -> Path:
        out = self.work / "heads"
        _program("msa-analyze", self.capture(), "--out", out, "--selectors", "oracle,mean-key", "--block-size",
                 BLOCKS[0], "--top-k", self.budgets[0] // BLOCKS[0], "--sample-queries", self.options.queries,
                 *self.backend, "--overwrite")
        return out

    def evaluate(self, name: str, *words, times: int = 1) -> Path:
        out = self.work / name
        if not (out / "summary.json").exists():  # it resumes by itself
            _msalab("evaluate", self.options.model, "--out", out, "--text", self.texts["held_out"][0], "--context",
                    self.context, *self.how, *words, times=times)
        return out

    def on_text(self, name: str, *words) -> Path:
        return self.evaluate(name, "--sequences", self.options.held_out, "--tasks", "", *words)

    def loss(self, budget: int) -> Path:
        return self.on_text(f"loss-{budget}", "--indexer", self.fit(64), *self.settings(SELECTORS, budget))

    def wide(self, budget: int) -> Path:
        return self.on_text(f"wide-{budget}", "--indexer", self.fit(self.head_dim()), *self.settings("index", budget))

    def settings(self, selectors: str, budget: int) -> list:
        return ["--selectors", selectors, "--block-size", BLOCKS[0], "--budgets", budget, "--forced-first", "0,1"]

    def on_exercises(self, piece: str, tasks: Iterable[str], *words) -> Path:
        """In a folder by their number, since a run with more of them is another one."""
        count = self.exercises(piece)
        return self.evaluate(f"{piece}-of-{count}", "--sequences", 0, "--tasks", ",".join(tasks), "--exercises", count,
                             *words, times=self.options.evaluators)

    def asked(self) -> Path:
        """Which tasks the model may solve with its own attention, by few exercises."""
        return self.on_exercises("asked", TASKS, "--selectors", "")

    def solved(self) -> Path:
        """How much of these tasks it solves."""
        return self.on_exercises("solved", self.right("asked", PROMISING), "--selectors", "")

    def right(self, piece: str, least: float) -> list[str]:
        """Tasks of which the model solves so much with its own attention."""
        found = self.record(piece)
        if found is None:
            raise Refusal(f"needs the piece {piece}")
        dense = found["retrieval_total"].where(config="dense").records()
        tasks = [row["task"] for row in dense if row["right_answers"] >= least]
        if not tasks:
            raise Skipped(f"the model solves no task to {least:.0%}")
        return tasks

    def retrieval(self, wide: bool = False) -> Path:
        """wide: by the Index Branch of the head's own width."""
        self.right("asked", PROMISING)
        tasks = self.right("solved", LEAST_RIGHT)
        if wide and self.head_dim() == 64:
            raise Skipped("its heads have the 64 channels of the other Index Branch")
        budgets = [one for one in RETRIEVED if self.context // 16 <= one <= self.context // 2]
        return self.on_exercises("retrieval-wide" if wide else "retrieval", tasks, "--indexer",
                                 self.fit(self.head_dim() if wide else 64), "--selectors",
                                 "index" if wide else "oracle,mean-key,index", "--block-size", BLOCKS[0], "--budgets",
                                 ",".join(map(str, budgets)), "--forced-first", 1)

    def advice(self) -> Path:
        return self.answer("msa-advise", self.capture(), "advice", "--budgets", self.context // 4, "--block-size", "64",
                           "--top-k", str(self.context // 4 // 64), "--selectors", "mean-key,quest,window",
                           "--sample-queries", self.options.queries, *self.backend)

    def reuse(self) -> Path:
        path = self.indexed()
        with h5py.File(path) as file:  # a model's windowed layers are not in it
            layers = ",".join(sorted(file["layers"], key=int))
        return self.answer("msa-reuse", path, "reuse", "--layers", layers, *self.kept(), "--lose", LOSE,
                           "--sample-queries", self.options.queries, *self.backend)

    def precision(self) -> Path:
        return self.answer("msa-precision", self.capture(), "precision", "--indexer", self.fit(64) / "results.h5",
                           *self.kept(), "--formats", "e4m3,int8", "--scales", "none,token", "--rotations", "none",
                           "--sample-queries", self.options.queries, *self.backend)

    def cache(self) -> Path:
        """Of the last positions, where something is left out at every step."""
        ids, least = self.work / "cache-ids", self.budgets[0] // BLOCKS[0]
        _program("msa-analyze", self.indexed(), "--out", ids, "--selectors", "index", *self.kept(), "--positions",
                 f"{self.context - min(STEPS, self.context // 2)}:{self.context}", *self.backend, "--overwrite")
        sizes = sorted({max(least, self.context // BLOCKS[0] // parts) for parts in (4, 2)})
        return self.answer("msa-cache", ids / "results.h5", "cache", "--sizes", ",".join(map(str, sizes)))

    def kept(self) -> list:
        return ["--block-size", BLOCKS[0], "--top-k", self.budgets[0] // BLOCKS[0]]

    def answer(self, program: str, read: Path, name: str, *words) -> Path:
        """Of a program whose exit code 2 says that nothing reaches its target."""
        out = self.work / name
        (out / "summary.json").unlink(missing_ok=True)
        _program(program, read, "--out", out, *words, "--overwrite", answer=out / "summary.json")
        return out

    def advised(self) -> Path:
        if not (self.work / "advice/summary.json").exists():
            self.advice()
        return self.on_text("advised", "--from-advice", self.work / "advice")


def by_budget(name: str, made: Callable[[Survey, int], Path]) -> dict[str, Callable[[Survey], Path]]:
    return {f"{name}-{budget}": lambda one, budget=budget: made(one, budget) for budget in BUDGETS}


# In the order in which they are worth most.
PIECES: dict[str, Callable[[Survey], Path]] = {
    "keeps-64": lambda one: one.keeps(64), "heads": Survey.heads, "fit-64": lambda one: one.fit(64),
    **by_budget("loss", Survey.loss), "asked": Survey.asked, "solved": Survey.solved, "retrieval": Survey.retrieval,
    "fit-wide": lambda one: one.fit(one.head_dim()), **by_budget("wide", Survey.wide),
    "retrieval-wide": lambda one: one.retrieval(wide=True), "advice": Survey.advice,
    "advised": Survey.advised, "keeps-32": lambda one: one.keeps(32), "keeps-128": lambda one: one.keeps(128),
    "reuse": Survey.reuse, "precision": Survey.precision, "cache": Survey.cache}


OF_EXERCISES = ("asked", "solved", "retrieval", "retrieval-wide")


def belongs(piece: str, context: int) -> bool:
    """A budget of the whole context leaves nothing out; what is retrieved with more than half of it says little."""
    name, _, number = piece.partition("-")
    if name == "retrieval":
        return RETRIEVED[0] <= context // 2
    return name not in ("loss", "wide") or int(number) < context


# What several pieces read, and the first of them makes.
SHARED = {"keeps": ("capture",), "heads": ("capture",), "fit": ("capture", "{piece}"), "loss": ("capture", "fit-64"),
          "wide": ("capture", "fit-wide"), "asked": ("asked",), "solved": ("asked", "solved"),
          "retrieval": ("capture", "fit-64", "asked", "solved"),
          "retrieval-wide": ("capture", "fit-wide", "asked", "solved"),
          "advice": ("capture", "advice"), "advised": ("capture", "advice"),
          **dict.fromkeys(("reuse", "precision", "cache"), ("capture", "fit-64"))}


def shared(survey: Survey, piece: str) -> set[str]:
    """What of it is not there yet."""
    names = {name.format(piece=piece) for name in SHARED.get(piece) or SHARED[records.piece_of(piece)]}
    return {name for name in names if not _is_there(survey, name)}


def _is_there(survey: Survey, name: str) -> bool:
    capture = survey.work / "capture.h5"
    if name == "capture":
        return capture.exists()
    if name in OF_EXERCISES:
        return survey.record(name) is not None
    if name == "fit-wide":
        return capture.exists() and (survey.work / f"fit-{survey.head_dim()}/summary.json").exists()
    return (survey.work / name / "summary.json").exists()


class Skipped(Exception):
    """The piece has no answer for this model, by the rules."""


def _environment() -> dict:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # this package, also in a child


_own = threading.local()  # of the piece that a thread runs: processor seconds of its programs


def _run(called: str, *words, answer: Path | None = None, times: int = 1) -> None:
    """answer: with it, what the program answers is no failure. times: so many processes share the work."""
    children = [subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, env=_environment())
                for _ in range(times)]
    for child in children:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        _own.seconds = getattr(_own, "seconds", 0) + used.ru_utime + used.ru_stime
    code = max((child.returncode for child in children), key=abs)
    if code and not (answer and answer.exists()):
        raise Refusal(f"{called} ended with exit code {code}; its message is above")


def _program(name: str, *words, answer: Path | None = None, times: int = 1) -> None:
    _run(name, find_program(name), *words, answer=answer, times=times)


def _msalab(*words, times: int = 1) -> None:
    _run(f"msalab {words[0]}", sys.executable, "-m", "msalab", *words, times=times)


def heads_of(path: Path) -> dict:
    """The table `heads`, which msa-analyze has in its results.h5 alone: the dense probability on token 0."""
    with h5py.File(path) as file:
        rows = [{"layer": int(layer), "head": head, "sink_mass_dense": float(value)}
                for layer, of in sorted(file["metrics/dense"].items(), key=lambda one: int(one[0]))
                for head, value in enumerate(of["sink_mass"][()])]
    return {"about": "mean dense probability on token 0, by query head", "key": ["layer", "head"],
            "columns": ["layer", "head", "sink_mass_dense"], "rows": rows}


def summary_of(piece: str, folder: Path) -> dict:
    content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if piece != "heads":
        return content
    table = heads_of(folder / "results.h5")
    table["columns"][2] = "head_sink"  # a plain number here, an estimate in the other table
    for row in table["rows"]:
        row["head_sink"] = row.pop("sink_mass_dense")
    content["columns"] |= {"head": {"type": "integer", "unit": "", "definition": "query head, from 0"},
                           "head_sink": {"type": "real", "unit": "probability", "definition": table["about"]}}
    content["tables"]["heads"] = table
    return content


def do(survey: Survey, piece: str) -> None:
    """Makes the record of a piece."""
    began, _own.seconds = time.monotonic(), 0
    content = records.slim(summary_of(piece, PIECES[piece](survey)), piece)
    took = {"seconds": round(time.monotonic() - began, 1), "processor_seconds": round(_own.seconds, 1)}
    content["run"]["survey"] = {
        "context": survey.context, "kind": survey.kind, "device": survey.options.device,
        **(took if _own.seconds else {}),  # nothing ran where another call has ended the piece
        "load": [round(one, 1) for one in os.getloadavg()], "workers": survey.options.workers,
        "evaluators": survey.options.evaluators if piece in OF_EXERCISES else 1}
    records.write(survey.archive, survey.kind, piece, content)


def price(model: str, name: str, path: Path) -> None:
    """From which context on MSA pays: no piece, since it reads no text."""
    done = subprocess.run([sys.executable, "-m", "msalab", "crossover", model, "--json"], stdout=subprocess.PIPE,
                          env=_environment())
    if done.returncode:
        raise Refusal(f"msalab crossover ended with exit code {done.returncode}; its message is above")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json.loads(done.stdout) | {"model": name}, separators=(",", ":")), encoding="utf-8")


class Queue:
    """Pieces in order, --workers at once; one waits while another makes what both read."""

    def __init__(self, options, waiting: list[tuple[Survey, str]]):
        self.options, self.waiting = options, waiting
        self.running: list[tuple[Survey, str]] = []
        self.changed = threading.Condition()
        self.began = time.monotonic()

    def run(self) -> int:
        """How many failed."""
        with ThreadPoolExecutor(self.options.workers) as pool:
            workers = [pool.submit(lambda: sum(map(self._failed, self._turns()))) for _ in range(self.options.workers)]
            try:
                return sum(worker.result() for worker in workers)
            finally:
                with self.changed:
                    self.waiting.clear()  # of an interrupt, or a fault of this script
                    self.changed.notify_all()

    def _free(self, survey: Survey, piece: str) -> bool:
        return not any(one is survey and shared(survey, piece) & shared(survey, other) for one, other in self.running)

    def _turns(self) -> Iterator[tuple[Survey, str]]:
        """What a worker does, until nothing waits."""
        while True:
            with self.changed:
                while (turn := next((one for one in self.waiting if self._free(*one)), None)) is None:
                    if not self.waiting:
                        return
                    self.changed.wait(LOOK)  # what others wait for may be there before its piece ends
                self.waiting.remove(turn)
                self.running.append(turn)
            try:
                yield turn
            finally:
                with self.changed:
                    self.running.remove(turn)
                    self.changed.notify_all()

    def _failed(self, turn: tuple[Survey, str]) -> bool:
        survey, piece = turn
        said = f"{self.options.name} {survey.context} {survey.kind} {piece}"
        if self.options.seconds is not None and time.monotonic() - self.began > self.options.seconds:
            print(f"{said}: not begun, {self.options.seconds:.0f} s are over", file=sys.stderr)
            return False
        try:
            survey.work.mkdir(parents=True, exist_ok=True)
            do(survey, piece)
            print(f"{said}: {survey.archive}", file=sys.stderr, flush=True)
        except Skipped as why:
            print(f"{said}: left out, {why}", file=sys.stderr)
        except Refusal as why:
            print(f"{said}: {why}", file=sys.stderr)
            return True
        return False


def _work(options) -> int:
    unknown = set(options.pieces or []) - set(PIECES)
    if unknown:
        raise Refusal(f"--pieces has {' '.join(sorted(unknown))}; there are: {' '.join(PIECES)}")
    config = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))
    most = config.get("max_position_embeddings", max(options.context))
    for context in options.context:
        if not BUDGETS[0] < context <= most:
            raise Refusal(f"--context is {context}, must be more than {BUDGETS[0]} and at most the model's {most} positions")
    surveys = [Survey(options, context, kind) for context in options.context for kind in options.kinds]
    if options.texts_only:
        for survey in surveys:
            print(*survey.texts["learnt"], *survey.texts["held_out"], sep="\n")
        return 0
    priced = options.records / options.name / "crossover.json"
    if not priced.exists():
        price(options.model, options.name, priced)
    failed = Queue(options, [(survey, piece) for survey in surveys for piece in PIECES
                             if (not options.pieces or piece in options.pieces) and belongs(piece, survey.context)
                             and survey.record(piece) is None]).run()
    page.write(options.page, options.records)
    return 1 if failed else 0


def main(arguments=None) -> int:
    options = parser().parse_args(arguments)
    return ended(lambda: _work(options), options, interrupted="interrupted; the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
