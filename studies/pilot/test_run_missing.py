# SPDX-License-Identifier: MIT
"""studies/pilot/run_missing.py, with a program that stands in for msa-pretrain."""

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "studies/pilot/run_missing.py"
CURVES = "step,group,name,part,value\n0,train,loss,,5.5\n0,train,mfu,,0.1\n0,train,kl_loss,3,0.5\n" \
         "0,train,tokens_per_second,,100\n"
PROGRAM = f"""#!{sys.executable}
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
with open({{told!r}}, "a") as file:
    file.write(str(out) + "\\n")
fails = Path({{told!r}}).parent / "fails"
if fails.exists() and str(out).endswith(fails.read_text()):
    sys.exit(2)
(out / "curves.csv").write_text({CURVES!r})
(out / "summary.json").write_text('{{{{"format": "msa-report"}}}}')
(out / "checkpoint.h5").write_bytes(b"")
(out / "words").write_text(" ".join(sys.argv[1:]))
(out / "recorded").write_text(str((Path({{told!r}}).parent / "records.tar").exists()))
"""


@pytest.fixture
def sweep(tmp_path):
    """run(): what run_missing.py does of two arms that are forked from one trunk; the runs begun."""
    program, begun = tmp_path / "program", tmp_path / "told"
    begun.touch()
    program.write_text(PROGRAM.format(told=str(begun)))
    program.chmod(0o755)
    for side in ("train", "held_out"):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        (tmp_path / "corpus" / side / "c.txt").write_text("text")
    fork = ["--start-from", "{out}/trunk/seed-{seed}/checkpoint.h5", "--fork"]
    (tmp_path / "sweep.json").write_text(json.dumps(
        {"seeds": [1, 2], "arms": {"trunk": ["--until", "5"], "full": fork, "msa": fork}}))

    def run(out, *more, told=True, code=0):
        if told:
            begun.write_text("")
        done = subprocess.run([sys.executable, SCRIPT, tmp_path / "sweep.json", "--seconds", "100",
                        "--corpus", tmp_path / "corpus", "--out", tmp_path / out,
                        "--records", tmp_path / "records", "--tar", tmp_path / "records.tar",
                        "--program", program, *more], capture_output=True, timeout=100)
        assert done.returncode == code, done.stderr
        return [str(Path(line).relative_to(tmp_path / out)) for line in begun.read_text().split()]
    return run


def test_records_are_packed_without_the_rates_of_the_machine(sweep, tmp_path):
    assert sweep("first")[0] == "trunk/seed-1"
    with tarfile.open(tmp_path / "records.tar") as tar:
        names = [name for name in tar.getnames() if "/" in name]
        assert names == [f"{arm}/seed-{seed}/{name}" for seed in (1, 2) for arm in ("full", "msa")
                         for name in ("summary.json", "curves.csv")]
        packed = tar.extractfile("msa/seed-2/curves.csv").read().decode()
    assert packed == "step,group,name,part,value\n0,train,loss,,5.5\n"


def test_a_trunk_is_run_again_for_an_arm_that_is_missing_alone(sweep, tmp_path):
    sweep("first")
    records = tmp_path / "records"
    records.mkdir(exist_ok=True)
    pack = [sys.executable, SCRIPT.with_name("pack_records.py"), tmp_path / "records.tar", records]
    subprocess.run(pack, check=True, capture_output=True)
    assert sweep("second") == []
    archive = records / "runs.tar.xz"
    with tarfile.open(archive) as tar:
        left = {name: tar.extractfile(name).read() for name in tar.getnames()
                if not name.startswith("msa/seed-2")}
    with tarfile.open(archive, "w:xz") as tar:
        for name, data in left.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert sweep("third") == ["trunk/seed-2", "msa/seed-2"]
    subprocess.run(pack, check=True, capture_output=True)
    with tarfile.open(archive) as tar:
        assert tar.getnames() == [f"{arm}/seed-{seed}/{name}" for name in ("curves.csv", "summary.json")
                                  for arm in ("full", "msa") for seed in (1, 2)]


def test_processes_share_the_runs(sweep, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda _: sweep("shared", told=False), range(3))]
    told = sweep("shared", told=False)
    assert len(told) == len(set(told)) == 6, (told, found)
    for seed in (1, 2):  # what begins with a trunk, after it
        assert told.index(f"trunk/seed-{seed}") < min(told.index(f"{arm}/seed-{seed}") for arm in ("full", "msa"))
    assert not [*(tmp_path / "shared").glob("*/*/claim")]
    with tarfile.open(tmp_path / "records.tar") as tar:
        assert len([name for name in tar.getnames() if "/" in name]) == 8
        times = tar.extractfile("runs.csv").read().decode().splitlines()
    assert sorted(line.split(",")[0] for line in times[1:]) == sorted(told)


def test_a_run_of_a_process_that_was_killed_goes_on(sweep, tmp_path):
    claim = tmp_path / "out/trunk/seed-1/claim"
    claim.parent.mkdir(parents=True)
    claim.write_text(json.dumps({"host": socket.gethostname(), "process": os.getpid(), "process_start": 1}))
    assert sweep("out")[0] == "trunk/seed-1"


def test_a_run_that_fails_is_left_and_what_begins_with_it(sweep, tmp_path):
    (tmp_path / "fails").write_text("trunk/seed-1")
    assert sweep("out", code=1) == ["trunk/seed-1", "trunk/seed-2", "full/seed-2", "msa/seed-2"]
    (tmp_path / "fails").unlink()
    assert sweep("out") == ["trunk/seed-1", "full/seed-1", "msa/seed-1"]


def test_runs_are_on_gpus_unless_the_words_say_otherwise(sweep, tmp_path):
    sweep("gpus")
    sweep("host", "--", "--backend", "cpu")
    backends = [word for out in ("gpus", "host")
                for word in (tmp_path / out / "msa/seed-1/words").read_text().split("--backend ")[1:]]
    assert [word.split()[0] for word in backends] == ["cuda", "cpu"]


def test_what_has_ended_is_recorded_at_once(sweep, tmp_path):
    begun = sweep("first")
    assert [(tmp_path / "first" / run / "recorded").read_text() for run in begun] == \
        ["False"] + ["True"] * (len(begun) - 1)
