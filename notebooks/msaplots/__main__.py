# SPDX-License-Identifier: MIT
"""python -m msaplots results.h5 --out DIR: every picture as PNG, SVG and CSV, and report.html."""

import argparse
import sys
from contextlib import ExitStack

from .comparison import read_comparison
from .cost import read_bench, read_cost
from .fit import FitResults
from .gallery import (comparison_section, efficiency_section, orders_section, selections_section,
                      training_section)
from .report import write_report
from .results import Results, ResultsError


def layer_list(text: str) -> list[int]:
    return [int(layer) for layer in text.split(",")]


def more_sections(options, files: ExitStack):
    """(before, after): the sections of files beside the results, as they stand on the page."""
    before, after = [], []
    if options.fit:
        before.append(training_section(files.enter_context(FitResults(options.fit))))
    if options.compare:
        after.append(comparison_section(read_comparison(options.compare)))
    bench, costs = read_bench(*options.bench), [read_cost(path) for path in options.cost]
    if options.bench and all("rows" in cost for cost in costs):
        raise ResultsError(f"{', '.join(options.bench)}: --bench needs --cost from sizes, beside "
                           "which it shows what was measured")
    for cost in costs:
        after.append(orders_section(cost) if "rows" in cost
                     else efficiency_section(cost, bench, options.bench))
    return before, after


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m msaplots", description=__doc__)
    parser.add_argument("results", help="results file (HDF5, msa-results version 1)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--fit", metavar="FILE", help="results of msa-fit-indexer: how it learned")
    parser.add_argument("--selections", metavar="FILE",
                        help="results of more of the queries, to draw the heat maps from")
    parser.add_argument("--compare", metavar="FILE", help="summary.json of msa-compare")
    parser.add_argument("--cost", action="append", default=[], metavar="FILE",
                        help="output of msa-cost --json, from sizes or from results; repeatable")
    parser.add_argument("--bench", action="append", default=[], metavar="FILE",
                        help="benchmark record to show beside the costs, needs --cost from "
                             "sizes; repeatable")
    parser.add_argument("--layers", type=layer_list, metavar="3,6", help="default: all")
    options = parser.parse_args(arguments)
    try:
        with ExitStack() as files:
            results = files.enter_context(Results(options.results))
            before, after = more_sections(options, files)
            instead = []
            if options.selections:
                whole = files.enter_context(Results(options.selections))
                instead.append(selections_section(whole, results))
            print(write_report(results, options.out, options.layers, before, after, instead))
    except (ResultsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
