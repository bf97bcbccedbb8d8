# SPDX-License-Identifier: MIT
"""Shards of `msalab evaluate` and their merging, on units of made numbers. Needs no PyTorch; runs of
a model in shards are in test_evaluation.py."""

import json
import shutil
import stat

import h5py
import numpy as np
import pytest

from msalab.__main__ import main as msalab
from msalab.capture.layer import CaptureError
from msalab.evaluation.files import Units
from msalab.evaluation.merge import main as merge
from msalab.evaluation.results import complete, unit_names
from msalab.evaluation.shard import parse_shard

RECORD = {"program": "msalab evaluate", "commit": "1", "compiler": "c", "model": {"a.bin": "0f"},
          "inputs": {"text.txt": "1e"}, "seed": 3,
          "options": {"context": 90, "block_size": 16, "dense_layers": [], "depths": 2,
                      "tasks": ["needle", "recall"], "lengths": [200], "exercises": 3}}
PLAN = {"model": "small", "device": "cpu", "layers": [0, 1], "texts": 7,
        "settings": [{"config": "window@32", "selector": "window", "budget": 32, "top_k": 2,
                      "block_size": 16}]}
NAMES = unit_names(RECORD, PLAN)
FILES = ("results.h5", "summary.json")


def arrays_of(name):
    """Of sequences of several documents and lengths, and of exercises with several answers."""
    number = NAMES.index(name)
    rng = np.random.default_rng(number)
    if name.startswith("text"):
        n = 60 + number
        return {"nats": rng.random((2, n)), "right": rng.random((2, n)) < 0.5,
                "layer_error": rng.random((1, 2)), "bytes": np.ones(n), "document": number % 3}
    answers = 1 if name.startswith("needle") else 4
    return {"right": rng.random((2, answers)) < 0.5, "log_likelihood": -rng.random((2, answers)),
            "depth": np.full(answers, (int(name[-1]) + 0.5) / 3)}


