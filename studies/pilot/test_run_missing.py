# SPDX-License-Identifier: MIT
"""studies/pilot/run_missing.py and pack_records.py on a sweep of tiny runs. Needs msa-pretrain."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build/release/bin/msa-pretrain"
WORDS = ["--preset", "nano", "--context", "128", "--sequences", "1", "--steps", "3", "--warmup-steps", "1",
         "--probe-every", "0", "--eval-every", "0", "--eval-sequences", "1", "--save-every", "0"]
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="msa-pretrain is not built: ./msalab test builds it")


@pytest.fixture
def sweep(tmp_path):
    """run(out): what run_missing.py does of two arms that start from one trunk; the runs that it has done there."""
    for side, text in (("train", "backend.h"), ("held_out", "registry.cpp")):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        (tmp_path / "corpus" / side / "c.txt").write_bytes((ROOT / "core" / text).read_bytes())
    fork = ["--start-from", "{out}/trunk/seed-{seed}/checkpoint.h5", "--fork"]
    (tmp_path / "sweep.json").write_text(json.dumps(
        {"words": WORDS, "seeds": [1, 2], "arms": {"trunk": ["--until", "1"], "full": fork, "msa": fork}}))

    def run(out, *more, code=0):
        done = subprocess.run([sys.executable, ROOT / "studies/pilot/run_missing.py", tmp_path / "sweep.json", "--seconds",
                               "100", "--corpus", tmp_path / "corpus", "--out", tmp_path / out, "--records",
                               tmp_path / "records", *more, "--", "--backend", "cpu", "--threads", "1"],
                              capture_output=True, text=True, timeout=200, cwd=ROOT)
        assert done.returncode == code, done.stderr
        return sorted(str(path.parent.relative_to(tmp_path / out)) for path in (tmp_path / out).glob("*/*/summary.json"))
    return run


def pack(tmp_path, out):
    """The runs of a folder into the records, as gpu.sh does it."""
    with tarfile.open(tmp_path / "runs.tar", "w") as tar:
        for path in sorted((tmp_path / out).glob("*/*/*")):
            if path.name in ("summary.json", "curves.csv", "diverged.json"):
                tar.add(path, path.relative_to(tmp_path / out))
    (tmp_path / "records").mkdir(exist_ok=True)
    subprocess.run([sys.executable, ROOT / "studies/pilot/pack_records.py", tmp_path / "runs.tar", tmp_path / "records"],
                   check=True, capture_output=True)


def test_what_is_not_recorded_is_done_with_the_trunk_that_it_starts_from(sweep, tmp_path):
    assert sweep("first") == [f"{arm}/seed-{seed}" for arm in ("full", "msa", "trunk") for seed in (1, 2)]
    (tmp_path / "first/msa/seed-2/summary.json").unlink()  # it has not ended
    pack(tmp_path, "first")
    with tarfile.open(tmp_path / "records/runs.tar.xz") as tar:
        assert tar.getnames() == [f"{run}/{name}" for name in ("curves.csv", "summary.json")
                                  for run in ("full/seed-1", "full/seed-2", "msa/seed-1")]
        curves = tar.extractfile("full/seed-1/curves.csv").read()
    assert b",loss," in curves and b",tokens_per_second," not in curves and b",kl_loss," not in curves
    assert sweep("second") == ["msa/seed-2", "trunk/seed-2"]
    pack(tmp_path, "second")
    assert sweep("third") == []


def test_a_failing_seed_is_said_and_the_next_one_is_done(sweep, tmp_path):
    (tmp_path / "out/trunk/seed-1").mkdir(parents=True)
    (tmp_path / "out/trunk/seed-1/summary.json").write_text("{")
    assert sweep("out", code=1) == ["full/seed-2", "msa/seed-2", "trunk/seed-1", "trunk/seed-2"]
