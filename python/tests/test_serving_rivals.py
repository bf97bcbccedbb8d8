# SPDX-License-Identifier: MIT
"""bench/serving_rivals.py on a CPU, with a stand-in for vLLM's kernels."""

import importlib
import sys
from types import ModuleType

import pytest
from test_torch_times import ROOT

from msalab import results

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")


@pytest.fixture
def rivals(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("serving_rivals")


def test_without_vllm_there_are_our_times(rivals, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    rivals.main(["--small", "--out", str(tmp_path / "r.json")])
    rows = results.open(tmp_path / "r.json")["layers"].records()
    assert [row["operands"] for row in rows] == ["random", "alike"]
    for row in rows:
        assert row["skipped"].startswith("not installed") and row["msalab_layer_us"] > 0
    assert "not installed" in capsys.readouterr().out


@pytest.mark.parametrize("wrong, why", [(None, None), ("ids", "are others"), ("output", "is off ours by")])
def test_only_what_computes_the_same_gets_a_time(rivals, monkeypatch, wrong, why):
    """A stand-in that computes by msalab from vLLM's cache, or wrongly."""
    made = {}

    class Spied(rivals.Operands):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made["given"] = self

    monkeypatch.setattr(rivals, "Operands", Spied)
    case = rivals.SMALL[0]

    def pages():
        return {"page_table": made["given"].page_table, "seqused_k": made["given"].lengths, "block_size": 128,
                "cu_seqlens_q": made["given"].ends, "max_seqlen_k": max(case.lengths)}

    def topk(scores, cu_q, before, most, k, first, local):
        assert torch.equal(before, made["given"].lengths - cu_q.diff()) and (first, local) == (0, 1)
        found = rivals.m.index_select(scores, made["given"].index_k, k, **pages()).transpose(0, 1).contiguous()
        return found.flip(1) if wrong == "ids" else found

    def attend(q, cache, ids, table, cu_q, lengths, before, most, heads, scale, out):
        k, v = (half.transpose(1, 2).contiguous() for half in cache.chunk(2, -1))
        out.copy_(rivals.m.sparse_attention(q, k, v, ids.transpose(0, 1).contiguous(), **pages()))
        if wrong == "output":
            out[-1, -1, -1] += 1

    ops = ModuleType("vllm.models.minimax_m3.common.ops")
    ops.minimax_m3_index_score = lambda index_q, *others: index_q
    ops.minimax_m3_index_topk, ops.minimax_m3_sparse_attn = topk, attend
    names = ops.__name__.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    sys.modules["vllm.models.minimax_m3.common"].ops = ops
    monkeypatch.setitem(sys.modules, ops.__name__, ops)
    row = rivals.measure(case, "random", "cpu")
    if wrong:
        assert why in row["skipped"] and "vllm_layer_us" not in row
    else:
        assert row["vllm_layer_us"] > 0 and row["other_ids"] == 0