def work(out, shard, record=None, resume=False, names=None, **plan):
    """What a worker leaves behind: the units of its part, or `names` of them."""
    part = parse_shard(shard)
    out.mkdir(exist_ok=True)
    with Units(out / "results.h5", record or RECORD, PLAN | plan | {"shard": shard}, resume,
               False) as units:
        for name in names if names is not None else NAMES[part.index::part.count]:
            units.make(name, lambda name=name: arrays_of(name))
    return out


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Not drawn, unless a test asks for with_pictures: they take longer than all the rest."""
    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr("msalab.evaluation.results.draw_all", lambda summary, out: None)


@pytest.fixture
def with_pictures():
    """That they are drawn."""


@pytest.fixture
def whole(tmp_path):
    """The results of one worker."""
    out = tmp_path / "whole"
    out.mkdir()
    units = Units(out / "results.h5", RECORD, PLAN | {"shard": None}, False, False)
    for name in NAMES:
        units.make(name, lambda name=name: arrays_of(name))
    complete(units.folder / "results.h5", out, units.record, PLAN, units.read)
    units.done()
    return out


def in_shards(tmp_path, count):
    return [work(tmp_path / f"part{index}", f"{index}/{count}") for index in range(count)]


def refusal(capsys, shards, out, *more):
    assert merge([*map(str, shards), "--out", str(out), *more]) == 2
    assert not (out / "results.h5").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_any_number_of_shards_gives_the_bytes_of_one_worker(whole, tmp_path, count, capsys):
    shards = in_shards(tmp_path, count)
    assert merge([*map(str, reversed(shards)), "--out", str(tmp_path / "merged")]) == 0
    for name in FILES:
        assert (tmp_path / "merged" / name).read_bytes() == (whole / name).read_bytes(), name
    assert "window@32" in capsys.readouterr().out
    excess = json.loads((whole / "summary.json").read_text())["configs"][1]["excess"]
    assert excess["low"] < excess["mean"] < excess["high"]  # the intervals over documents are there


def test_the_pictures_are_those_of_one_worker(with_pictures, whole, tmp_path):
    assert merge([*map(str, in_shards(tmp_path, 2)), "--out", str(tmp_path / "merged")]) == 0
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in (tmp_path / "merged").iterdir()} == names
    for name in names - {name for name in names if name.endswith((".png", ".svg"))}:
        assert (tmp_path / "merged" / name).read_bytes() == (whole / name).read_bytes(), name
    assert {"loss_by_budget.csv", "retrieval.svg"} <= names


def test_results_of_other_numbers_differ(whole, tmp_path):
    shards = in_shards(tmp_path, 2)
    with h5py.File(shards[1] / "results.h5.partial/unit-text-1.h5") as file:
        values = {name: data[()] for name, data in file.items()}
    (shards[1] / "results.h5.partial/unit-text-1.h5").unlink()
    values["nats"][1, 5] += 1e-9
    with Units(shards[1] / "results.h5", RECORD, PLAN | {"shard": "1/2"}, True, False) as units:
        units.make("text 1", lambda: values)
    assert merge([*map(str, shards), "--out", str(tmp_path / "merged")]) == 0
    for name in FILES:
        assert (tmp_path / "merged" / name).read_bytes() != (whole / name).read_bytes()


def test_what_is_missing_is_named_with_the_shard_that_owes_it(tmp_path, capsys):
    shards = in_shards(tmp_path, 3)
    said = refusal(capsys, shards[:2], tmp_path / "out")
    assert (f"{shards[0]} and the others: not finished in any of them: text 2, text 5, needle 200 1 "
            "and 1 more (of --shard 2/3)") in said
    (shards[1] / "results.h5.partial/unit-text-4.h5").unlink()
    assert "them: text 4 (of --shard 1/3)" in refusal(capsys, shards, tmp_path / "out")
    work(shards[1], "1/3", resume=True)
    assert merge([*map(str, shards), "--out", str(tmp_path / "out")]) == 0


def test_what_does_not_belong_together_is_named(tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    out, first = tmp_path / "out", shards[0]
    assert f"{first}: is named twice" in refusal(capsys, [first, first], out)
    assert "nothing: is no directory" in refusal(capsys, [first, tmp_path / "nothing"], out)
    (tmp_path / "empty").mkdir()
    assert "empty/results.h5.partial: there is no run of msalab evaluate" in refusal(
        capsys, [first, tmp_path / "empty"], out)
    assert f"{first}: is a shard; choose another --out" in refusal(capsys, shards, first)
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    assert f"{first} and {copy}: both hold text 0" in refusal(capsys, [*shards, copy], out)
    for other, said in (({"seed": 4}, "seed was 3, is 4"),
                        ({"inputs": {"text.txt": "2e"}}, "inputs text.txt was '1e', is '2e'"),
                        ({"model": {"a.bin": "1f"}}, "model a.bin was '0f', is '1f'"),
                        ({"commit": "2"}, "commit was '1', is '2'")):
        shutil.rmtree(copy)
        work(copy, "1/2", RECORD | other)
        assert f"{copy} (against {first}): {said}; it is of another run" in refusal(
            capsys, [first, copy], out)
    (copy / "results.h5").write_bytes(b"")
    assert f"{copy}: holds the results.h5 of a whole run" in refusal(capsys, [first, copy], out)


def test_a_damaged_unit_is_refused(tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    unit = shards[1] / "results.h5.partial/unit-needle-200-0.h5"
    damaged = bytearray(unit.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    unit.write_bytes(damaged)
    assert f"{unit}: does not match its checksum" in refusal(capsys, shards, tmp_path / "out")


def test_a_shard_that_is_being_written_is_refused(tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    with Units(shards[0] / "results.h5", RECORD, PLAN | {"shard": "0/2"}, True, False):
        assert "part0/results.h5.partial: another process is writing it" in refusal(
            capsys, shards, tmp_path / "out")


def test_results_that_exist_are_replaced_where_that_is_asked_for(whole, tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    before = (whole / "results.h5").read_bytes()
    assert merge([*map(str, shards), "--out", str(whole)]) == 2
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    (whole / "results.h5").write_bytes(b"")
    assert merge([*map(str, shards), "--out", str(whole), "--overwrite", "--json"]) == 0
    assert (whole / "results.h5").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads((whole / "summary.json").read_text())


def test_devices_of_several_kinds_are_said(tmp_path, capsys):
    shards = [work(tmp_path / "a", "0/2"), work(tmp_path / "b", "1/2", device="another")]
    assert merge([*map(str, shards), "--out", str(tmp_path / "out")]) == 0
    assert "the shards ran on several devices: cpu; another" in capsys.readouterr().err


def test_shards_of_programs_go_to_msa_merge(tmp_path, monkeypatch, capfd):
    import msalab.__main__ as command

    assert msalab(["merge", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "there is no run of msalab evaluate" in capfd.readouterr().err
    program = tmp_path / "msa-merge"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    called = []
    monkeypatch.setattr(command, "BIN", tmp_path)
    monkeypatch.setattr("os.execv", lambda path, words: called.append(words) or exit(0))
    with pytest.raises(SystemExit):
        msalab(["merge", "x", "--out", "y"])
    assert called == [[str(program), "x", "--out", "y"]]
    assert command.usage().count("merge") == 1  # once, as a tool


def test_shards_are_one_of_so_many(monkeypatch):
    assert (parse_shard("2/3").index, parse_shard("2/3").count) == (2, 3)
    for wrong in ("3/3", "-1/3", "1", "1/", "/3", "a/b", "0/0", "1/3x", "1/3\n"):
        with pytest.raises(CaptureError, match="must be I/N with I from 0 to N - 1, or slurm"):
            parse_shard(wrong)
    for name in ("ID", "MIN", "STEP", "COUNT"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    with pytest.raises(CaptureError, match="SLURM_ARRAY_TASK_ID is not set: must run as a task"):
        parse_shard("slurm")
    array = {"ID": "14", "MIN": "10", "STEP": "2", "COUNT": "4"}
    for name, value in array.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert parse_shard("slurm").text == "2/4"
    for task in ("13", "18", "8"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        with pytest.raises(CaptureError, match=f"ID = {task} is none of 4 numbers from 10 in steps"):
            parse_shard("slurm")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "two")
    with pytest.raises(CaptureError, match="SLURM_ARRAY_TASK_ID is 'two', must be an integer"):
        parse_shard("slurm")
