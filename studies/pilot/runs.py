# SPDX-License-Identifier: MIT
"""The runs of `msa-pretrain --sweep`: a folder ARM/seed-S for each, with the summary.json and
curves.csv of the run, or diverged.json alone; or a file runs.tar.xz with these folders."""

from __future__ import annotations

import csv
import io
import lzma
import math
import re
import tarfile
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from msalab import results
from msalab.results import ResultsError, blamed

PACKED = re.compile(r"[\w-]+/seed-\d+/(summary\.json|curves\.csv|diverged\.json)")
HEADER = ["step", "group", "name", "part", "value"]
# Options that the runs of an arm have alike, and two runs that are compared.
SHARED = ("files", "held_out_text", "context", "sequences", "exercises", "tasks", "pairs",
          "questions", "hops", "eval_sequences", "eval_exercises")
EMERGED = 0.5  # exact match of recall from which copying is said to have emerged
STALLED = 4 * math.log(2)  # nats a byte, half of what guessing pays: above, a run has not learned
ON_TOKEN = 0.1  # probability from which a head is said to give its mass to one place
# Means over layers of the probes, at the end and at the first one.
PROBED = ("entropy_dense", "entropy_sparse", "entropy_index", "sink_mass_dense", "sink_mass_sparse",
          "score_recall", "block_recall", "mass_kept", "kl", "first_block_rate")
LATER = ("local_rate", "far_overlap")  # of every run with MSA; the oldest records lack them


@dataclass(frozen=True)
class Run:
    path: Path
    answer: results.Report | None  # of its summary.json; None where the run diverged
    curves: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]  # (name, part) -> steps, values

    @property
    def diverged(self) -> bool:
        return self.answer is None

    @property
    def options(self) -> dict:
        return self.answer.run["options"]

    @property
    def bytes_per_step(self) -> int:
        return self.options["sequences"] * self.options["context"]

    def parts(self, name: str) -> list[str]:
        return [part for known, part in self.curves if known == name]

    @cached_property
    def values(self) -> dict[str, float]:
        return values_of(self)


Records = dict[str, dict[int, Run]]  # arm -> seed -> run


