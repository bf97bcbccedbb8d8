#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares what the programs answer with what they answered before their answers became tables, bit by
bit. Removed when all of them are ported.

usage: answers_oracle.py record|check ORACLE.json.gz FOLDER_OF_PROGRAMS [--only RUN,...]

`record` keeps the JSON, the CSV files and the datasets of every run. `check` runs the same command
lines with another build. Where the answer is still a tree, it must be the same. Where it is a report
(data/FORMAT.md), its rows (table, row key, column) -> (value, low, high) must be those that
answers_oracle_NAME.py makes of the old tree; what one of the two lacks must be explained there.
"""

import argparse
import fnmatch
import gzip
import hashlib
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py

TESTS = pathlib.Path(__file__).resolve().parent
SAMPLE = TESTS.parent / "data" / "sample.h5"
FORMAT = "msa-report"
SMALL = ["--query-heads", "4", "--kv-heads", "2", "--head-dim", "32", "--index-dim", "32"]
INPUTS = {
    "planted.h5": ["--tokens", "1K", "--sequences", "2", "--layers", "2", *SMALL],
    "layers.h5": ["--tokens", "1K", "--layers", "4", *SMALL],
    "short.h5": ["--tokens", "512", "--layers", "2", *SMALL],
}
SIZES = ["--block-size", "32", "--top-k", "4"]
FEW = ["--sample-queries", "192"]
# In this order: {NAME} is the folder of an earlier run, or an input.
RUNS = {
    "analyze": ["msa-analyze", "{sample}", "--selectors", "oracle,quest,mean-key", "--block-size", "32", "--top-k",
                "8", *FEW],
    "analyze-planted": ["msa-analyze", "{planted.h5}", "--selectors", "index,window", *SIZES, "--unit-queries", "300"],
    "analyze-short": ["msa-analyze", "{short.h5}", "--selectors", "index,oracle", *SIZES, "--forced-first", "0,1"],
    "compare": ["msa-compare", "{sample}", "--layers", "20", "--selectors", "oracle,mean-key,quest,streaming-llm",
                "--block-size", "32", "--budgets", "256", *FEW],
    "compare-heads": ["msa-compare", "{planted.h5}", "--layers", "1", "--block-size", "32", "--budgets", "64,128",
                      "--selectors", "oracle,mean-key,window-tokens", "--share", "head"],
    "compare-decode": ["msa-compare", "{planted.h5}", "--layers", "1", "--block-size", "32", "--budgets", "64,128",
                       "--selectors", "oracle,snapkv,random", "--phase", "decode", "--prompt", "256",
                       "--unit-queries", "100"],
    "compare-ablation": ["msa-compare", "{planted.h5}", "--block-size", "32", "--budgets", "128", "--selectors",
                         "index,mean-key", "--ablation", "block-size", *FEW],
    "advise": ["msa-advise", "{sample}", "--keep", "0.75", "--context", "32K", "--selectors", "oracle,quest,mean-key",
               "--block-sizes", "32,64", "--top-ks", "4,8", "--forced-first", "0", "--forced-local", "1", *FEW],
    "advise-planted": ["msa-advise", "{planted.h5}", "--block-sizes", "16,32", "--top-ks", "4", *FEW],
    "advise-none": ["msa-advise", "{sample}", "--error", "0.0001", "--selectors", "window", "--block-sizes", "32",
                    "--top-ks", "4", *FEW],
    "reuse": ["msa-reuse", "{planted.h5}", *SIZES, "--lose", "0.5", *FEW],
    "reuse-groups": ["msa-reuse", "{layers.h5}", *SIZES, "--selector", "mean-key", "--lose", "0.3", "--every", "3",
                     "--groups", "1-2", "--context", "64K", *FEW],
    "reuse-none": ["msa-reuse", "{sample}", "--layers", "10,20", "--block-size", "32", "--top-k", "4", "--selector",
                   "oracle", "--keep", "0.99", *FEW],
    "reuse-short": ["msa-reuse", "{short.h5}", *SIZES, "--error", "2", "--forced-first", "0"],
    "precision": ["msa-precision", "{planted.h5}", *SIZES, "--formats", "e4m3,int4", "--scales", "none,block", *FEW],
    "precision-none": ["msa-precision", "{sample}", "--block-size", "32", "--top-k", "8", "--formats", "int4,fp4",
                       "--scales", "block", "--error", "0.0001", *FEW],
    "precision-short": ["msa-precision", "{short.h5}", *SIZES, "--formats", "bf16,int8", "--rotations",
                        "none,hadamard"],
    "cache": ["msa-cache", "{analyze-planted}/results.h5", "--time-per-token", "0.5"],
    "cache-prefetch": ["msa-cache", "{analyze-planted}/results.h5", "--prefetch", "previous-layer",
                       "--time-per-token", "100"],
    "cache-none": ["msa-cache", "{analyze-short}/results.h5", "--time-per-token", "0.000001"],
    "cost": ["msa-cost", "--json"],
    "cost-preset": ["msa-cost", "--preset", "qwen3-235b-a22b", "--context", "1M", "--index-element", "e4m3", "--json"],
    "cost-gpus": ["msa-cost", "--context", "512K,1M", "--gpus", "2,8,64", "--hardware", "h200", "--json"],
    "cost-unions": ["msa-cost", "--context", "128K", "--union-blocks", "21", "--ceilings", "measured", "--json"],
    "cost-results": ["msa-cost", "--results", "{analyze-planted}/results.h5", "--json"],
    "fit": ["msa-fit-indexer", "{sample}", "--layers", "10", "--block-size", "32", "--top-k", "8", "--steps", "30",
            "--eval-every", "10"],
    "fit-intervals": ["msa-fit-indexer", "{sample}", "--block-size", "32", "--top-k", "8", "--steps", "12",
                      "--eval-every", "4", "--train", "0:768", "--eval", "768:", "--init", "normal", "--index-dim",
                      "16"],
    "precision-projections": ["msa-precision", "{sample}", "--layers", "10", "--indexer", "{fit}/results.h5",
                              "--formats", "bf16,f16", *FEW],
    "bench": ["msa-bench", "--backend", "cpu", "--cases", "square", "--stages", "index_select,sparse_attention",
              "--tokens", "1K", "--samples", "2", "--json"],
    "pretrain": ["msa-pretrain", "{text}", "--steps", "6", "--json"],
    "inspect": ["msa-inspect", "{sample}", "--stats", "--json"],
    "inspect-results": ["msa-inspect", "{analyze-planted}/results.h5", "--json"],
}
WITHOUT_OUT = ("msa-cost", "msa-inspect", "msa-bench")
THREADED = ("msa-analyze", "msa-compare", "msa-advise", "msa-reuse", "msa-precision", "msa-fit-indexer")
REPRODUCED = ("msa-bench", "msa-pretrain", "msa-fit-indexer")  # run twice: what differs is of the clock
# Attributes of results.h5 that say what ran and on what (planted files name the build), and texts about columns.
RECORDED = ("/run@commit", "/run@compiler", "/run@definitions", "/run@options", "/run@inputs")


def datasets(path) -> dict:
    """Every dataset and attribute of a file by name, as a text that is equal only for equal bits."""
    found = {}

    def visit(name, item):
        for key, value in item.attrs.items():
            found[f"/{name}@{key}"] = repr(value.tolist() if hasattr(value, "tolist") else value)
        if isinstance(item, h5py.Dataset):
            values = item[()]
            raw = repr(values.tolist()).encode() if item.dtype.hasobject else values.tobytes()
            found[f"/{name}"] = f"{item.dtype} {item.shape} {hashlib.sha256(raw).hexdigest()}"

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return {name: value for name, value in found.items() if name not in RECORDED}


def answer(programs, folder, name) -> dict:
    program, *args = RUNS[name]
    given = []
    for arg in args:
        if arg == "{text}":
            given += sorted(str(path) for path in (TESTS.parent / "core" / "cpu").glob("*.cpp"))
            continue
        arg = arg.replace("{sample}", str(SAMPLE))
        given.append(arg.replace("{", str(folder) + "/").replace("}", ""))
    out = folder / name
    if program not in WITHOUT_OUT:
        given += ["--out", str(out)]
    if program in THREADED:
        given += ["--threads", "2"]
    done = subprocess.run([programs / program, *given], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2) or (done.returncode == 2 and not (out / "summary.json").exists()):
        raise SystemExit(f"{name}: {program} ended with {done.returncode}: {done.stderr}")
    files = {path.name: path for path in sorted(out.iterdir())} if out.is_dir() else {}
    text = files["summary.json"].read_text() if "summary.json" in files else done.stdout
    texts = {name: path.read_text() for name, path in files.items() if path.suffix in (".csv", ".txt")}
    return {"code": done.returncode, "json": json.loads(text), "texts": texts,
            "datasets": datasets(files["results.h5"]) if "results.h5" in files else {}}


def leaves(of, path="") -> dict:
    """{JSON pointer: value} of all in a tree."""
    if not isinstance(of, (dict, list)) or not of:
        return {path: of}
    items = enumerate(of) if isinstance(of, list) else of.items()
    return {key: value for name, inner in items for key, value in leaves(inner, f"{path}/{name}").items()}


def shape(value):
    """An estimate is (value, low, high) in all forms that it had."""
    if isinstance(value, dict):
        return value["value"], value["low"], value["high"]
    return value, None, None


def rows_of_report(report) -> dict:
    """{(table, row key, column): (value, low, high)}"""
    rows = {}
    for name, table in report["tables"].items():
        for row in table["rows"]:
            key = tuple(row[column] for column in table["key"])
            for column in table["columns"]:
                if column in table["key"]:
                    continue
                of = (row[column], row.get(f"{column}_low"), row.get(f"{column}_high"))
                assert (name, key, column) not in rows, (name, key, column)
                rows[name, key, column] = of
    return rows


def last_bits(before, after) -> bool:
    """Are they the same but for the rounding of a mean over groups or heads, which is divided once?"""
    def same(one, other):
        return one == other or (isinstance(one, float) and isinstance(other, float)
                                and abs(one - other) <= 4e-16 * max(1, abs(one)))

    return before is not None and after is not None and all(map(same, before, after))


def compared(name, old, new) -> list[str]:
    """What differs and is not explained."""
    program = RUNS[name][0].removeprefix("msa-").split("-")[0]
    wrong = []

    def require_same(what, before, after, ignored=()):
        for key in sorted(before.keys() | after.keys(), key=str):
            if any(fnmatch.fnmatch(str(key), pattern) for pattern in ignored):
                continue
            if key not in after or key not in before or before[key] != after[key]:
                wrong.append(f"{name}: {what} {key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}")

    volatile = old.get("volatile", [])
    if old["code"] != new["code"]:
        wrong.append(f"{name}: exit code {old['code']} -> {new['code']}")
    port = None
    if new["json"].get("format") == FORMAT:
        port = importlib.import_module(f"answers_oracle_{program}")
        before, after = port.rows(old["json"], shape), rows_of_report(new["json"])
        if hasattr(port, "rounded"):  # what a CSV alone had, with 9 digits
            for key, digits in port.rounded(old["texts"]).items():
                if key not in before and key in after and f"{after[key][0]:.9g}" == digits:
                    before[key] = after[key]
        explained = [tuple(line) for line in port.EXPLAINED]
        for key in sorted(before.keys() | after.keys(), key=str):
            if any(fnmatch.fnmatch(f"{key[0]}.{key[2]}", pattern) for pattern, _ in explained):
                continue
            if getattr(port, "LAST_BITS", False) and last_bits(before.get(key), after.get(key)):
                continue
            if before.get(key) != after.get(key) and repr(before.get(key)) != repr(after.get(key)):
                wrong.append(f"{name}: {key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}")
        print(f"{name}: {len(before.keys() & after.keys())} cells of {len(after)} compared with the old tree")
    else:
        require_same("JSON", leaves(old["json"]), leaves(new["json"]), [*volatile, "/options*", "/definitions*",
                                                                        "/commit*", "/run/*"])
    require_same("dataset", old["datasets"], new["datasets"],
                 [*volatile, *RECORDED, "/tables*", *getattr(port, "DATASETS", ())])
    csv = {file: text for file, text in old["texts"].items() if file.endswith(".csv")}
    require_same("file", csv, {file: text for file, text in new["texts"].items() if file in csv},
                 [*volatile, *getattr(port, "FILES", ())])
    return wrong


def differing(one, other) -> list[str]:
    names = []
    for before, after in ((leaves(one["json"]), leaves(other["json"])), (one["datasets"], other["datasets"]),
                          (one["texts"], other["texts"])):
        names += [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return sorted(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("oracle", type=pathlib.Path)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--only", default="", help="runs, or programs without msa-; default: all")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    asked = options.only.split(",") if options.only else list(RUNS)
    afresh = options.what == "record" and not options.only
    known = {} if afresh else json.loads(gzip.decompress(options.oracle.read_bytes()))
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, args in INPUTS.items():
            subprocess.run([options.programs / "msa-synth", "--out", folder / name, *args], check=True)
        wanted = [run for run in RUNS if run in asked or RUNS[run][0].removeprefix("msa-") in asked]
        for name in list(wanted):  # and the runs whose files they read
            wanted += [other for other in RUNS if any(f"{{{other}}}/" in arg for arg in RUNS[name])]
        for name in [run for run in RUNS if run in wanted]:
            new = answer(options.programs, folder, name)
            if options.what == "check":
                wrong += compared(name, known[name], new)
                continue
            known[name] = new
            if RUNS[name][0] in REPRODUCED:
                again = pathlib.Path(folder, "again")
                again.mkdir(exist_ok=True)
                for made in (*INPUTS, *known):
                    if made != name and (folder / made).exists() and not (again / made).exists():
                        (again / made).symlink_to(folder / made)
                new["volatile"] = differing(new, answer(options.programs, again, name))
            options.oracle.write_bytes(gzip.compress(json.dumps(known).encode(), mtime=0))
            print(name, len(leaves(new["json"])), "values,", len(new["datasets"]), "datasets")
    print(*wrong[:60], sep="\n")
    print(f"{len(wrong)} differences" if options.what == "check" else f"{len(known)} runs recorded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
