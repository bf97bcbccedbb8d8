#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tables of gpu/README.md and docs/kernels.md, from the records in data/bench.

usage: tables.py [--write]    without --write, says which tables differ

A table stands between the lines "<!-- table NAME from data/bench -->" and "<!-- end -->". Speed-ups
are over the fastest dense attention of the same record, or torch.topk. Where a record has none of a
case, another record's of the same device counts.
"""

import pathlib
import re
import sys
from collections import ChainMap

import baselines

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("gpu/README.md", "docs/kernels.md")
KINDS = ("square", "chunk", "short", "pack", "decode")
LAYERS = (("structured", "structured", "bf16"), ("fp8 index", "structured", "e4m3"),
          ("fitted", "fitted", "bf16"), ("random", "random", "bf16"))
MARKED = re.compile(r"(<!-- table (\w+) from data/bench -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def time_text(microseconds: float) -> str:
    for unit, scale in (("µs", 1), ("ms", 1e3), ("s", 1e6)):
        if microseconds < 1000 * scale or unit == "s":
            return f"{microseconds / scale:.3g} {unit}"
    raise AssertionError


def rate_text(measured: dict) -> str:
    return f"{measured['stage_flops_per_second'] / 1e12:.0f} TFLOP/s"


class Records:
    """All measurements of the GPU records, each with its baseline and its record's ceilings."""

    def __init__(self, paths):
        records = list(map(baselines.read, paths))
        devices = list(map(baselines.device_of, records))
        fastest = list(map(baselines.fastest_baselines, records))
        ceilings = [{b["baseline"]: b for b in baselines.rows(record, "baselines")
                     if "case_kind" not in b and "median_us" in b} for record in records]
        self.measured = []
        for record, device, own_fastest, own_ceilings in zip(records, devices, fastest, ceilings):
            beside = ChainMap(own_fastest, *(of for other, of in zip(devices, fastest) if other == device))
            self.measured += [{**m, "beside": beside.get(baselines.key_of_measurement(m)),
                               "ceilings": ChainMap(own_ceilings, *ceilings)}
                              for m in baselines.measurements(record) if "median_us" in m]

    def find(self, stage: str, case: str, **more) -> dict | None:
        for m in self.measured:
            if m["stage"] == stage and m["case"] == case and \
                    all(m.get(key) == value for key, value in more.items()):
                return m
        return None

    def layer_cases(self) -> list[str]:
        """The cases of the stage `layer`, sorted by kind, keys per sequence, sequences and queries."""
        def place(m: dict) -> tuple:
            n = m["case_sequences"]
            return (KINDS.index(m["case_kind"]), m["case_keys"] / n, n, m["case_queries"])
        found = [m for m in self.measured if m["stage"] == "layer" and m["case_kind"] in KINDS]
        return list(dict.fromkeys(m["case"] for m in sorted(found, key=place)))

    def layers(self, case: str) -> list:
        """The measurements of a case, in the order of LAYERS."""
        return [self.find("layer", case, selection=selection, index_form=element)
                for _, selection, element in LAYERS]


def beside_text(measured: dict) -> str:
    if not measured["beside"]:
        return ""
    microseconds, name = measured["beside"]
    return f"{name} {time_text(microseconds)}: {microseconds / measured['median_us']:.1f}×"