def read_points(path: Path):
    """(step, group, name, part, value) of every line of a curves.csv; ResultsError names the line
    that is no point, or whose step is not behind the one before."""
    last: dict[tuple[str, ...], int] = {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        if next(rows, None) != HEADER:
            raise ResultsError(f"{path}: line 1 must be {','.join(HEADER)}")
        for number, row in enumerate(rows, 2):
            try:
                step, *names, value = row
                group, name, part = names
                point = int(step), group, name, part, float(value)
            except ValueError:
                raise ResultsError(f"{path}: line {number} must be {','.join(HEADER)}, "
                                   f"not {','.join(row)!r}") from None
            before = last.setdefault((group, name, part), -1)
            if before >= point[0]:
                raise ResultsError(f"{path}: line {number}: step {step} of {name} {part} must come "
                                   f"after {before}")
            last[group, name, part] = point[0]
            yield point


def _read_curves(path: Path) -> dict:
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for step, _, name, part, value in read_points(path):
        points.setdefault((name, part), []).append((step, value))
    return {key: (np.array([step for step, _ in found]), np.array([value for _, value in found]))
            for key, found in points.items()}


def _read_run(folder: Path) -> Run:
    if (folder / "diverged.json").exists():
        return Run(folder, None, {})
    summary_path, curves_path = folder / "summary.json", folder / "curves.csv"
    answer = results.open(summary_path, "msa-pretrain")
    with blamed(curves_path, "is damaged"):
        run = Run(folder, answer, _read_curves(curves_path))
    for name in ("loss", "gradient_norm", "bits_per_byte"):
        if (name, "") not in run.curves:
            raise ResultsError(f"{curves_path}: has no {name}")
    with blamed(summary_path, "is damaged"):
        trained = answer["trained"].row()
        steps, bits = trained["last_step"], trained["bits_per_byte"]
        run.values  # noqa: B018: has all that is compared
        at, measured = run.curves["bits_per_byte", ""]
        same = int(at[-1]) == int(steps) and math.isclose(measured[-1], bits, rel_tol=1e-4)
    if not same:
        raise ResultsError(f"{curves_path}: ends with {measured[-1]:g} bits per byte at step "
                           f"{at[-1]}, {summary_path.name} with {bits:g} at {steps}")
    return run


def _read_arm(folder: Path) -> dict[int, Run]:
    runs = {}
    for path in sorted(folder.glob("*")):
        found = re.fullmatch(r"seed-(\d+)", path.name)
        if not path.is_dir() or not found:
            raise ResultsError(f"{path}: must be a folder seed-S")
        runs[int(found[1])] = _read_run(path)
    return runs


def _read_packed(archive: Path) -> Records:
    with tempfile.TemporaryDirectory() as unpacked:
        with blamed(archive, "is damaged"), tarfile.open(
                fileobj=io.BytesIO(lzma.decompress(archive.read_bytes()))) as tar:
            for member in tar:
                if not PACKED.fullmatch(member.name):
                    raise ResultsError(f"{archive}: has {member.name}, must have files of ARM/seed-S")
                path = Path(unpacked, member.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(tar.extractfile(member).read())
        try:
            return {arm.name: {seed: replace(run, path=archive / arm.name / run.path.name)
                               for seed, run in _read_arm(arm).items()}
                    for arm in sorted(Path(unpacked).iterdir())}
        except ResultsError as error:
            raise ResultsError(str(error).replace(unpacked, str(archive))) from None


def read_records(folder) -> Records:
    """Every ARM/seed-S in `folder` and in its runs.tar.xz; ResultsError naming the file that breaks a
    rule."""
    folder = Path(folder)
    archive = folder / "runs.tar.xz"
    records = {path.name: runs for path in sorted(folder.glob("*")) if path.is_dir()
               if (runs := _read_arm(path))}
    packed = _read_packed(archive) if archive.exists() else {}
    for arm in packed:
        if arm in records:
            raise ResultsError(f"{archive}: there is a folder {arm} as well")
    records = dict(sorted((records | packed).items()))
    if not records:
        raise ResultsError(f"{folder}: has no folder ARM/seed-S")
    for seeds in records.values():
        runs = [run for run in seeds.values() if not run.diverged]
        for run in runs[1:]:
            require_comparable(run, runs[0])
    return records


def require_comparable(run: Run, other: Run) -> None:
    """ResultsError where they did not read and answer the same texts in the same way."""
    for name in SHARED:
        ours, theirs = (one.options.get(name) for one in (run, other))
        if ours != theirs:
            raise ResultsError(f"{run.path / 'summary.json'}: {name} is {ours}, must be {theirs} as in {other.path}")


def _mean_over_steps(points) -> float:
    """The area below a curve over the steps that it covers."""
    steps, values = points
    if len(steps) < 2:
        return math.nan
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))


def emergence_step(run: Run) -> float:
    """The first evaluation at which copying has emerged; NaN where it has not."""
    steps, matched = run.curves.get(("exact_match", "recall"), (np.array([]), np.array([])))
    late = steps[matched >= EMERGED]
    return float(late[0]) if len(late) else math.nan


def chance_of_first_block(options: dict, neighbours: int = 0, chosen: float = 0.0) -> float:
    """How often the first block would be chosen if all but the forced local blocks were drawn by
    chance: mean over queries that see more than k blocks. `neighbours`: so many blocks are not drawn,
    of which a query chooses `chosen`."""
    blocks = options["context"] // options["block_size"]
    fixed = options["forced_local"] + neighbours
    free = options["top_k"] - options["forced_local"] - chosen
    seen = np.arange(options["top_k"] + 1, blocks + 1)
    return float(np.mean(free / (seen - fixed)))


