# SPDX-License-Identifier: MIT
"""python -m studies.pilot RECORDS --out DIR: what the runs of a sweep say of the claims of the paper's appendix."""

import argparse
import sys
from pathlib import Path

from msalab.ending import ended
from msalab.plots import save
from msalab.results import ResultsError

from . import answers, claims, figures, page
from .runs import LATER, read_records


def _registered(records, options, out):
    before = read_records(options.exploratory) if options.exploratory else {}
    for name, table in page.TABLES.items():
        text = table(records, before)
        print(text)
        (out / f"{name}.md").write_text(text, encoding="utf-8")
    for name, drawn in answers.pictures(records, before):
        save(*drawn, out, name)
    return lambda text: page.with_tables(text, records, before)


def _exploratory(records, options, out):
    print(claims.claims_markdown(records), end="")
    if old := claims.unrecorded(records):
        print(f"note: {' and '.join(LATER)} are not in the runs {', '.join(old)}, which were "
              "recorded before they were measured", file=sys.stderr)
    claims.numbers(records).to_csv(out / "pilot.csv")
    (out / "pilot.json").write_text(claims.as_json(records), encoding="utf-8")
    arms = options.arms.split(",") if options.arms else records
    for name, drawn in figures.pictures({arm: records[arm] for arm in arms}):
        save(*drawn, out, name)
    return lambda text: claims.with_tables(text, records)


def _judge(options):
    records = read_records(options.records)
    if unknown := [arm for arm in (options.arms or "").split(",") if arm and arm not in records]:
        raise ResultsError(f"{options.records}: no arm {unknown[0]}; it has {', '.join(records)}")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with_tables = (_registered if options.registered else _exploratory)(records, options, out)
    if options.page:
        path = Path(options.page)
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m studies.pilot", description="Compares the arms of a sweep of msa-pretrain, seed by "
        "seed, and says of each claim of the paper's appendix whether the pilot agrees.")
    parser.add_argument("records", help="folder with ARM/seed-S/summary.json and curves.csv, or their archives")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the tables and the pictures")
    parser.add_argument("--page", metavar="FILE",
                        help="README.md or exploratory.md of this folder: writes its tables anew from these records")
    parser.add_argument("--registered", action="store_true",
                        help="by the rules that were registered for Pilot II, for its records")
    parser.add_argument("--exploratory", metavar="DIR",
                        help="with --registered: the records of the exploratory part, which answer "
                             "the claim that needs no new runs")
    parser.add_argument("--arms", metavar="full,msa", help="those of the pictures; default: all")
    options = parser.parse_args(arguments)
    return ended(lambda: _judge(options), options)


if __name__ == "__main__":
    sys.exit(main())
