# SPDX-License-Identifier: MIT
"""Tables of the pages: what they show, and that they are the records'."""

import json

import tables
from test_baselines import record_of


def measurement(case, stage, microseconds, **more):
    return {"case": case, "case_kind": case.split()[0], "stage": stage, "case_sequences": 1, "case_queries": 131072,
            "case_keys": 131072, "case_blocks": 1024, "top_k": 16, "median_us": microseconds, "stage_flops": 1e12,
            "stage_flops_per_second": 5e14, "share_of_copy": 0.75, **more}


def records_of(tmp_path, *measured):
    path = tmp_path / "cuda-x.json"
    path.write_text(json.dumps(record_of(measured)), encoding="utf-8")
    return tables.Records([path])


def test_layers_stand_beside_the_dense_attention_of_their_case(tmp_path):
    layer = {"selection": "structured", "index_form": "bf16"}
    records = records_of(
        tmp_path, measurement("square 128K", "dense_attention", 5e5, answered_by="cuDNN 9.13.1"),
        measurement("square 128K", "layer", 4e4, **layer),
        measurement("square 128K", "layer", 5e4, selection="fitted", index_form="bf16"),
        measurement("pack of 2, 192K", "layer", 3e4, **layer),
        measurement("layer 3, 8K", "layer", 2e4, case_kind="captured", selection="fitted",
                    index_form="bf16"),
        {**measurement("square 1M", "layer", None), "skipped": "no room"})
    assert tables.layers(records) == [
        ["case", "dense", "structured", "", "fitted", ""],
        ["square 128K", "500 ms", "40 ms", "12.5×", "50 ms", "10.0×"],
        ["pack of 2, 192K", "", "30 ms", "", "", ""]]
    assert tables.overview(records)[1:] == [
        ["a layer's prefill, structured", "128K", "40 ms", "cuDNN 500 ms: 12.5×"],
        ["a layer's prefill, fitted", "128K", "50 ms", "cuDNN 500 ms: 10.0×"]]


def test_a_record_without_dense_attention_stands_beside_that_of_another(tmp_path):
    layer = measurement("square 1M", "layer", 1e6, selection="structured", index_form="bf16")
    dense = [measurement("square 1M", "dense_attention", time, answered_by="cuDNN 9.13.1") for time in (3e7, 2e7)]
    for name, device, measured in (("a", "X", [layer]), ("b", "X", dense[:1]), ("c", "Y", dense[1:])):
        (tmp_path / f"cuda-{name}.json").write_text(json.dumps(record_of(measured, device)), encoding="utf-8")
    records = tables.Records(sorted(tmp_path.glob("cuda-*.json")))
    assert tables.overview(records)[1][3] == "cuDNN 30 s: 30.0×"


def test_pages_are_renewed_between_their_marks(tmp_path):
    records = records_of(tmp_path, measurement("top-k 16 of 1K, 128K", "select_blocks", 250,
                                               case_kind="top-k"),
                         measurement("the same again", "select_blocks", 260, case_kind="top-k"),
                         measurement("few rows", "select_blocks", 9, case_kind="top-k", case_queries=8192))
    page = "a\n<!-- table top_k from data/bench -->\nold\n<!-- end -->\nb\n"
    assert tables.renewed(page, records) == (
        "a\n<!-- table top_k from data/bench -->\n"
        "| rows | scores | k | `select_blocks` | `torch.topk` | of the copy rate |\n"
        "|---|---|---|---|---|---|\n| 128K | 1024 | 16 | 250 µs | | 75 % |\n<!-- end -->\nb\n")


def test_times_in_their_unit():
    assert [tables.time_text(us) for us in (0.5, 85.25, 999, 14321, 3.5e7)] == \
        ["0.5 µs", "85.2 µs", "999 µs", "14.3 ms", "35 s"]


def test_the_pages_hold_what_the_records_say():
    assert tables.main() == 0
