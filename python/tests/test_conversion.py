# SPDX-License-Identifier: MIT
"""data/conversion/judge.py on made records: the rule of docs/dense_to_msa.md."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS, TOKENS = 8, 50


def make_record(folder, arm, seed, config, more, right):
    """Of an arm whose tokens cost the share `more` more than those of the arm dense, by document from half of it to
    one and a half."""
    rng = np.random.default_rng(7)  # the same text everywhere
    nats = rng.uniform(1, 3, DOCUMENTS * TOKENS)
    share = 1 + more * np.repeat(np.linspace(0.5, 1.5, DOCUMENTS), TOKENS)
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        file["configs"] = ["dense", config] if config != "dense" else ["dense"]
        file["evaluate/text/nats"] = np.stack([nats, nats * share] if config != "dense" else [nats])
        file["evaluate/text/sequence"] = np.repeat(np.arange(DOCUMENTS), TOKENS)
        file["evaluate/text/document"] = np.arange(DOCUMENTS)
        rows = len(file["configs"])
        file["evaluate/retrieval/needle@2048/right"] = np.tile(np.arange(100) < right, (rows, 1))
    with tarfile.open(folder / f"{arm}-seed-{seed}.tar", "w") as tar:
        member = tarfile.TarInfo("evaluation.h5")
        member.size = len(data.getvalue())
        tar.addfile(member, io.BytesIO(data.getvalue()))


def judged(folder):
    done = subprocess.run([sys.executable, ROOT / "data/conversion/judge.py", folder], text=True,
                          capture_output=True, env={"PYTHONPATH": ":".join(sys.path)})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("more, right, good", [(0.002, 89, True), (0.0045, 90, False), (0.002, 87, False)])
def test_the_upper_end_and_each_task_decide(tmp_path, more, right, good):
    """0.45 % on average is not enough: some documents cost more, so the interval reaches beyond 0.5 %."""
    for seed in (1, 2):
        make_record(tmp_path, "dense", seed, "dense", 0, 90)
        make_record(tmp_path, "msa-512", seed, "index@512", more, right)
    code, out, _ = judged(tmp_path)
    assert code == 0 and f"msa-512, seeds 1, 2: {'near-lossless' if good else 'not near-lossless'}\n" in out
    assert float(re.search(r"excess (\S+) %", out)[1]) == pytest.approx(100 * more, rel=0.02)
    assert f"needle@2048: {right:.1f} against 90.0 of 100" in out


def test_without_a_dense_run_nothing_is_judged(tmp_path):
    make_record(tmp_path, "msa-512", 1, "index@512", 0, 90)
    code, _, errors = judged(tmp_path)
    assert code == 1 and "has no record of the arm dense" in errors
