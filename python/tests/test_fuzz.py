# SPDX-License-Identifier: MIT
"""Damaged files and odd command lines: every command of msalab that is Python ends with exit code 0, or
with 2 and a message, and leaves nothing half-written. Fixed seeds; every case runs in a process of its
own. MSALAB_FUZZ=20 in the environment makes 20 times as many cases."""

import contextlib
import io
import json
import os
import re
import resource
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import h5py
import make_cost
import make_evaluation
import numpy as np
import pytest
from make_checkpoint import make_checkpoint
from make_fit import make_fit
from make_results import Case, make_results
from test_capture_files import Fake, random_layer

import msalab.__main__
import msalab.plots.__main__
import msalab.plots.report
from msalab.capture import capture
from msalab.capture.__main__ import main as run_capture
from msalab.evaluation.__main__ import main as run_evaluation
from msalab.plots.report import Shown
from studies.pilot import figures
from studies.pilot.__main__ import main as pilot
from studies.pilot.make_runs import write_arm

MEMORY = 4 << 30  # bytes more than a process has when it starts
SECONDS = 20
ROUNDS = int(os.environ.get("MSALAB_FUZZ", "1"))


def run_plots(arguments):
    """Draws all pictures, and saves none, which would take most of the time."""
    def save(picture, _):
        return Shown(picture.name, picture.layer, picture.selector, "")

    with patch.object(msalab.plots.report, "_save", save):
        return msalab.plots.__main__.main(arguments)


def run_pilot(arguments):
    """Draws no picture: `pictures` is a generator, which draws as it is walked."""
    with patch.object(figures, "pictures", lambda _: ()):
        return pilot(arguments)


def exit_code(program, arguments, folder: Path) -> tuple[int, str]:
    """Of `program` in a process of its own, and what it wrote on standard error; a signal's number
    is negative."""
    errors = folder / "stderr"
    child = os.fork()
    if child == 0:
        code = 99
        with open(errors, "w", errors="backslashreplace") as stream, \
                contextlib.redirect_stderr(stream), contextlib.redirect_stdout(io.StringIO()):
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
                sys.stdin = io.StringIO("words")
                code = program(arguments)
            except SystemExit as end:
                code = end.code
            except BaseException as error:
                print(f"Traceback: {type(error).__name__}: {error}", file=stream)
            finally:
                stream.flush()
                os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), errors.read_text(errors="replace")


