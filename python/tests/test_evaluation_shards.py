# SPDX-License-Identifier: MIT
"""Shards of `msalab evaluate` and their merging, on units of made numbers. Needs no PyTorch; runs of
a model in shards are in test_evaluation.py."""

import fcntl
import json
import multiprocessing
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest

from msalab.capture.layer import CaptureError
from msalab.evaluation.merge import main as merge
from msalab.evaluation.results import unit_names
from msalab.evaluation.shard import Shard, launched, parse_shard, start_on_devices
from msalab.evaluation.units import CHECK, _line, work

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
                "layer_error": rng.random((1, 2)), "bytes": np.ones(n), "document": number % 6}
    answers = 1 if name.startswith("needle") else 4
    return {"right": rng.random((2, answers)) < 0.5, "log_likelihood": -rng.random((2, answers)),
            "depth": np.full(answers, (int(name[-1]) + 0.5) / 3)}


def options(resume=False, overwrite=False):
    return SimpleNamespace(resume=resume, overwrite=overwrite)


def share(out, shard, record=None, made=None, broken=None, resume=False, overwrite=False,
          note=lambda line: None, **plan):
    """What a worker does of its part. `broken`: the unit at which it is killed; `made` gets the names
    of those that it makes."""
    def make(name):
        assert name != broken, "killed"
        if made is not None:
            made.append(name)
        return arrays_of(name)

    makers = {name: lambda name=name: make(name) for name in NAMES}
    return work(out, parse_shard(shard), options(resume, overwrite), record or RECORD, PLAN | plan,
                makers, note)


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
    assert share(tmp_path / "whole", "0/1")["configs"]
    return tmp_path / "whole"


def in_shards(tmp_path, count):
    for index in range(count):
        shard = f"{index}/{count}"
        assert share(tmp_path / f"part{index}", shard) is None
    return [tmp_path / f"part{index}" for index in range(count)]


def expect_same(out, whole):
    assert {path.name for path in out.iterdir()} == set(FILES)
    for name in FILES:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def refusal(capsys, shards, out, *more):
    assert merge([*map(str, shards), "--out", str(out), *more]) == 2
    assert not (out / "results.h5").exists()
    return capsys.readouterr().err


def change(path, old, new):
    """Of a line, with the checksum that then is right."""
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if old in line)
    text = lines[number].replace(old, new, 1).decode().rpartition(CHECK)[0] + "}"
    lines[number] = _line(json.loads(text))
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("count", [2, 3, 7, 20])  # of 13 units: some have none
def test_any_number_of_shards_gives_the_bytes_of_one_worker(whole, tmp_path, count, capsys):
    shards = in_shards(tmp_path, count)
    assert merge([*map(str, reversed(shards)), "--out", str(tmp_path / "merged")]) == 0
    expect_same(tmp_path / "merged", whole)
    assert "window@32" in capsys.readouterr().out
    excess = json.loads((whole / "summary.json").read_text())["configs"][1]["excess"]
    assert excess["low"] < excess["mean"] < excess["high"]  # the intervals over documents are there


@pytest.mark.parametrize("count", [2, 3, 20])
def test_who_ends_last_in_a_folder_makes_the_results(whole, tmp_path, count):
    out, lines = tmp_path / "out", []
    found = [share(out, f"{index}/{count}", note=lines.append) for index in [*range(1, count), 0]]
    assert found[:-1] == [None] * (count - 1) and found[-1]["configs"]
    assert any("units are in" in line for line in lines)
    expect_same(out, whole)


def _in_a_process(out, index, found):
    time.sleep(0.01 * (index % 2))
    found.put(share(out, f"{index}/4") is not None)


