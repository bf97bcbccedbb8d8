# SPDX-License-Identifier: MIT
"""Times beside other attentions of PyTorch: the pictures of a record, and, with PyTorch, who is timed."""

import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from msalab import plots
from msalab.report import Shape
from msalab.results import Column

ROOT = Path(__file__).parents[2]
TEXT, REAL = Column("text", "", "a name"), Column("real", "", "a number")
ROWS = [{"contender": "msalab", "attends_to": "the selected blocks", "off": 0.0, "forward_ms": 2.0,
         "step_ms": 5.0},
        {"contender": "SDPA", "attends_to": "all keys", "forward_ms": 9.0, "skipped": "out of memory"},
        {"contender": "FlashAttention 3", "attends_to": "all keys", "skipped": "not installed"}]
RUN = {"device": "a GPU", "torch": "3.0",
       "rival_case": {"tokens": 64, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "block_size": 8, "top_k": 2,
                      "dtype": "float32"}}


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"bench/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_what_was_timed():
    figure, table = plots.rival_bars(ROWS, plots.rival_title(RUN))
    assert table["name"].tolist() == ["msalab", "SDPA"]
    assert table["step_ms"][0] == 5 and math.isnan(table["step_ms"][1])
    axes, = figure.axes
    assert [text.get_text() for text in axes.texts] == ["2", "9", "5"]
    assert sorted(patch.get_width() for patch in axes.patches) == [0, 2, 5, 9]
    assert "64 tokens, 4/2 heads of 16, Bk 8, k 2, float32" in figure.get_suptitle()
    assert list(plots.absent_table(ROWS).rows()) == [("SDPA", "out of memory"),
                                                     ("FlashAttention 3", "not installed")]