def ends_well(program, arguments, folder: Path, what: str) -> int:
    code, errors = exit_code(program, arguments, folder)
    assert code in (0, 2), f"{what}: exit code {code}: {' '.join(arguments)}\n{errors[-2000:]}"
    if code == 2:
        assert errors.strip().splitlines()[-1:] and "error: " in errors, f"{what}: {errors[-2000:]}"
    assert not [name for name in os.listdir(folder) if "partial" in name], what
    return code


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Kind -> (a file, the program that reads it, its arguments; {} is the file)."""
    folder = tmp_path_factory.mktemp("whole")

    def layer(tokens, number):
        return random_layer(tokens, number, index_dim=16)

    capture(Fake(layer), [range(30), range(9)], folder / "a.h5", [1, 2])
    arrays = {f"layers.0.{name}": getattr(random_layer(20), name) for name in "qkv"}
    arrays["cu_seqlens"] = np.array([0, 12, 20])
    np.savez(folder / "a.npz", **arrays)
    assert run_capture(["convert", str(folder / "a.h5"), "--out",
                           str(folder / "a.safetensors")]) == 0
    np.save(folder / "x_q.npy", random_layer(20).q)
    for name in "kv":
        np.save(folder / f"x_{name}.npy", random_layer(20).k)
    make_results(folder / "r.h5", Case(lengths=(96,), layers=(3,), selectors=("oracle", "window")))
    make_fit(folder / "fit.h5")
    made = make_cost.write_all(folder)
    evaluation = folder / "evaluation.json"
    evaluation.write_text(json.dumps(make_evaluation.made(make_evaluation.rows_of())))
    results = str(folder / "r.h5")
    rest = [str(folder / f"x_{name}.npy") for name in "kv"]
    convert, post = ("convert", "{}"), ("--state", "post_rope", "--out", "{out}.h5")
    return {
        "h5": (folder / "a.h5", run_capture, (*convert, "--out", "{out}.safetensors")),
        "checkpoint": (make_checkpoint(folder / "checkpoint.h5"), run_capture,
                       (*convert, "--out", "{out}")),
        "npz": (folder / "a.npz", run_capture, (*convert, *post)),
        "safetensors": (folder / "a.safetensors", run_capture, (*convert, *post)),
        "npy": (folder / "x_q.npy", run_capture,
                (*convert, *rest, "--names", "x_{{field}}", *post)),
        "results": (folder / "r.h5", run_plots, ("{}", "--out", "{out}")),
        "fit": (folder / "fit.h5", run_plots, (results, "--fit", "{}", "--out", "{out}")),
        "evaluation": (evaluation, run_plots,
                       (results, "--evaluate", "{}", "--out", "{out}")),
        "compare": (Path(made["compare"]), run_plots,
                    (results, "--compare", "{}", "--out", "{out}")),
        "advise": (Path(made["advise"]), run_plots,
                   (results, "--advise", "{}", "--out", "{out}")),
        "cache": (Path(made["cache"]), run_plots, (results, "--cache", "{}", "--out", "{out}")),
        "reuse": (Path(made["reuse"]), run_plots, (results, "--reuse", "{}", "--out", "{out}")),
        "precision": (Path(made["precision"]), run_plots,
                      (results, "--precision", "{}", "--out", "{out}")),
        "cost": (Path(made["cost"]), run_plots, (results, "--cost", "{}", "--out", "{out}")),
        "orders": (Path(made["orders"]), run_plots, (results, "--cost", "{}", "--out", "{out}")),
        "bench": (Path(made["bench"]), run_plots,
                  (results, "--cost", made["cost"], "--bench", "{}", "--out", "{out}")),
    }


def damage_bytes(data: bytearray, rng) -> bytearray:
    if rng.random() < 0.25:
        return data[:rng.integers(len(data))]
    for _ in range(rng.choice((1, 1, 4, 30))):
        data[rng.integers(len(data))] = rng.integers(256)
    return data


BYTES = {"h5": 30, "checkpoint": 12, "npz": 12, "safetensors": 12, "npy": 12, "results": 16,
         "fit": 6, "compare": 3, "evaluation": 3, "advise": 3, "cache": 3, "reuse": 3,
         "precision": 3, "cost": 3, "orders": 3, "bench": 3}


@pytest.mark.parametrize("kind", BYTES)
def test_damaged_bytes(files, tmp_path, kind):
    path, program, arguments = files[kind]
    rng = np.random.default_rng(len(kind))
    damaged, out, codes = tmp_path / path.name, tmp_path / "out", []
    for case in range(ROUNDS * BYTES[kind]):
        damaged.write_bytes(damage_bytes(bytearray(path.read_bytes()), rng))
        words = [word.format(damaged, out=out) for word in arguments]
        codes.append(ends_well(program, [*words, *["--overwrite"] * (program is run_capture)],
                               tmp_path, f"{kind}, case {case}"))
    assert 2 in codes


def objects(file) -> list[str]:
    found = []
    file.visit(found.append)
    return found


def damage_structure(file: h5py.File, rng):
    """One object or attribute that is missing, of another type, shape or size, or holds what it
    must not."""
    name = str(rng.choice(objects(file)))
    attributes = list(file[name].attrs) + ["/" + attribute for attribute in file.attrs]
    if attributes and rng.random() < 0.3:
        attribute = str(rng.choice(attributes))
        holder = file if attribute[0] == "/" else file[name]
        attribute = attribute.removeprefix("/")
        choices = (-1, 0, np.nan, 1e300, "text", b"\xff", np.arange(3), '[{"a":', h5py.Empty("f8"))
        choice = rng.integers(len(choices) + 1)
        if choice == len(choices):
            del holder.attrs[attribute]
        else:
            holder.attrs[attribute] = choices[choice]
        return
    data = file[name]
    values = data[()] if isinstance(data, h5py.Dataset) else np.zeros(3)
    choice = rng.integers(7)
    if choice == 6 and values.size and values.dtype.kind in "iuf":
        odd = {"f": (np.nan, np.inf), "i": (-5, 10 ** 4), "u": (0x7fc0, 0xffff)}  # u: bfloat16 NaN
        values.flat[rng.integers(values.size)] = rng.choice(odd[values.dtype.kind])
    del file[name]
    if choice == 0:
        return
    if choice == 1:
        file.create_group(name)
    elif choice == 2:
        file[name] = values[:-1] if values.ndim else values
    elif choice == 3:
        file[name] = values[None]
    elif choice == 4:
        file[name] = np.array(["text"], dtype="S4")
    elif choice == 5:
        file.create_dataset(name, shape=(10 ** 9, *values.shape[1:]), dtype=values.dtype,
                            chunks=(1024, *values.shape[1:]))
    else:
        file[name] = values


STRUCTURES = {"h5": 50, "checkpoint": 25, "results": 40, "fit": 15}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_damaged_structure(files, tmp_path, kind):
    path, program, arguments = files[kind]
    rng = np.random.default_rng(STRUCTURES[kind])
    damaged, out, codes = tmp_path / path.name, tmp_path / "out", []
    for case in range(ROUNDS * STRUCTURES[kind]):
        shutil.copy(path, damaged)
        with h5py.File(damaged, "a") as file:
            damage_structure(file, rng)
        words = [word.format(damaged, out=out) for word in arguments]
        codes.append(ends_well(program, [*words, *["--overwrite"] * (program is run_capture)],
                               tmp_path, f"{kind}, case {case}"))
    assert codes.count(2) > len(codes) / 3


def damage_json(value, rng):
    """One value somewhere is missing or of another type."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = str(rng.choice(list(value)))
        if rng.random() < 0.2:
            return {key: one for key, one in value.items() if key != name}
        return value | {name: damage_json(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.integers(len(value))
        return [*value[:at], damage_json(value[at], rng), *value[at + 1:]]
    return (None, -1, "text", [], {}, [[1]], 1e300, True)[rng.integers(8)]


@pytest.mark.parametrize("kind", ["compare", "evaluation", "advise", "cache", "reuse", "precision",
                                  "cost", "orders", "bench"])
def test_damaged_json(files, tmp_path, kind):
    path, program, arguments = files[kind]
    rng = np.random.default_rng(len(kind))
    damaged = tmp_path / path.name
    for case in range(ROUNDS * 4):
        damaged.write_text(json.dumps(damage_json(json.loads(path.read_text()), rng)))
        ends_well(program, [word.format(damaged, out=tmp_path / "out") for word in arguments],
                  tmp_path, f"{kind}, case {case}: {damaged.read_text()[:3000]}")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Of a sweep of two arms."""
    folder = tmp_path_factory.mktemp("records")
    write_arm(folder, "full", (2.0, 3.0), attention="full")
    write_arm(folder, "msa", (2.01, 3.02))
    return folder


@pytest.mark.parametrize("name", ["summary.json", "curves.csv"])
def test_damaged_records(records, tmp_path, name):
    rng = np.random.default_rng(len(name))
    folder, codes = tmp_path / "records", []
    shutil.copytree(records, folder)
    damaged = folder / "msa/seed-2" / name
    whole = damaged.read_bytes()
    for case in range(ROUNDS * 40):
        if name == "summary.json" and rng.random() < 0.7:
            damaged.write_text(json.dumps(damage_json(json.loads(whole), rng)))
        else:
            damaged.write_bytes(damage_bytes(bytearray(whole), rng))
        what = f"case {case}: {damaged.read_bytes()[:3000]!r}"
        codes.append(ends_well(run_pilot, [str(folder), "--out", str(tmp_path / "out")], tmp_path,
                               what))
    assert codes.count(2) > len(codes) / 4


VALUES = ("0", "-1", "1", "3,6", "1e400", "nan", "99999999999999999999", "", "text", "bhsd",
          "\u00e9", "\udcff\udcfe", "{field}", "layers.{layer}.{field}", "{nothing}", "post_rope", "bf16", "foo",
          "/dev/null", "/dev/full", "/", ".", "--", "-")


PROGRAMS = {  # program, its commands, its options
    "msalab.capture": (run_capture, (["capture", "."], ["convert"]), (
        "--text", "--tokens", "--bytes", "--max-tokens", "--device", "--dtype", "--attention",
        "--revision", "--indexer", "--names", "--layout", "--lengths", "--state", "--softmax-scale", "--rotary-dim",
        "--rope-theta", "--model-id", "--model-config", "--apply-rope", "--interleaved",
        "--layers", "--overwrite")),
    "msalab.plots": (run_plots, ([],), (
        "--fit", "--selections", "--compare", "--evaluate", "--advise", "--cache", "--reuse",
        "--precision", "--cost", "--bench", "--layers", "--activations", "--only")),
    "msalab.evaluation": (run_evaluation, (["."],), (
        "--text", "--indexer", "--selectors", "--budgets", "--top-k", "--block-size",
        "--forced-first", "--forced-local", "--dense-layers", "--element", "--sensitivity", "--from-advice",
        "--context", "--sequences",
        "--tasks", "--lengths", "--exercises", "--depths", "--pairs", "--bytes", "--seed", "--device",
        "--dtype", "--revision", "--overwrite")),
    "studies.pilot": (run_pilot, ([],), ("--page", "--arms", "--registered", "--exploratory"))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_is_tried(name, capsys):
    program, commands, options = PROGRAMS[name]
    there = set()
    for command in commands:
        for way in ("--help", "--help-all"):  # of few options there is one way
            with pytest.raises(SystemExit):
                program([*command[:1], way])
            there |= set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert there - {"--help-all"} == {*options, "--out", "--help"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_odd_command_lines(files, records, tmp_path, name):
    program, commands, options = PROGRAMS[name]
    rng = np.random.default_rng(7)
    paths = [*(str(path) for path, *_ in files.values()), str(records)]
    for case in range(ROUNDS * 60):
        command = list(commands[rng.integers(len(commands))])
        words = command if "." in command else [*command, str(rng.choice((*paths, *VALUES)))]
        for option in rng.choice(options, rng.integers(5)):
            words += [str(option), str(rng.choice((*VALUES, *paths)))][:rng.integers(1, 3)]
        words += ["--out", str(tmp_path / f"{case}{rng.choice(('.h5', '.safetensors', ''))}")]
        ends_well(program, words, tmp_path, f"case {case}")


@pytest.mark.parametrize("word", ["", *VALUES])
def test_odd_commands(tmp_path, word):
    code, errors = exit_code(msalab.__main__.main, [word, "--out", str(tmp_path / "out")], tmp_path)
    assert code == 2
    assert "commands are: advise, " in errors
