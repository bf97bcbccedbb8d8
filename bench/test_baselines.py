# SPDX-License-Identifier: MIT
"""Shapes, merging, speed-ups and the check of an answer; measuring needs PyTorch and a GPU."""

import baselines
import pytest
from msalab import results


def measurement(kind, stage, sequences, queries, keys, microseconds, **more):
    return {"case": more.pop("case", kind), "case_kind": kind, "stage": stage, "case_sequences": sequences,
            "case_queries": queries, "case_keys": keys, "case_blocks": more.pop("blocks", 4), "top_k": 16,
            "median_us": microseconds, **more}


def record_of(measured, device="X"):
    """A record of msa-bench as far as it is read here."""
    of_case = ("case", "case_kind", "case_sequences", "case_queries", "case_keys", "case_blocks", "top_k")
    cases = {m["case"]: {key: m[key] for key in of_case} for m in measured}
    rows = [{"stage_flops": None, "skipped": None}
            | {key: value for key, value in m.items() if key == "case" or key not in of_case} for m in measured]
    return {"program": "msa-bench", "columns": {}, "tables": {
        "benchmark": {"rows": [{"device": device}]}, "cases": {"rows": list(cases.values())},
        "measurements": {"rows": rows}}}


def make_record():
    return record_of([
        measurement("square", "layer", 1, 512, 512, 10, selection="random", stage_flops=1e6,
                    stage_flops_per_second=1e11),
        measurement("decode", "layer", 8, 16, 4096, 5, selection="structured", case="decode of 8"),
        measurement("decode", "layer", 1, 16, 4096, 5, selection="structured"),
        measurement("top-k", "select_blocks", 1, 256, 1024, 2, blocks=8),
        measurement("pack", "layer", 2, 512, 512, 10),
        measurement("pack", "dense_attention", 2, 512, 512, 70, answered_by="cuDNN 9.13.1"),
        measurement("square", "dense_attention", 1, 512, 512, 30, answered_by="cuDNN 9.13.1"),
        measurement("decode", "dense_attention", 1, 16, 4096, 9, answered_by="plain"),
        measurement("square", "layer", 1, 9, 9, None, case="square of 9", skipped="no memory"),
    ])


def make_baselines():
    def result(name, kind, sequences, queries, keys, library, **more):
        return {"baseline": name, "case_kind": kind, "case_sequences": sequences, "case_queries": queries,
                "case_keys": keys, "library": library, **more}
    return [
        {"baseline": "gemm bf16", "median_us": 1, "stage_flops": 1.0, "stage_flops_per_second": 4e11},
        result("a", "square", 1, 512, 512, "cuDNN", median_us=40),
        result("b", "decode", 8, 2, 512, "cuDNN", median_us=60),
        result("c", "decode", 8, 2, 512, "flash", median_us=30),
        {"baseline": "d", "case_kind": "top-k", "case_queries": 256, "case_blocks": 8, "top_k": 16, "median_us": 8},
        result("e", "decode", 1, 16, 4096, "cuDNN", skipped="out of memory"),
    ]


def test_shapes_are_those_of_the_record():
    assert baselines.shapes_of(make_record()) == {
        "square": [(1, 512, 512, 0, 0), (1, 9, 9, 0, 0)],
        "decode": [(8, 2, 512, 0, 0), (1, 16, 4096, 0, 0)],
        "top-k": [(1, 256, 0, 8, 16)],
    }


def test_speed_ups_take_the_fastest_baseline():
    record = make_record()
    baselines.merge(record, make_baselines())
    assert baselines.speed_ups(record) == [
        ("square", "layer random", 10, "cuDNN", 30, 3),
        ("decode of 8", "layer structured", 5, "flash", 30, 6),
        ("top-k", "select_blocks", 2, "torch.topk", 8, 4),
        ("pack", "layer", 10, "cuDNN", 70, 7),
    ]


def test_shares_of_the_matrix_product():
    record = make_record()
    baselines.merge(record, make_baselines())
    rows = record["tables"]["measurements"]["rows"]
    assert rows[0]["share_of_gemm"] == 0.25
    assert "share_of_gemm" not in rows[1]


def test_a_record_with_baselines_is_a_report(tmp_path):
    record = {"format": "msa-report", "format_version": 1, "title": "", "verdict": {"reached": None, "text": ""},
              "notes": {}, "run": {}} | make_record()
    shared = {"case_kind": "text", "library": "text", "samples_us": "text", "skipped": "text"}
    record["tables"] = {}
    record["columns"] = {key: {"type": shared.get(key, "real"), "unit": "", "definition": "of a case"}
                         for key in baselines.TABLE if key not in baselines.COLUMNS}
    baselines.add_table(record, [{"baseline": "a", "median_us": 2.5, "torch_version": "3"}])
    baselines.write(str(tmp_path / "record.json"), record)
    found = results.open(tmp_path / "record.json", "msa-bench")["baselines"].row(baseline="a")
    assert (found["median_us"], found["torch_version"], found["library"]) == (2.5, "3", "")


def test_tables_print(capsys):
    record = make_record()
    baselines.merge(record, make_baselines())
    baselines.print_tables(record)
    printed = capsys.readouterr().out
    assert "3.00x" in printed and "flash" in printed and "0.250" in printed


@pytest.mark.parametrize("causal", [False, True])
def test_an_answer_is_compared_with_attention_before_it_is_timed(causal):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 32, 8).bfloat16() for heads in (4, 2, 2))

    def attend(*operands):
        return torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=causal,
                                                                enable_gqa=True)
    baselines.require_attention(torch, attend, q, k, v, causal)
    with pytest.raises(ValueError, match="from attention, more than"):
        baselines.require_attention(torch, attend, q, k, v, not causal)
    with pytest.raises(ValueError, match="nan from attention"):
        baselines.require_attention(torch, lambda *x: attend(*x) * float("nan"), q, k, v, causal)
