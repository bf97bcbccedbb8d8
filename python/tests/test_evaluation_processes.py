# SPDX-License-Identifier: MIT
"""Processes that do a run of `msalab evaluate` together, on units of made numbers. Needs no PyTorch; processes with a
model are in test_evaluation.py."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from msalab import claims, results
from msalab.capture.layer import CaptureError
from msalab.ending import Refusal
from msalab.evaluation import units
from msalab.evaluation.results import unit_names
from msalab.evaluation.units import CHECK, work

RECORD = {"program": "msalab evaluate", "commit": "1", "compiler": "c", "model": {"a.bin": "0f"},
          "inputs": {"text.txt": "1e"}, "seed": 3,
          "options": {"context": 90, "block_size": 16, "dense_layers": [], "depths": 2,
                      "tasks": ["needle", "recall"], "lengths": [200], "exercises": 3}}
OTHER = RECORD | {"seed": 4}
PLAN = {"model": "small", "device": "cpu", "layers": [0, 1], "texts": 7,
        "settings": [{"config": "window@32", "selector": "window", "budget": 32, "top_k": 2,
                      "block_size": 16}]}
NAMES = unit_names(RECORD, PLAN)
FILES = ("results.h5", "summary.json")
FOLDER = "tables"  # with them
ELSEWHERE = json.dumps({"host": "elsewhere", "process": 7, "process_start": 1})


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


def do(out, record=RECORD, made=None, broken=None, overwrite=False, note=lambda line: None, seconds=0, before=None,
       **plan):
    """What a process does. `broken`: the unit at which it is stopped; `made` gets the names of those that it makes;
    before(name) is called before each."""
    def make(name):
        if name == broken:
            raise KeyboardInterrupt
        if before is not None:
            before(name)
        if made is not None:
            made.append(name)
        time.sleep(seconds)
        return arrays_of(name)

    makers = {name: lambda name=name: make(name) for name in NAMES}
    return work(out, SimpleNamespace(overwrite=overwrite), record, PLAN | plan, makers, note)


def stop_at(out, name, record=RECORD, **how):
    with pytest.raises(KeyboardInterrupt):
        do(out, record, broken=name, **how)


def file_of(out, name):
    return units.Folder(out, RECORD).file_of(name)


def claim_of(out, name):
    return units.Folder(out, RECORD).claim_of(name)


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Not drawn, unless a test asks for with_pictures: they take longer than all the rest."""
    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr("msalab.evaluation.results.draw_all", lambda summary, out: None)
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID", "PARALLEL_SEQ"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def with_pictures():
    """That they are drawn."""


@pytest.fixture
def whole(tmp_path):
    """The results of one process."""
    assert do(tmp_path / "whole")["configs"]
    return tmp_path / "whole"