def masses_of(heads: results.Table) -> tuple[np.ndarray, np.ndarray]:
    """Of each head what the learnable sink gets, NaN without one, and token 0, in the attention that their layer does."""
    sparse, dense = heads["head_sink_mass_sparse"], heads["head_sink_mass_dense"]
    return heads["head_learned_sink_mass"], np.where(np.isnan(sparse), dense, sparse)


def _of_heads(heads: results.Table) -> dict[str, float]:
    """The share of heads that give more than ON_TOKEN of their probability to the learnable sink, and to token 0;
    nothing for records without heads."""
    shares = {}
    for name, masses in zip(("heads on the sink", "heads on token 0"), masses_of(heads)):
        masses = masses[~np.isnan(masses)]
        if len(masses):
            shares[name] = float(np.mean(masses > ON_TOKEN))
    return shares


def values_of(run: Run) -> dict[str, float]:
    """Every number by which a run is compared; losses in nats, NaN where there is none. Without what
    its answer has no number for, as of a file of which no byte was held out."""
    if run.diverged:
        return {"diverged": 1.0}
    found = {name: value for name, value in _of_tables(run.answer).items() if not math.isnan(value)}
    return {"diverged": 0.0} | found | _of_curves(run)


def _of_tables(answer: results.Report) -> dict[str, float]:
    values = {"bits_per_byte": answer["trained"].row()["bits_per_byte"]}
    for row in answer["positions"].records():
        values[f"bits_per_byte {row['first_position']}-{row['end_position']}"] = row["bits_per_byte"]
    for row in answer["files"].records():
        values[f"bits_per_byte of {row['file']}"] = row["bits_per_byte"]
    for name in ("exact_match", "log_likelihood"):
        for row in answer["tasks"].records():
            values[f"{name} {row['task']}"] = row[name]
    return values


def _of_curves(run: Run) -> dict[str, float]:
    options, curves, values = run.options, run.curves, {}
    values["bytes_until_copying"] = emergence_step(run) * run.bytes_per_step
    for step, bits in zip(*curves["bits_per_byte", ""]):
        values[f"bits_per_byte at step {step}"] = float(bits)
    values["training_loss"] = _mean_over_steps(curves["loss", ""])
    steps, losses = curves["loss", ""]
    last = slice(-max(2, len(steps) // 10), None)
    values["training_loss of the last tenth"] = _mean_over_steps((steps[last], losses[last]))
    steps, norms = curves["gradient_norm", ""]
    late = norms[steps >= min(options["lr_warmup"], steps[-1])]
    values["gradient_norm"] = float(late.mean())
    values["gradient_spike"] = float(np.log2(late.max() / np.median(late)))
    values["stalled"] = float(values["training_loss of the last tenth"] > STALLED)
    for name in (*PROBED, *LATER, "learned_sink_mass"):
        ends = [curves[name, part][1] for part in run.parts(name)]
        if ends:
            values[name] = float(np.mean([end[-1] for end in ends]))
            values[f"first {name}"] = float(np.mean([end[0] for end in ends]))
    values |= _of_heads(run.answer["heads"])
    values["uniform attention"] = float(np.mean(1 / np.arange(1, options["context"] + 1)))
    if options["attention"] != "msa":
        return values
    values["chance"] = chance_of_first_block(options)
    if "local_rate" in values:
        values["chance given the neighbour"] = chance_of_first_block(options, 1,
                                                                     values["local_rate"])
    values["one half"] = 0.5
    losses = [curves["kl_loss", part] for part in run.parts("kl_loss")]
    in_warmup = [kl[(steps > 0) & (steps < options["warmup_steps"])] for steps, kl in losses]
    if losses and len(in_warmup[0]):
        values["kl_loss at step 0"] = float(np.mean([kl[0] for _, kl in losses]))
        values["kl_loss at the end of warm-up"] = float(np.mean([kl[-1] for kl in in_warmup]))
    return values
