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
import msalab.transformers
from msalab import analysis, nn, results, selectors
from msalab.capture import TransformersModel, capture
from msalab.rule import Rule

q, k, v = torch.rand(64, 4, 16), torch.rand(64, 2, 16), torch.rand(64, 2, 16)
index_q, index_k = torch.rand(64, 2, 16), torch.rand(64, 16)
ids = m.index_select(index_q, index_k, 4, block_size=8)
out = m.sparse_attention(q, k, v, ids, block_size=8)
loss = m.index_kl(q, k, index_q, index_k, ids, block_size=8)
scores = m.index_scores(index_q, index_k, block_size=8)
mass = msalab.block_mass(np.zeros((4, 4, 16), np.float32), np.zeros((4, 2, 16), np.float32), block_size=8)
kept = analysis.recall(ids.numpy(), mass, block_size=8)
print(out.shape, loss, kept)
chosen = selectors.select("mean-key", q, k, Rule(block_size=8, top_k=4))
y, kl = nn.MSAttention(64, 4, 2, 16, block_size=8, top_k=4)(torch.rand(64, 64))
model: torch.nn.Module = torch.nn.Linear(1, 1)
sparse = msalab.transformers.configure(model, "mean-key", block_size=64, top_k=16, dense_layers=[0])
print(len(sparse))
capture(TransformersModel(model), [[1, 2, 3]], "mine.h5", layers=[2, 4])
answer = results.open("results/reuse")
print(chosen.shape, y, answer.verdict.text, answer["pairs"]["mass_lost"].mean(), answer["pairs"].row(source=0)["target"])
"""
WRONG = {
    'bad = m.index_select(index_q, index_k, "16", block_size=8)': 'has incompatible type "str"; expected "int"',
    'worse = msalab.index_select(index_q, index_k, 4, block_size="8")': 'Argument "block_size" to "index_select"',
    'msalab.select_blocks(mass, top_k="16")': 'Argument "top_k" to "select_blocks" has incompatible type "str"',
    'msalab.transformers.configure(model, top_k="16")': 'Argument "top_k" to "configure" has incompatible type "str"',
    'Rule(top_k="16")': 'Argument "top_k" to "Rule" has incompatible type "str"',
    "m.select_blocks(scores, 4, force_begin_blocks=1)": 'Unexpected keyword argument "force_begin_blocks"',
    "worst = scores.shap": '"Tensor" has no attribute "shap"'}


# Of torch and transformers mypy reads what the script names: all of both takes the better part of a minute of a core.
SETTINGS = """[mypy]
strict = true
follow_imports = silent
ignore_missing_imports = true
[mypy-torch.*,transformers.*,scipy.*,matplotlib.*]
follow_imports = skip
[mypy-torch,torch._C,torch._tensor,torch.nn,torch.nn.modules,torch.nn.modules.linear,torch.nn.modules.module]
follow_imports = silent
"""


def checked(tmp_path, monkeypatch, text):
    """What mypy says; its cache stays in build/."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
    (tmp_path / "user.py").write_text(text)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    monkeypatch.setenv("MYPYPATH", str(PYTHON))
    said, errors, _ = api.run(["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir",
                               str(PYTHON.parent / "build/mypy"), str(tmp_path / "user.py")])
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
