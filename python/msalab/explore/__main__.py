# SPDX-License-Identifier: MIT
"""msalab explore results.h5: one HTML page from a token to the blocks that it chose."""

import sys
from contextlib import ExitStack
from pathlib import Path

from ..arguments import CommandLine
from ..ending import ended
from ..plots.results import Results, blamed
from .activations import Activations
from .data import make_microscope
from .page import write_page


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab explore", description=__doc__,
                         example="msalab explore results/demo/all/results.h5 --activations data/sample.h5")
    parser.add_argument("results", help="results file of msa-analyze")
    parser.add_argument("beside", nargs="?", metavar="OTHER",
                        help="of another run on the same queries, to show beside the first and their difference")
    parser.add_argument("--activations", action="append", default=[], metavar="FILE",
                        help="activations that the results are of: the text, and the probabilities of dense attention; "
                             "repeatable, in the order of the analysis")
    parser.add_argument("--out", metavar="FILE", help="page to write; default: explore.html beside the results")
    options = parser.parse_args(arguments)
    return ended(lambda: _explore(options), options)


def _explore(options):
    with ExitStack() as files:
        results = files.enter_context(Results(options.results))
        beside = files.enter_context(Results(options.beside)) if options.beside else None
        activations = files.enter_context(Activations(options.activations, results)) if options.activations else None
        with blamed(results.path, "the page cannot be made"):
            microscope = make_microscope(results, activations=activations, beside=beside,
                                         note=lambda line: print(line, file=sys.stderr, flush=True))
    print(write_page(microscope, options.out or Path(options.results).with_name("explore.html")))


if __name__ == "__main__":
    sys.exit(main())