def overview(records: Records) -> list[list[str]]:
    """What gpu/README.md tells."""
    rows = [["", "tokens", "msalab", "beside it"]]

    def stage(label, tokens, measured, beside=None):
        if measured is None:
            return
        rate = f", {rate_text(measured)}" if measured["stage_flops"] and measured["case_kind"] != "decode" \
            and measured["stage"] != "layer" else ""
        rows.append([label, tokens, time_text(measured["median_us"]) + rate,
                     beside_text(measured) if beside is None else beside])

    square = "square 128K"
    index = records.find("index_select", square, selection="structured", index_form="bf16")
    gemm = index and index["ceilings"].get("gemm bf16")
    stage("`index_select`, scores and top-k in one", "128K", index,
          f"matrix product {gemm['stage_flops_per_second'] / 1e12:.0f} TFLOP/s" if gemm else "")
    stage("the same with fp8 operands", "128K",
          records.find("index_select", square, selection="structured", index_form="e4m3"), "")
    for selection in ("structured", "fitted", "random"):
        stage(f"`sparse_attention`, {selection}", "128K",
              records.find("sparse_attention", square, selection=selection, order="automatic"), "")
    for tokens in ("128K", "1M"):
        for (label, selection, _), layer in zip(LAYERS, records.layers(f"square {tokens}")):
            of = label if label == selection else f"{selection}, {label}"
            stage(f"a layer's prefill, {of}", tokens, layer)
    for sequences in (1, 8):
        for label, element in (("", "bf16"), (", fp8 index", "e4m3")):
            stage(f"a layer, one token of {sequences} sequence{'s' * (sequences > 1)}{label}", "1M",
                  records.find("layer", f"decode {sequences} x 1 over 1M", selection="random",
                               index_form=element))
    stage("`block_mass`, exact probabilities of all blocks", "128K",
          records.find("block_mass", square), "")
    stage("`select_blocks`, 128K rows of 1024 scores", "",
          records.find("select_blocks", "top-k 16 of 1K, 128K"))
    return rows


def layers(records: Records) -> list[list[str]]:
    """Every case: dense attention, and the layer over it. Columns are those that a case has."""
    cases = {case: found for case in records.layer_cases() if any(found := records.layers(case))}
    kept = [n for n, _ in enumerate(LAYERS) if any(found[n] for found in cases.values())]
    rows = [["case", "dense"]]
    for n in kept:
        rows[0] += [LAYERS[n][0], ""]
    for case, all_found in cases.items():
        found = [all_found[n] for n in kept]
        beside = next((m["beside"] for m in found if m and m["beside"]), None)
        row = [case, time_text(beside[0]) if beside else ""]
        for m in found:
            row += ["", ""] if m is None else [
                time_text(m["median_us"]),
                f"{beside[0] / m['median_us']:.1f}×" if beside else ""]
        rows.append(row)
    return rows


def top_k(records: Records) -> list[list[str]]:
    """tab:topk_latency: a shape's first record counts, and layers of fewer rows are not of it."""
    rows = [["rows", "scores", "k", "`select_blocks`", "`torch.topk`", "of the copy rate"]]
    shapes = set()
    for m in records.measured:
        shape = (m["case_queries"], m["case_blocks"], m["top_k"])
        if m["stage"] == "select_blocks" and m["case_queries"] >= 1 << 17 and shape not in shapes:
            shapes.add(shape)
            rows.append([f"{m['case_queries'] // 1024}K", str(m["case_blocks"]), str(m["top_k"]),
                         time_text(m["median_us"]),
                         time_text(m["beside"][0]) if m["beside"] else "",
                         f"{100 * m['share_of_copy']:.0f} %"])
    return rows


TABLES = {"overview": overview, "layers": layers, "top_k": top_k}


def markdown(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def renewed(page: str, records: Records) -> str:
    """The page with its tables as the records have them."""
    return MARKED.sub(lambda found: found[1] + markdown(TABLES[found[2]](records)) + found[4], page)


def main() -> int:
    records = Records(sorted((ROOT / "data/bench").glob("cuda-*.json")))
    stale = []
    for name in PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        new = renewed(page, records)
        if new != page:
            stale.append(name)
            if "--write" in sys.argv[1:]:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(", ".join(stale) + (": written" if "--write" in sys.argv[1:] else
                                  ": the tables are not the records'; bench/tables.py --write"))
    else:
        print(f"the tables of {' and '.join(PAGES)} are the records'")
    return bool(stale) and "--write" not in sys.argv[1:]


if __name__ == "__main__":
    sys.exit(main())
