# SPDX-License-Identifier: MIT
"""msalab plot results.h5 --out DIR: every picture as PNG, SVG and CSV, and report.html."""

import sys
from contextlib import ExitStack
from dataclasses import replace

from ..arguments import CommandLine, distinct_integers
from ..ending import ended
from ..explore import Activations, make_microscope
from ..results import open as open_answer
from .advice import cost_front, read_advice
from .cache import cache_curves, read_cache
from .comparison import read_comparison
from .cost import is_of_results, read_bench, read_cost
from .evaluation import read_evaluation
from .fit import FitResults
from .gallery import (advice_section, cache_section, comparison_section, difference_section, efficiency_section,
                      evaluation_section, orders_section, precision_section,
                      selections_section, sharing_section, traffic_section, training_section)
from .precision import loss_by_bits, read_precision
from .report import in_order, write_pictures, write_report
from .results import Results, ResultsError, blamed
from .reuse import loss_by_distance, read_sharing, sharing_patterns
from .style import save


ALL = "all"


def layer_list(text: str) -> list[int] | str:
    return text if text == ALL else distinct_integers(text)


def other_data(path, captures, of_page) -> str:
    """That a file is of other activations than the page; empty where it is of the same, or where either
    does not say. Files may be other ones, as msa-fit-indexer's indexer.h5 beside its input."""
    def known(of):
        return [(one.get("model"), one["tokens"], one["sequences"]) for one in of]

    def words(of):
        return " and ".join(f"{one['input']} ({one['model']}, {one['tokens']} tokens)" if one.get("model")
                            else f"{one['input']} ({one['tokens']} tokens)" for one in of)

    with blamed(path, "its captures are damaged"):
        if not captures or not of_page or known(captures) == known(of_page):
            return ""
        return f"Other data than the rest of this page: {words(captures)}, not {words(of_page)}."


def of_file(path, make, *arguments, note=""):
    """The section that `make` makes, whose errors name the file; `note` is read first."""
    fault = "is damaged, its section cannot be drawn"

    def draw(results, layers):
        with blamed(path, fault):
            yield from section.draw(results, layers)

    with blamed(path, fault):
        section = make(*arguments)
    return replace(section, draw=draw, note=note)


def read(path, reader, *arguments):
    with blamed(path, "is damaged"):
        return reader(*arguments or (path,))


OF_SUMMARIES = (("compare", read_comparison, comparison_section), ("evaluate", read_evaluation, evaluation_section),
                ("advise", read_advice, advice_section), ("cache", read_cache, cache_section),
                ("reuse", read_sharing, sharing_section), ("precision", read_precision, precision_section))


def more_sections(options, results: Results, files: ExitStack):
    """(before, after): the sections of files beside the results, as they stand on the page."""
    before, after = [], []
    of_page = results.run_json("captures")
    if options.fit:
        fit = files.enter_context(FitResults(options.fit))
        before.append(of_file(options.fit, training_section, fit,
                              note=other_data(options.fit, fit.run_json("captures"), of_page)))
    for name, reader, make in OF_SUMMARIES:
        path = getattr(options, name)
        if path:
            drawn = read(path, reader)
            captures = open_answer(path).run.get("captures")
            after.append(of_file(path, make, drawn, note=other_data(path, captures, of_page)))
    records = ", ".join(options.bench)
    bench = read(records, read_bench, *options.bench) if options.bench else {}
    costs = [(path, read(path, read_cost)) for path in options.cost]
    if options.bench and all(is_of_results(cost) for _, cost in costs):
        raise ResultsError(f"{records}: --bench needs --cost from sizes, beside which it shows "
                           "what was measured")
    for path, cost in costs:
        after += ([of_file(path, orders_section, cost)] if is_of_results(cost) else
                  [of_file(path, traffic_section, cost), of_file(path, efficiency_section, cost, bench, options.bench)])
    return before, after


OF_PROGRAM = {"msa-advise": (read_advice, {"advice": cost_front}),
              "msa-cache": (read_cache, {"cache": cache_curves}),
              "msa-precision": (read_precision, {"precision": loss_by_bits}),
              "msa-reuse": (read_sharing, {"reuse_distance": loss_by_distance,
                                           "reuse_patterns": sharing_patterns})}


