# SPDX-License-Identifier: MIT
"""A user's script under mypy --strict: it is accepted, and wrong types in it are found; without mypy it is skipped.
The names that `from msalab.torch import *` gives are the operations."""

from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
SCRIPT = """import numpy as np
import torch
import msalab
import msalab.torch as m
from msalab import analysis

q, k, v = torch.rand(64, 4, 16), torch.rand(64, 2, 16), torch.rand(64, 2, 16)
index_q, index_k = torch.rand(64, 2, 16), torch.rand(64, 16)
ids = m.index_select(index_q, index_k, 4, block_size=8)
out = m.sparse_attention(q, k, v, ids, block_size=8)
loss = m.index_kl(q, k, index_q, index_k, ids, block_size=8)
scores = m.index_scores(index_q, index_k, block_size=8)
mass = msalab.block_mass(np.zeros((4, 4, 16), np.float32), np.zeros((4, 2, 16), np.float32), block_size=8)
kept = analysis.recall(ids.numpy(), mass, block_size=8)
print(out.shape, loss, kept)
"""
WRONG = {
    'bad = m.index_select(index_q, index_k, "16", block_size=8)': 'has incompatible type "str"; expected "int"',
    'worse = msalab.index_select(index_q, index_k, 4, block_size="8")': 'Argument "block_size" to "index_select"',
    "worst = scores.shap": '"Tensor" has no attribute "shap"'}


def checked(tmp_path, monkeypatch, text):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
    (tmp_path / "user.py").write_text(text)
    monkeypatch.setenv("MYPYPATH", str(PYTHON))
    said, errors, _ = api.run(["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir",
                               str(tmp_path / "cache"), str(tmp_path / "user.py")])
    assert not errors
    return said


def test_a_script_is_accepted_and_its_faults_are_found(tmp_path, monkeypatch):
    assert "Success" in checked(tmp_path, monkeypatch, SCRIPT)
    said = checked(tmp_path, monkeypatch, SCRIPT + "\n".join(WRONG))
    assert all(fault in said for fault in WRONG.values())
    assert f"Found {len(WRONG)} errors" in said


def test_a_star_gives_operations_alone():
    torch = pytest.importorskip("msalab.torch", exc_type=ImportError)
    given = {}
    exec("from msalab.torch import *", given)  # noqa: S102
    given.pop("__builtins__")
    assert given.keys() == set(torch.__all__) and {"index_select", "msa_sparse_attention"} <= given.keys()
    assert not {"functools", "inspect", "Tensor", "integers", "nullcontext"} & given.keys()
