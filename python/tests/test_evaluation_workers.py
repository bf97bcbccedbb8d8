# SPDX-License-Identifier: MIT
"""Processes that share a run of `msalab evaluate`, on units of made numbers; a model's are in
test_evaluation.py."""

import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest
from test_evaluation_shards import FILES, NAMES, PLAN, RECORD, arrays_of, pictures, whole  # noqa: F401

from msalab.capture.layer import CaptureError
from msalab.evaluation.shard import Shard, launched
from msalab.evaluation.workers import start_on_devices, work


def options(resume=False, overwrite=False):
    return SimpleNamespace(resume=resume, overwrite=overwrite)


def share(out, index, count, record=None, broken=None, note=lambda line: None, made=None, **more):
    """One process's part. `broken`: the unit at which it is killed; `made` gets the others."""
    def make(name):
        assert name != broken, "killed"
        if made is not None:
            made.append(name)
        return arrays_of(name)

    out.mkdir(exist_ok=True)
    makers = {name: lambda name=name: make(name) for name in NAMES}
    return work(out, Shard(index, count), options(**more), record or RECORD, PLAN, makers, note)


def expect_same(out, whole):  # noqa: F811
    assert {path.name for path in out.iterdir()} == set(FILES)
    for name in FILES:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("count", [2, 3, 20])  # of 13 units: some have none
def test_who_ends_last_merges(whole, tmp_path, count):  # noqa: F811
    out = tmp_path / "out"
    order = [*range(1, count), 0]
    found = [share(out, index, count) for index in order]
    assert found[:-1] == [None] * (count - 1) and found[-1]["configs"]
    expect_same(out, whole)


def _in_a_process(out, index, found):
    time.sleep(0.01 * (index % 2))
    found.put(share(out, index, 4) is not None)


def test_processes_at_a_time_merge_once(whole, tmp_path):  # noqa: F811
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


def test_one_that_is_killed_goes_on(whole, tmp_path):  # noqa: F811
    out, lines, made = tmp_path / "out", [], []
    with pytest.raises(AssertionError, match="killed"):
        share(out, 0, 2, broken=NAMES[4])
    assert share(out, 1, 2) is None
    with pytest.raises(CaptureError, match="0-of-2: a run was under way; --resume goes on with it"):
        share(out, 0, 2)
    with pytest.raises(CaptureError, match="-of-2: the run was begun by other than 3 workers"):
        share(out, 2, 3, resume=True)
    assert share(out, 1, 2, resume=True, made=made) is None  # the other one has units left
    assert not made
    assert share(out, 0, 2, resume=True, made=made)
    assert made == NAMES[4::2]
    expect_same(out, whole)
    assert share(out, 1, 2, resume=True, note=lines.append) is None  # it was too late to the merging
    assert lines == [f"{out / 'results.h5'}: is complete"]
    expect_same(out, whole)


def test_results_that_are_there(whole, tmp_path):  # noqa: F811
    with pytest.raises(CaptureError, match="exists; --overwrite replaces it"):
        share(whole, 0, 2)
    with pytest.raises(CaptureError, match="is of another run; --overwrite replaces it"):
        share(whole, 0, 2, record=RECORD | {"seed": 4}, resume=True)
    other = RECORD | {"seed": 4}
    assert share(whole, 0, 2, record=other, overwrite=True) is None
    assert share(whole, 1, 2, record=other, overwrite=True)
    alone = tmp_path / "alone"
    (alone / "results.h5.partial").mkdir(parents=True)
    with pytest.raises(CaptureError, match="partial: one process was at this run"):
        share(alone, 0, 2)


def test_a_process_of_devices_that_fails_ends_the_others(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
echo $$ "$MSALAB_RANK of $MSALAB_RANKS:" "$@" > {tmp_path}/said-$MSALAB_RANK
while [ ! -s {tmp_path}/said-0 ]; do sleep 0.01; done
[ "$MSALAB_RANK" = 1 ] && exit 3
exec sleep 60
""")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    asked = SimpleNamespace(devices=[5, 7], device="cuda", shard=None)
    assert start_on_devices(asked, ["small", "--devices", "5,7"]) == 3
    (other, *_), (_, *words) = [(tmp_path / f"said-{rank}").read_text().split() for rank in (0, 1)]
    with pytest.raises(ProcessLookupError):
        os.kill(int(other), 0)
    assert " ".join(words) == "1 of 2: -m msalab evaluate small --devices 5,7 --device=cuda:7"


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