def draw_alone(path, out):
    """The pictures of a summary.json alone, as PNG, SVG and CSV."""
    program = open_answer(path).program
    if program not in OF_PROGRAM:
        raise ResultsError(f"{path}: has no pictures of program {program}; there are of {', '.join(OF_PROGRAM)}")
    reader, pictures = OF_PROGRAM[program]
    drawn = read(path, reader)
    with blamed(path, "is damaged"):
        return [save(*draw(drawn), out, name)[0] for name, draw in pictures.items()]


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab plot", description=__doc__,
                         example="msalab plot results/mine/results.h5 --out results/mine",
                         usual=("--out", "--fit", "--compare", "--evaluate", "--cost", "--activations", "--only",
                                "--layers"))
    parser.add_argument("results", help="results file (HDF5, msa-results), or the "
                                        "summary.json of msa-advise, msa-cache, "
                                        "msa-precision or msa-reuse")
    parser.add_argument("beside", nargs="?", metavar="OTHER",
                        help="results of another run on the same queries: the page begins with what differs, "
                             "in a table, in pictures and in the block microscope")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--fit", metavar="FILE", help="results of msa-fit-indexer: how it learned")
    parser.add_argument("--selections", metavar="FILE",
                        help="results of more of the queries, to draw the heat maps from")
    parser.add_argument("--compare", metavar="FILE", help="summary.json of msa-compare")
    parser.add_argument("--evaluate", metavar="FILE", help="summary.json of msalab evaluate")
    parser.add_argument("--advise", metavar="FILE",
                        help="summary.json of msa-advise: the recommended setting")
    parser.add_argument("--cache", metavar="FILE",
                        help="summary.json of msa-cache: what a KV cache off the GPU would see")
    parser.add_argument("--reuse", metavar="FILE",
                        help="summary.json of msa-reuse: what layers lose with shared ids")
    parser.add_argument("--precision", metavar="FILE",
                        help="summary.json of msa-precision: what number formats lose")
    parser.add_argument("--cost", action="append", default=[], metavar="FILE",
                        help="output of msa-cost --json, from sizes or from results; repeatable")
    parser.add_argument("--bench", action="append", default=[], metavar="FILE",
                        help="benchmark record to show beside the costs, needs --cost from "
                             "sizes; repeatable")
    parser.add_argument("--activations", action="append", default=[], metavar="FILE",
                        help="activations that the results are of: the block microscope then has the text, and the "
                             "probabilities of dense attention; repeatable, in the order of the analysis")
    parser.add_argument("--only", metavar="selection,sink",
                        help="pictures of these sections alone, without a page; their names stand in its address")
    parser.add_argument("--layers", type=layer_list, metavar="3,6",
                        help="layers, or all; default: all in the pictures that show them together, "
                             "six of them by themselves")
    options = parser.parse_args(arguments)
    return ended(lambda: _plot(options), options)


def _plot(options):
    if options.results.endswith(".json"):
        print(*draw_alone(options.results, options.out), sep="\n")
        return
    with ExitStack() as files:
        results = files.enter_context(Results(options.results))
        before, after = more_sections(options, results, files)
        activations = files.enter_context(Activations(options.activations, results)) if options.activations else None
        layers = results.layers if options.layers == ALL else options.layers
        beside = files.enter_context(Results(options.beside)) if options.beside else None
        if beside:
            before.append(of_file(options.beside, difference_section, results, beside, activations, layers))
        instead, whole = [], results
        if options.selections:
            whole = files.enter_context(Results(options.selections))
            instead.append(of_file(options.selections, selections_section, whole, results))
        if options.only:
            sections = named(in_order(results, before, after, instead), options.only.split(","))
            print(*write_pictures(results, options.out, sections, layers), sep="\n")
            return
        with blamed(results.path, "the block microscope cannot be made"):
            microscope = make_microscope(results, results if beside else whole, activations, layers, beside=beside)
        print(write_report(results, options.out, microscope, layers, before, after, instead,
                           lambda line: print(line, file=sys.stderr, flush=True)))


def named(sections, names):
    known = {section.key: section for section in sections}
    if unknown := [name for name in names if name not in known]:
        raise ResultsError(f"--only: no section {unknown[0]}; there are: {', '.join(known)}")
    return [known[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
