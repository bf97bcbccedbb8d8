#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tables of docs/shared_ids.md, of the records beside this file: summaries of msalab evaluate and msa-reuse.

usage: PYTHONPATH=python python studies/sharing/page.py docs/shared_ids.md
       python studies/sharing/page.py SUMMARY.json RECORD.json.xz     a record of a summary: the tables that are read here
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

from msalab import results

RECORDS = Path(__file__).parent / "records"
READ = ("distances", "retrieval_total", "configs")
AWAY = (1, 2, 3, 4, 8, 16)


def pack(summary, record):
    whole = json.loads(summary.read_text())
    whole["tables"] = {name: whole["tables"][name] for name in whole["tables"] if name in READ}
    if "distances" in whole["tables"]:
        table = whole["tables"]["distances"]
        table["columns"] = ["distance", "own_recall", "mass_lost"]
        kept = [name + end for name in table["columns"] for end in ("", "_low", "_high")]
        table["rows"] = [{name: row[name] for name in kept if name in row}
                         for row in table["rows"] if row["distance"] in AWAY]
    record.write_bytes(lzma.compress((json.dumps(whole) + "\n").encode(), preset=9))


def opened(record, program):
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        summary.write_bytes(lzma.decompress(record.read_bytes()))
        return results.open(summary, program)


def needles(path):
    """A row of each setting: right answers, and how many fewer than dense attention gives."""
    answer = opened(path, "msalab evaluate")
    lines = ["| setting | right answers | above dense, 95 % interval | log-likelihood |", "|---|---|---|---|"]
    for row in answer["retrieval_total"].records():
        more, low, high = (row.get(f"right_answers_above{end}") for end in ("", "_low", "_high"))
        above = "" if row["config"] == "dense" else f"{more:+.3f}, {low:+.3f} to {high:+.3f}"
        lines.append(f"| {row['config']} | {row['right_answers']:.3f} of {row['exercises']} | {above} | "
                     f"{row['log_likelihood']:.1f} |")
    return lines


def overlaps(path):
    """By distance in layers: the share of a layer's own blocks that another one's ids have, and the mass lost."""
    answer = opened(path, "msa-reuse")
    lines = ["| layers away | own blocks that are in its ids | mass lost |", "|---|---|---|"]
    for row in answer["distances"].records():
        if row["distance"] in AWAY:
            lines.append(f"| {row['distance']} | {row['own_recall']:.3f} | {row['mass_lost']:.3f} |")
    return lines


def losses(path):
    """Bits per token of each setting, and how many more than dense attention takes where something is left out."""
    lines = ["| setting | bits per token | above dense | of tokens beyond the budget |", "|---|---|---|---|"]
    for row in opened(path, "msalab evaluate")["configs"].records():
        above = " | " if row["config"] == "dense" else f"{row['excess']:+.3f} | {row['excess_beyond']:+.3f}"
        lines.append(f"| {row['config']} | {row['bits_of_text']:.3f} | {above} |")
    return lines


def written(page):
    """The page with each table between its marks as the records have it."""
    for path in sorted(RECORDS.glob("*.json.xz")):
        name = path.name.removesuffix(".json.xz")
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin not in page:
            raise SystemExit(f"{path}: the page has no {begin.strip()}")
        head, rest = page.split(begin)
        made = (overlaps if "overlap" in name else losses if "text" in name else needles)(path)
        page = head + begin + "\n".join(made) + "\n" + rest[rest.index(end):]
    return page


def main(path, record=None):
    if record is not None:
        pack(path, record)
    else:
        path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
