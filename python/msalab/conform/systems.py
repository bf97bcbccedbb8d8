# SPDX-License-Identifier: MIT
"""Every system that has an adapter, each in a process of its own: what one breaks, another does not see."""

import datetime
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .check import ABSENT, FAIL, PASS, RULE

ADAPTERS = ("ours:reference", "ours:cpu", "ours:torch_cpu", "ours:cuda", "transformers_m3:answer", "vllm:answer",
            "sglang:answer", "flash_msa:answer", "fla:answer", "cudnn:answer", "flex:answer")
LETTERS = {PASS: "+", RULE: "r", ABSENT: ".", FAIL: "F"}


def run_one(adapter, only, folder, seconds):
    """Its record: about, rules, rows, the command; `error` where it did not come so far, beside the rows that it has."""
    call = f"{__package__}.adapters.{adapter}"
    path = Path(folder) / f"{adapter.replace(':', '.')}.json"
    command = [sys.executable, "-m", __package__, "--call", call, "--json", str(path), "--only", only]
    record = {"adapter": adapter, "command": f"python -m {__package__} --call {call}"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        error = {} if ran.returncode in (0, 1, 2) and path.exists() else {
            "error": ran.stderr.strip().split("\n")[-1] or f"exit code {ran.returncode}"}
    except subprocess.TimeoutExpired:
        error = {"error": f"stopped after {seconds:.0f} s"}
    rows = json.loads(path.read_text()) if path.exists() else {}
    return record | rows | error


def table(records):
    """A row of each case, a column of each system."""
    there = [record for record in records if "rows" in record]
    names = list(dict.fromkeys(name for record in there for name, _, _ in record["rows"]))
    lines = [f"{number + 1:>3}  {record['adapter']}: {record['about']}" for number, record in enumerate(there)]
    lines += [f"  -  {record['adapter']}: {record['error']}" + (f", {len(record['rows'])} cases before" if "rows" in record else "")
              for record in records if "error" in record]
    lines += ["", "+ pass, r differs by rule, . not supported, F fail; blank: not run"]
    lines.append(f"{'case':<26}" + "".join(f"{number + 1:>3}" for number in range(len(there))))
    outcomes = [{name: outcome for name, outcome, _ in record["rows"]} for record in there]
    lines += [f"{name:<26}" + "".join(f"{LETTERS.get(one.get(name), ''):>3}" for one in outcomes) for name in names]
    for kind in LETTERS:
        lines.append(f"{kind:<26}" + "".join(f"{sum(o == kind for o in one.values()):>3}" for one in outcomes))
    for record in there:
        lines += [f"{record['adapter']} {name}: {remark}"
                  for name, outcome, remark in record["rows"] if outcome == FAIL]
    return "\n".join(lines)


def run_all(only="", out=None, seconds=400):
    """Prints the table; `out` is the file of the record, JSON, renewed behind each system. seconds: after which a system is
    stopped. 1 if one failed."""
    records = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for record in pool.map(lambda adapter: run_one(adapter, only, folder, seconds), ADAPTERS):
            records.append(record)
            print(f"{record['adapter']}: {record.get('about', record.get('error'))}", file=sys.stderr, flush=True)
            if out:
                whole = {"format": "msa-conform", "format_version": 1, "date": str(datetime.date.today()),
                         "device": device(), "systems": records}
                Path(out).write_text(json.dumps(whole, indent=1) + "\n")
    print(table(records))
    return int(any(outcome == FAIL for record in records for _, outcome, _ in record.get("rows", ())))


def device():
    """Of the GPU, by its driver's tool; empty without one."""
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                               text=True, timeout=30, check=False)
    except OSError:
        return ""
    return found.stdout.strip().split("\n")[0] if found.returncode == 0 else ""