@pytest.fixture
def record(tmp_path, monkeypatch):
    """As bench/time_torch.py writes it."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    shapes = [Shape("host", "", 1, {"call": TEXT, "host_us": REAL, "compiled_us": REAL}),
              Shape("layer", "", 1, {"stage": TEXT, "torch_ms": REAL, "bench_ms": REAL}),
              Shape("rivals", "", 1, {"contender": TEXT, "attends_to": TEXT, "off": REAL, "forward_ms": REAL, "step_ms": REAL,
                                      "skipped": Column("text", "", "why", "timed")})]
    columns = {shape.name: shape.columns for shape in shapes}
    made = load("record").Record(tmp_path / "record.json", "bench/time_torch.py", "times", shapes, RUN)
    for table, rows in (("host", [("msa_index_select", 12.0, 5.0), ("torch.mul", 3.0, None)]),
                        ("layer", [("index_select", 6.0, 5.0), ("MSAttention", 40.0, None), ("index_kl", None, None)])):
        for row in rows:
            made.put(table, dict(zip(columns[table], row)))
    for row in ROWS:
        made.put("rivals", row)
    return plots.read_torch_times(tmp_path / "record.json")


def test_a_record_is_drawn_as_what_was_just_measured(record):
    assert list(plots.rival_table(record["rivals"].records()).rows())[0] == list(plots.rival_table(ROWS).rows())[0]
    assert list(plots.absent_table(record["rivals"].records()).rows()) == list(plots.absent_table(ROWS).rows())
    assert plots.rival_title(record.run) == plots.rival_title(RUN)


def test_tables_stand_beside_msa_bench_and_the_compiled_part(record):
    rows = list(plots.layer_table(record).rows())
    assert rows[0] == ("index_select", 6, 5, 1.2)
    assert rows[1][:2] == ("MSAttention", 40) and all(map(math.isnan, rows[1][2:]))
    rows = list(plots.host_table(record).rows())
    assert rows[0] == ("msa_index_select", 12, 5, 7) and all(map(math.isnan, rows[1][2:]))


def test_records_are_read_and_others_refused(tmp_path):
    for path in (ROOT / "data/bench").glob("torch-*.json"):
        assert len(plots.rival_table(plots.read_torch_times(path)["rivals"].records())) > 1
    (tmp_path / "other.json").write_text(json.dumps({"format": "msa-torch-times"}))
    with pytest.raises(plots.ResultsError, match='format is "msa-torch-times", must be "msa-report"'):
        plots.read_torch_times(tmp_path / "other.json")


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_who_is_here_is_timed_and_computes_the_same():
    torch = pytest.importorskip("torch")
    pytest.importorskip("msalab._msalab")
    rivals = load("torch_rivals")
    case = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.float32)
    rows = {row["contender"]: row for row in rivals.measure(case, 100)}
    assert case.sizes()["dtype"] == "float32"
    for name in ("msalab, selection and KL loss", "msalab, with the selection", "msalab"):
        assert rows[name]["step_ms"] > 0 and "skipped" not in rows[name]
    for row in rows.values():
        assert row.get("off", 0) < 1e-5
    if "forward_ms" in rows["FlexAttention"]:
        assert rows["FlexAttention"]["off"] > 0  # another order of sums: it was computed, not copied
    assert all("forward_ms" in row or row["skipped"] for row in rows.values())


def test_every_call_whose_host_time_is_told_can_be_made(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("msalab._msalab")
    monkeypatch.syspath_prepend(ROOT / "bench")
    times = load("time_torch")
    monkeypatch.setattr(times, "host_us", lambda call: [call()] and 1.0)
    names = [name for name, *_ in times.host_times()]
    assert {"msa_index_select", "msa_sparse_attention", "dense_attention"} <= set(names)


def test_who_computes_something_else_gets_no_time(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("msalab._msalab")
    rivals = load("torch_rivals")

    def wrong(case, *operands):
        inputs, attend, to_rows = rivals._sdpa(case, *operands)
        off = 3 * rivals.farthest(case, *operands[:3], rivals.ALL_KEYS)
        return inputs, lambda q, k, v: attend(q, k, v) + off, to_rows

    monkeypatch.setattr(rivals, "CONTENDERS", (("SDPA", rivals.ALL_KEYS, rivals._sdpa),
                                               ("wrong", rivals.ALL_KEYS, wrong)))
    case = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.float32)
    right, other = rivals.measure(case, 100)
    assert right["step_ms"] > 0 and 0 < right["off"]
    assert other["skipped"].startswith("ValueError: its output is off ours by") and "forward_ms" not in other


def test_in_bfloat16_outputs_may_be_apart_by_its_roundings():
    torch = pytest.importorskip("torch")
    pytest.importorskip("msalab._msalab")
    rivals = load("torch_rivals")
    single = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.float32)
    operands = tuple(one.bfloat16() for one in single.operands()[:5])
    want = rivals.m.dense_attention(*(one.float() for one in operands[:3]))
    inputs, attend, to_rows = rivals._sdpa(single, *operands, None)
    off = (to_rows(attend(*inputs)) - want).abs().max().item()
    half = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.bfloat16)
    bounds = [rivals.farthest(case, *operands[:3], rivals.ALL_KEYS) for case in (half, single)]
    assert bounds[1] < off <= bounds[0] < 0.05 * want.abs().max().item()


def test_a_rival_without_a_gradient_has_the_time_of_its_forward_pass(monkeypatch):
    torch = pytest.importorskip("torch")
    ours = pytest.importorskip("msalab.torch")
    rivals = load("torch_rivals")
    case = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.float32)
    called = []

    def selection(q, k, v, ids, counts, ends_q, ends_k, block_size, scale_softmax, is_causal=False):
        called.append((counts.tolist(), ends_q.tolist(), ends_k.tolist(), scale_softmax, is_causal))
        with torch.no_grad():
            return ours.msa_sparse_attention(q, k, v, ids, block_size=block_size), None, None

    nsa = SimpleNamespace(selection_attention_wrapper=selection)
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(NSA=nsa))
    monkeypatch.setattr(rivals, "CONTENDERS", [one for one in rivals.CONTENDERS if "NSA" in one[0]])
    (row,) = rivals.measure(case, 100)
    assert row["forward_ms"] > 0 and row["skipped"] == "RuntimeError: it has no gradient"
    counts, *others = called[0]
    assert counts == [[min(3, token // 16 + 1)] * 2 for token in range(192)]
    assert others == [[0, 192], [0, 192], 0.25, True]


def test_flash_msa_is_read_in_its_layout_and_trained_with_its_loss(monkeypatch):
    torch = pytest.importorskip("torch")
    ours = pytest.importorskip("msalab.torch")
    rivals = load("torch_rivals")
    case = rivals.Case(192, 4, 2, 16, 16, 16, 3, "cpu", torch.float32)
    grads = []

    def select_blocks(index_q, index_k, scale, num_blocks, top_k_blocks):
        """Ours with block 0 in place of the lowest one, in another order and with another padding."""
        ids = ours.msa_index_select(*of_tokens(index_q), index_k[0, 0], top_k_blocks, block_size=16)
        far = torch.arange(192)[:, None] // 16 > 4
        ids[:, :, 0] = ids[:, :, 0].where(~far, 0)
        return ids.where(ids >= 0, num_blocks).flip(-1).transpose(0, 1)[None]

    def of_tokens(*tensors):
        return [one[0].transpose(0, 1).contiguous() for one in tensors]

    def stand_in(index_q, index_k, q, k, v, top_k, scale):
        assert index_q.shape == (1, 2, 192, 16) and index_k.shape == (1, 1, 192, 16)
        assert q.shape == (1, 4, 192, 16) and k.shape == v.shape == (1, 2, 192, 16)
        assert top_k == 48 and scale == 0.25
        found = select_blocks(index_q.detach(), index_k.detach(), scale, 12, 3)[0].transpose(0, 1)
        ids = found.where(found < 12, 99).sort(dim=-1).values
        ids = ids.where(ids < 12, -1).int().contiguous()
        out = ours.msa_sparse_attention(*of_tokens(q, k, v), ids, block_size=16)
        loss = index_k.sum() + index_q.sum()
        if loss.requires_grad:
            loss.register_hook(grads.append)
        return out.reshape(1, 192, 64), loss

    monkeypatch.setitem(sys.modules, "flash_msa", SimpleNamespace(flash_msa_func=stand_in))
    monkeypatch.setitem(sys.modules, "flash_msa.msa_select_cutedsl",
                        SimpleNamespace(select_blocks=select_blocks))
    monkeypatch.setattr(rivals, "CONTENDERS", [one for one in rivals.CONTENDERS if "flash-msa" in one[0]])
    (row,) = rivals.measure(case, 100)
    assert "skipped" not in row, row
    assert row["step_ms"] > 0 and row["off"] < 1e-5 and 0 < row["other_ids"] < 0.3
    assert grads


def test_what_takes_too_long_is_stopped():
    pytest.importorskip("torch")
    pytest.importorskip("msalab._msalab")
    with pytest.raises(TimeoutError, match="stopped after"):
        with load("torch_rivals").at_most(0.05):
            time.sleep(30)