def expect_same(out, whole):
    assert {path.name for path in out.iterdir()} == {*FILES, FOLDER}
    for name in FILES:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def start(out, **how):
    """A process that ends with exit code 0 where it has the summary."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(0 if do(out, **how)["configs"] else 1))
    process.start()
    return process


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def units_in(out):
    return len([*(out / "units").glob("*[0-9].json")])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_processes_gives_the_bytes_of_one(whole, tmp_path, count):
    processes = [start(tmp_path / "out", seconds=0.01) for _ in range(count)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    expect_same(tmp_path / "out", whole)
    config = results.open(whole)["configs"].records()[1]
    assert config["excess_low"] < config["excess"] < config["excess_high"]  # the intervals over documents are there


def test_some_start_late(whole, tmp_path):
    out = tmp_path / "out"
    processes = [start(out, seconds=0.02) for _ in range(3)]
    for begun in (1, 6):
        wait_until(lambda: units_in(out) >= begun or not processes[0].is_alive())
        processes.append(start(out, seconds=0.02))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    expect_same(out, whole)
    lines, made = [], []
    assert repr(do(out, made=made, note=lines.append)["configs"].records()) == repr(
        results.open(whole)["configs"].records())
    assert lines == [f"{out / 'results.h5'}: is complete"] and not made
    expect_same(out, whole)


def test_nothing_is_done_twice(tmp_path):
    out, told = tmp_path / "out", tmp_path / "told"

    def tell(name):
        with open(told, "a") as file:
            file.write(f"{os.getpid()} {name}\n")

    processes = [start(out, seconds=0.02, before=tell) for _ in range(3)]
    for process in processes:
        process.join()
    lines = [line.split(" ", 1) for line in told.read_text().splitlines()]
    assert sorted(name for _, name in lines) == sorted(NAMES)
    assert len({process for process, _ in lines}) > 1


def test_processes_are_killed_at_many_moments(whole, tmp_path):
    """Two at a time, killed together or one alone, until two of them end."""
    killed, delay = 0, 0.001
    for trial in range(4):
        out, ended = tmp_path / f"killed{trial}", 0
        while ended < 2:
            pair = [start(out, seconds=0.004) for _ in range(2)]
            time.sleep(delay)
            delay = delay * 1.13 if delay < 0.12 else 0.001
            for process in pair[trial % 2:]:
                process.kill()
            for process in pair:
                process.join()
            assert all(process.exitcode in (0, -signal.SIGKILL) for process in pair)
            killed += sum(process.exitcode != 0 for process in pair)
            ended = sum(process.exitcode == 0 for process in pair) + trial % 2 * (pair[0].exitcode == 0)
        expect_same(out, whole)
    assert killed >= 10


@pytest.mark.parametrize("last", ["results.draw_all", "results.write_h5", "units.shutil.rmtree"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_that_is_killed_while_it_draws_writes_or_cleans_up(whole, tmp_path, monkeypatch, last, is_replaced):
    def killed(*_, **__):
        raise AssertionError("killed")

    out, made = tmp_path / "out", []
    if is_replaced:
        do(out, OTHER)
    with monkeypatch.context() as set_here:
        set_here.setattr(f"msalab.evaluation.{last}", killed)
        with pytest.raises(AssertionError, match="killed"):
            do(out, overwrite=True)
    assert do(out, made=made)
    assert not made
    expect_same(out, whole)


def test_what_is_finished_is_kept(whole, tmp_path):
    out, made = tmp_path / "out", []
    stop_at(out, NAMES[4])
    assert units_in(out) == 4 and not [*out.glob("units/*.claim")] and not [*out.glob("units/*.tmp")]
    with pytest.raises(CaptureError, match=f"^{out}/units: seed was 3, is 4; it is of another run, --overwrite begins"):
        do(out, OTHER)
    assert do(out, made=made)
    assert made == NAMES[4:]
    expect_same(out, whole)


def test_a_dead_process_has_no_claim(whole, tmp_path):
    out = tmp_path / "out"
    process = start(out, before=lambda name: name == NAMES[2] and os.kill(os.getpid(), signal.SIGKILL))
    process.join()
    (out / "units" / f"{file_of(out, NAMES[3]).name}.{claims.socket.gethostname()}-{process.pid}-7.tmp").touch()
    assert claim_of(out, NAMES[2]).exists() and claims.holder_of(claim_of(out, NAMES[2])) == ""
    assert do(out)
    expect_same(out, whole)


def test_a_claim_of_another_host_is_waited_for_until_it_is_old(whole, tmp_path):
    out, lines = tmp_path / "out", []
    stop_at(out, NAMES[4])
    claim = claim_of(out, NAMES[-1])
    claim.write_text(ELSEWHERE)
    assert claims.holder_of(claim) == "process 7 of elsewhere"
    process = start(out)
    wait_until(lambda: units_in(out) == len(NAMES) - 1)
    time.sleep(0.3)
    assert process.is_alive()
    old = time.time() - claims.STALE - 1
    os.utime(claim, (old, old))
    process.join()
    assert process.exitcode == 0
    expect_same(out, whole)


def test_whom_a_process_waits_for_is_said(tmp_path, monkeypatch):
    class Enough(Exception):
        """Ends the waiting."""

    def heard(line):
        if "waits" in line:
            raise Enough(line)

    stop_at(tmp_path, NAMES[4])
    claim_of(tmp_path, NAMES[6]).write_text(ELSEWHERE)
    monkeypatch.setattr(units, "SAID_AFTER", 0.01)
    with pytest.raises(Enough, match=f"waits for what others do: {NAMES[6]}, process 7 of elsewhere$"):
        do(tmp_path, note=heard)
    assert units_in(tmp_path) == len(NAMES) - 1


def test_other_options_are_refused_while_a_run_is_under_way(whole, tmp_path):
    out, made = tmp_path / "out", []
    stop_at(out, NAMES[2])
    claim_of(out, NAMES[2]).write_text(ELSEWHERE)
    with pytest.raises(CaptureError, match="seed was 3, is 4"):
        do(out, OTHER, made=made)
    with pytest.raises(CaptureError, match="results.h5: another process is writing it"):
        do(out, OTHER, made=made, overwrite=True)
    assert not made and units_in(out) == 2
    claim_of(out, NAMES[2]).unlink()
    assert do(out, OTHER, made=made, overwrite=True)
    assert made == NAMES
    with pytest.raises(CaptureError, match=f"^{out}/results.h5: is of another run; --overwrite replaces it"):
        do(out)
    assert not (out / "units").exists()
    assert do(out, overwrite=True)
    expect_same(out, whole)


@pytest.mark.parametrize("how", [{}, {"overwrite": True}])
def test_a_run_without_units_is_in_nobodys_way(how, whole, tmp_path):
    stop_at(tmp_path / "out", NAMES[0], OTHER)
    assert not [*(tmp_path / "out").iterdir()]
    killed = start(tmp_path / "out", record=OTHER, before=lambda name: os.kill(os.getpid(), signal.SIGKILL))
    killed.join()
    assert units_in(tmp_path / "out") == 0 and (tmp_path / "out/units/run.json").exists()
    assert do(tmp_path / "out", **how)
    expect_same(tmp_path / "out", whole)


def test_processes_replace_old_results_together(whole, tmp_path):
    out = tmp_path / "out"
    do(out, OTHER)
    processes = [start(out, seconds=0.02, overwrite=True)]
    wait_until(lambda: units_in(out) > 1)
    processes += [start(out, seconds=0.02, overwrite=True), start(out, seconds=0.02)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    expect_same(out, whole)


def test_units_of_several_folders_are_copied_together(whole, tmp_path, monkeypatch):
    made = []
    stop_at(tmp_path / "one", NAMES[5])
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    stop_at(tmp_path / "two", NAMES[0])
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    for path in (tmp_path / "two/units").glob("*.json"):
        shutil.copy(path, tmp_path / "one/units")
    assert do(tmp_path / "one", made=made)
    assert not made
    expect_same(tmp_path / "one", whole)


@pytest.mark.parametrize("other, said", [
    ({"seed": 4}, "seed was 4, is 3"), ({"inputs": {"text.txt": "2e"}}, "inputs text.txt was '2e', is '1e'"),
    ({"model": {"a.bin": "1f"}}, "model a.bin was '1f', is '0f'"), ({"commit": "2"}, "commit was '2', is '1'")])
def test_a_unit_of_another_run_is_refused_by_its_name(tmp_path, other, said):
    stop_at(tmp_path / "mine", NAMES[2])
    stop_at(tmp_path / "other", NAMES[4], RECORD | other)
    strange = file_of(tmp_path / "mine", NAMES[3])
    shutil.copy(file_of(tmp_path / "other", NAMES[3]), strange)
    with pytest.raises(CaptureError, match=f"^{strange}: {said}; it is of another run, --overwrite begins anew"):
        do(tmp_path / "mine")
    # Also one that comes while a process is at work.
    strange.unlink()
    with pytest.raises(CaptureError, match=f"^{strange}: {said}"):
        do(tmp_path / "mine", before=lambda name: shutil.copy(file_of(tmp_path / "other", NAMES[3]), strange))


def test_a_damaged_unit_is_refused(tmp_path, whole):
    stop_at(tmp_path / "out", NAMES[3])
    path = file_of(tmp_path / "out", NAMES[1])
    damaged = bytearray(path.read_bytes())
    for at in (len(damaged) // 2, len(damaged) // 3, 20, len(damaged) - 4):
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CaptureError, match=f"^{path}: does not match its checksum; remove it"):
            do(tmp_path / "out")
        damaged[at] ^= 1
    path.write_bytes(b"")
    with pytest.raises(CaptureError, match=f"^{path}: does not match its checksum; remove it"):
        do(tmp_path / "out")
    path.unlink()
    assert do(tmp_path / "out")
    expect_same(tmp_path / "out", whole)


def test_results_of_other_numbers_differ(whole, tmp_path):
    stop_at(tmp_path / "out", NAMES[3])
    path = file_of(tmp_path / "out", NAMES[1])
    text = path.read_bytes().replace(b'"values": [[0.', b'"values": [[1.', 1).decode().rpartition(CHECK)[0] + "}"
    path.write_bytes(units._text(json.loads(text)))
    assert do(tmp_path / "out")
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() != (whole / name).read_bytes()


def limited(out, bytes_of_a_file):
    """The message of a process that may not write so large a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, before[1]))
        with pytest.raises(Refusal) as refused:
            do(out)
        return str(refused.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("most, where", [(50, "units/run.json"), (1000, "units/text-0.json"), (20000, "results.h5")])
def test_a_full_disk_of_one_is_none_of_another(whole, tmp_path, most, where):
    out = tmp_path / "out"
    said = limited(out, most)
    assert f"{out / where}" in said and "File too large" in said
    assert not [*out.glob("units/*.tmp")] and not [*out.glob("units/*.claim")]
    other = start(out, before=lambda name: name == NAMES[2] and wait_until((tmp_path / "go").exists))
    wait_until(lambda: units_in(out) > 1)
    if where == "units/text-0.json":
        assert "File too large" in limited(out, most)
    (tmp_path / "go").touch()
    other.join()
    assert other.exitcode == 0
    expect_same(out, whole)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can take a right from one process")
def test_a_folder_that_is_read_only_for_one(whole, tmp_path, capfd):
    out = tmp_path / "out"
    other = start(out, before=lambda name: name == NAMES[2] and wait_until((tmp_path / "go").exists))
    wait_until(lambda: units_in(out) > 1)
    os.chmod(out / "units", 0o555)
    script = tmp_path / "one.py"
    folders = [str(Path(__file__).parent), str(Path(claims.__file__).parents[1])]
    script.write_text(f"import sys\nsys.path[:0] = {folders}\n"
                      f"from pathlib import Path\nfrom test_evaluation_processes import do\ndo(Path({str(out)!r}))\n")
    code = os.system(f"setpriv --bounding-set=-dac_override --inh-caps=-dac_override {sys.executable} {script}")
    said = capfd.readouterr().err
    assert code != 0 and f"cannot write {out}/units/" in said and "Permission denied" in said
    (tmp_path / "go").touch()
    other.join()
    assert other.exitcode == 0
    expect_same(out, whole)


def test_the_pictures_are_those_of_one_process(with_pictures, whole, tmp_path):
    stop_at(tmp_path / "out", NAMES[3])
    assert do(tmp_path / "out")
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    for name in names - {name for name in names if name.endswith((".png", ".svg"))} - {FOLDER}:
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes(), name
    assert {"loss_by_budget.csv", "retrieval.svg"} <= names


def test_devices_of_several_kinds_are_said(tmp_path):
    lines = []
    stop_at(tmp_path, NAMES[3])
    assert do(tmp_path, note=lines.append, device="another")
    assert lines[-1].startswith("note: the run had several devices: cpu; another. ")


def test_launchers_say_where_a_process_begins(tmp_path, monkeypatch):
    assert (claims.launched_rank(), claims.launched_number()) == (0, 0)
    with monkeypatch.context() as set_here:
        set_here.setenv("OMPI_COMM_WORLD_RANK", "2")
        set_here.setenv("SLURM_PROCID", "0")
        assert (claims.launched_rank(), claims.launched_number()) == (2, 2)
    with monkeypatch.context() as set_here:
        set_here.setenv("SLURM_ARRAY_TASK_ID", "5")
        set_here.setenv("SLURM_PROCID", "1")
        assert (claims.launched_rank(), claims.launched_number()) == (1, 6)
        made = []
        do(tmp_path / "out", made=made)
        assert made == NAMES[6:] + NAMES[:6]
    monkeypatch.setenv("PARALLEL_SEQ", str(len(NAMES) + 3))
    made = []
    do(tmp_path / "parallel", made=made)
    assert made[0] == NAMES[3]


def test_claims(tmp_path):
    file = tmp_path / "claim"
    assert claims.take(tmp_path / "none/claim") is None
    with claims.take(file) as claim:
        assert claims.take(file) is None and claim.is_held()
        assert claims.holder_of(file) == f"process {os.getpid()} of {claims.socket.gethostname()}"
        file.write_text(ELSEWHERE)  # took it for stale
        assert not claim.is_held()
    assert file.read_text() == ELSEWHERE
    file.write_text("")  # of one that was killed before it wrote its name
    assert claims.holder_of(file) == "another process"
    old = time.time() - claims.STALE_EMPTY - 2
    os.utime(file, (old, old))
    with claims.take(file):
        recycled = json.loads(file.read_text()) | {"process_start": 1}  # its number is another process's now
        file.write_text(json.dumps(recycled))
        assert claims.holder_of(file) == ""
    file.unlink()


def test_a_claim_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RENEW", 0.01)
    with claims.take(tmp_path / "claim"):
        os.utime(tmp_path / "claim", (0, 0))
        wait_until(lambda: (tmp_path / "claim").stat().st_mtime > 1e9)