def test_processes_at_a_time_make_the_results_once(whole, tmp_path):
    context, out = multiprocessing.get_context("fork"), tmp_path / "out"
    found = context.Queue()
    processes = [context.Process(target=_in_a_process, args=(out, index, found))
                 for index in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(found.get() for _ in processes) == [False, False, False, True]
    expect_same(out, whole)


def test_one_that_is_killed_goes_on(whole, tmp_path):
    out, lines, made = tmp_path / "out", [], []
    with pytest.raises(AssertionError, match="killed"):
        share(out, "0/2", broken=NAMES[4])
    assert share(out, "1/2") is None
    mine = out / "units/0-of-2.jsonl"
    with pytest.raises(CaptureError, match="0-of-2.jsonl: a run was under way; --resume goes on"):
        share(out, "0/2")
    with pytest.raises(CaptureError, match="seed was 3, is 4; --resume goes on with the"):
        share(out, "0/2", RECORD | {"seed": 4}, resume=True)
    mine.write_bytes(mine.read_bytes()[:-9])  # in the middle of its last line
    assert share(out, "1/2", resume=True, made=made) is None  # the other one has units left
    assert not made
    assert share(out, "0/2", resume=True, made=made)
    assert made == NAMES[2::2]
    expect_same(out, whole)
    assert share(out, "1/2", resume=True, note=lines.append) is None  # it came too late
    assert lines == [f"{out / 'results.h5'}: is complete"]
    expect_same(out, whole)


@pytest.mark.parametrize("last", ["results.draw_all", "units.shutil.rmtree"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_that_is_killed_while_it_draws_or_cleans_up_goes_on(whole, tmp_path, monkeypatch, last, is_replaced):
    def killed(*_, **__):
        raise AssertionError("killed")

    out, made = tmp_path / "out", []
    if is_replaced:
        share(out, "0/1", REFUSED)
    with monkeypatch.context() as set_here:
        set_here.setattr(f"msalab.evaluation.{last}", killed)
        with pytest.raises(AssertionError, match="killed"):
            share(out, "0/1", overwrite=True)
    assert share(out, "0/1", resume=True, made=made)
    assert not made
    expect_same(out, whole)


def test_the_first_part_of_a_run_that_is_complete_has_its_summary(whole):
    summary = json.loads((whole / "summary.json").read_text())
    assert [share(whole, f"{index}/2", resume=True) for index in (1, 0)] == [None, summary]


def test_other_workers_go_on_with_what_is_done(whole, tmp_path):
    out, made = tmp_path / "out", []
    assert share(out, "1/3") is None
    assert share(out, "0/1", resume=True, made=made)
    assert made == [name for n, name in enumerate(NAMES) if n % 3 != 1]
    expect_same(out, whole)


def test_two_do_not_write_one_part(tmp_path):
    share(tmp_path, "0/2")
    with open(tmp_path / "units/0-of-2.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CaptureError, match="0-of-2.jsonl: another process is writing it"):
            share(tmp_path, "0/2", resume=True)


REFUSED = RECORD | {"seed": 4}


def refused_in_its_first_unit(out, shard, record=REFUSED):
    part = parse_shard(shard)
    with pytest.raises(AssertionError, match="killed"):
        share(out, shard, record, broken=NAMES[part.index])
    return out / f"units/{part.index}-of-{part.count}.jsonl"


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize("shard", ["0/1", "0/2"])
def test_a_part_without_units_is_in_nobodys_way(how, shard, whole, tmp_path):
    out = tmp_path / "out"
    refused_in_its_first_unit(out, shard)
    assert share(out, "0/1", **how)
    expect_same(out, whole)


def test_parts_of_another_run_refuse_before_work_starts(whole, tmp_path):
    out, made = tmp_path / "out", []
    assert share(out, "0/2", REFUSED) is None
    before = (out / "units/0-of-2.jsonl").read_bytes()
    for how in ({}, {"resume": True}):
        with pytest.raises(CaptureError, match="0-of-2.jsonl: seed was 4, is 3; .*--overwrite begins"):
            share(out, "0/1", made=made, **how)
    with open(out / "units/0-of-2.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CaptureError, match="0-of-2.jsonl: another process is writing it"):
            share(out, "0/1", made=made, overwrite=True)
    assert not made and [path.name for path in (out / "units").glob("*.jsonl")] == ["0-of-2.jsonl"]
    assert (out / "units/0-of-2.jsonl").read_bytes() == before
    assert share(out, "0/1", overwrite=True)
    expect_same(out, whole)


def test_a_part_that_another_process_begins_stays(tmp_path):
    path = refused_in_its_first_unit(tmp_path, "0/2", RECORD)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert share(tmp_path, "1/2") is None
        with pytest.raises(CaptureError, match="0-of-2.jsonl: seed was 3, is 4"):
            share(tmp_path, "1/3", REFUSED)
        assert path.exists()


def test_the_pictures_are_those_of_one_worker(with_pictures, whole, tmp_path):
    assert merge([*map(str, in_shards(tmp_path, 2)), "--out", str(tmp_path / "merged")]) == 0
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in (tmp_path / "merged").iterdir()} == names
    for name in names - {name for name in names if name.endswith((".png", ".svg"))}:
        assert (tmp_path / "merged" / name).read_bytes() == (whole / name).read_bytes(), name
    assert {"loss_by_budget.csv", "retrieval.svg"} <= names


def test_results_of_other_numbers_differ(whole, tmp_path):
    shards = in_shards(tmp_path, 2)
    change(shards[1] / "units/1-of-2.jsonl", b'"values": [[0.', b'"values": [[1.')
    assert merge([*map(str, shards), "--out", str(tmp_path / "merged")]) == 0
    for name in FILES:
        assert (tmp_path / "merged" / name).read_bytes() != (whole / name).read_bytes()


def test_what_is_missing_is_named_with_the_shard_that_owes_it(tmp_path, capsys):
    shards = in_shards(tmp_path, 3)
    said = refusal(capsys, shards[:2], tmp_path / "out")
    assert (f"{shards[0]} and the others: not finished in any of them: text 2, text 5, needle 200 1 "
            "and 1 more (of --shard 2/3)") in said
    path = shards[1] / "units/1-of-3.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"unit": "text 4"' not in line))
    assert "them: text 4 (of --shard 1/3)" in refusal(capsys, shards, tmp_path / "out")
    share(shards[1], "1/3", resume=True)
    assert merge([*map(str, shards), "--out", str(tmp_path / "out")]) == 0


def test_what_does_not_belong_together_is_named(tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    out, first, copy = tmp_path / "out", shards[0], tmp_path / "copy"
    assert "nothing: is no directory" in refusal(capsys, [first, tmp_path / "nothing"], out)
    (tmp_path / "empty").mkdir()
    assert "empty/units: there is no run of msalab evaluate" in refusal(
        capsys, [first, tmp_path / "empty"], out)
    for other, said in (({"seed": 4}, "seed was 3, is 4"),
                        ({"inputs": {"text.txt": "2e"}}, "inputs text.txt was '1e', is '2e'"),
                        ({"model": {"a.bin": "1f"}}, "model a.bin was '0f', is '1f'"),
                        ({"commit": "2"}, "commit was '1', is '2'")):
        shutil.rmtree(copy, ignore_errors=True)
        share(copy, "1/2", RECORD | other)
        assert (f"{copy}/units/1-of-2.jsonl (against {first}/units/0-of-2.jsonl): {said}; it is of "
                "another run") in refusal(capsys, [first, copy], out)


def test_a_damaged_line_is_refused(tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    path = shards[1] / "units/1-of-2.jsonl"
    damaged = bytearray(path.read_bytes())
    for at in (len(damaged) // 2, len(damaged) // 3, 20, len(damaged) - 4):
        damaged[at] ^= 1
        path.write_bytes(damaged)
        assert f"{path}: line " in (said := refusal(capsys, shards, tmp_path / "out"))
        assert "does not match its checksum" in said
        damaged[at] ^= 1
    path.write_bytes(b"")
    assert f"{path}: has no line" in refusal(capsys, shards, tmp_path / "out")


def test_results_that_exist_are_replaced_where_that_is_asked_for(whole, tmp_path, capsys):
    shards = in_shards(tmp_path, 2)
    before = (whole / "results.h5").read_bytes()
    assert merge([*map(str, shards), "--out", str(whole)]) == 2
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    (whole / "results.h5").write_bytes(b"")
    assert merge([*map(str, shards), "--out", str(whole), "--overwrite", "--json"]) == 0
    assert (whole / "results.h5").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads((whole / "summary.json").read_text())
    other = RECORD | {"seed": 4}
    with pytest.raises(CaptureError, match="exists; --overwrite replaces it"):
        share(whole, "0/2")
    with pytest.raises(CaptureError, match="is of another run; --overwrite replaces it"):
        share(whole, "0/2", other, resume=True)
    assert not (whole / "units").exists()
    assert share(whole, "0/2", other, overwrite=True) is None
    assert share(whole, "1/2", other, overwrite=True)
    assert (whole / "results.h5").read_bytes() != before


def test_devices_of_several_kinds_are_said(tmp_path, capsys):
    share(tmp_path / "a", "0/2")
    share(tmp_path / "b", "1/2", device="another")
    shards = [tmp_path / "a", tmp_path / "b"]
    assert merge([*map(str, shards), "--out", str(tmp_path / "out")]) == 0
    assert "the shards ran on several devices: cpu; another" in capsys.readouterr().err


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


def test_a_process_of_devices_that_fails_ends_the_others(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
for word; do case $word in --shard=*) part=${{word#--shard=}};; esac; done
echo $$ "$@" > {tmp_path}/said-${{part%/*}}
while [ ! -s {tmp_path}/said-0 ]; do sleep 0.01; done
[ "$part" = 1/2 ] && exit 3
exec sleep 60
""")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    asked = SimpleNamespace(devices=[5, 7], device="cuda", shard=None)
    assert start_on_devices(asked, ["small", "--devices", "5,7"]) == 3
    (other, *_), (_, *words) = [(tmp_path / f"said-{rank}").read_text().split() for rank in (0, 1)]
    with pytest.raises(ProcessLookupError):
        os.kill(int(other), 0)
    assert " ".join(words) == ("-m msalab evaluate small --devices 5,7 --devices= --shard=1/2 "
                               "--device=cuda:7")


def test_launchers_say_who_is_who(monkeypatch):
    for launcher in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                     ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        with monkeypatch.context() as set_here:
            for name, value in zip(launcher, ("2", "4")):
                set_here.setenv(name, value)
            assert launched() == Shard(2, 4)
            with pytest.raises(CaptureError, match="--devices is given, and so are several processes"):
                start_on_devices(SimpleNamespace(devices=[0, 1], device="cpu", shard=None), [])
            set_here.setenv(launcher[0], "4")
            with pytest.raises(CaptureError, match=f"{launcher[0]} is 4, must be less than"):
                launched()
            set_here.setenv(launcher[0], "x")
            with pytest.raises(CaptureError, match="must be integers"):
                launched()
            set_here.setenv(launcher[0], "0")
            set_here.setenv(launcher[1], "1")
            assert launched() is None
    monkeypatch.setenv("SLURM_PROCID", "0")  # as in a batch script
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert launched() is None
