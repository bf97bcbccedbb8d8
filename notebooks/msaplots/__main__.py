# SPDX-License-Identifier: MIT
"""python -m msaplots results.h5 --out DIR: every picture as PNG, SVG and CSV, and report.html."""

import argparse
import sys
from contextlib import ExitStack

from .fit import FitResults
from .report import write_report
from .results import Results, ResultsError


def layer_list(text: str) -> list[int]:
    return [int(layer) for layer in text.split(",")]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m msaplots", description=__doc__)
    parser.add_argument("results", help="results file (HDF5, msa-results version 1)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--fit", metavar="FILE", help="results of msa-fit-indexer: how it learned")
    parser.add_argument("--layers", type=layer_list, metavar="3,6", help="default: all")
    options = parser.parse_args(arguments)
    try:
        with ExitStack() as files:
            results = files.enter_context(Results(options.results))
            fit = files.enter_context(FitResults(options.fit)) if options.fit else None
            print(write_report(results, options.out, options.layers, fit))
    except (ResultsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
