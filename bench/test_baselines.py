# SPDX-License-Identifier: MIT
"""Shapes, merging, speed-ups and the check of an answer; measuring needs PyTorch and a GPU."""

import baselines
import pytest


def measurement(kind, stage, sequences, queries, keys, microseconds, **more):
    return {"case": kind, "kind": kind, "stage": stage, "sequences": sequences,
            "queries": queries, "keys": keys, "blocks": more.pop("blocks", 4), "top_k": 16,
            "median_us": microseconds, **more}


def make_record():
    return {"measurements": [
        measurement("square", "layer", 1, 512, 512, 10, selection="random", flops=1e6,
                    flops_per_second=1e11),
        measurement("decode", "layer", 8, 16, 4096, 5, selection="structured"),
        measurement("decode", "layer", 1, 16, 4096, 5, selection="structured"),
        measurement("top-k", "select_blocks", 1, 256, 1024, 2, blocks=8),
        measurement("pack", "layer", 2, 512, 512, 10),
        measurement("pack", "dense_attention", 2, 512, 512, 70, answered_by="cuDNN 9.13.1"),
        measurement("square", "dense_attention", 1, 512, 512, 30, answered_by="cuDNN 9.13.1"),
        measurement("decode", "dense_attention", 1, 16, 4096, 9, answered_by="plain"),
        {**measurement("square", "layer", 1, 9, 9, 0), "skipped": "no memory"},
    ]}


def make_baselines():
    def result(name, kind, sequences, queries, keys, microseconds, **more):
        return {"name": name, "kind": kind, "sequences": sequences, "queries": queries,
                "keys": keys, "median_us": microseconds, **more}
    return {"measurements": [
        result("gemm bf16", "ceiling", 0, 0, 0, 1, flops_per_second=4e11),
        result("a", "square", 1, 512, 512, 40, backend="cuDNN"),
        result("b", "decode", 8, 2, 512, 60, backend="cuDNN"),
        result("c", "decode", 8, 2, 512, 30, backend="flash"),
        {"name": "d", "kind": "top-k", "queries": 256, "blocks": 8, "top_k": 16, "median_us": 8},
        {"name": "e", "kind": "decode", "sequences": 1, "queries": 16, "keys": 4096,
         "backend": "cuDNN", "skipped": "out of memory"},
    ]}


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
        ("decode", "layer structured", 5, "flash", 30, 6),
        ("top-k", "select_blocks", 2, "torch.topk", 8, 4),
        ("pack", "layer", 10, "cuDNN", 70, 7),
    ]


def test_shares_of_the_matrix_product():
    record = make_record()
    baselines.merge(record, make_baselines())
    assert record["measurements"][0]["share_of_gemm"] == 0.25
    assert "share_of_gemm" not in record["measurements"][1]


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
