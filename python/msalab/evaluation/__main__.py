# SPDX-License-Identifier: MIT
"""Would MSA work on this model? Its loss on text and its retrieval of planted facts, with its own
attention and with MSA in place of it, on the same tokens."""

import signal
import sys

from ..arguments import CommandLine, integers, interrupt
from ..claims import launched_rank
from ..ending import ended
from .tables import print_tables


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def parser() -> CommandLine:
    top = CommandLine(prog="msalab evaluate", description=__doc__, example="msalab evaluate MODEL --text held_out.txt "
                      "--selectors mean-key,oracle --budgets 512,1024 --out results/evaluation", usual=(
                          "--text", "--out", "--indexer", "--selectors", "--budgets", "--top-k", "--block-size",
                          "--context", "--device", "--overwrite"))
    top.add_argument("model", help="id on the hub, folder, or FILE.gguf")
    top.add_argument("--text", action="extend", nargs="+", required=True, metavar="FILE",
                     help="UTF-8 text; the byte 0 separates documents")
    top.add_argument("--out", required=True, metavar="DIR",
                     help="gets results.h5, summary.json and pictures")
    select = top.add_argument_group("what selects")
    select.add_argument("--indexer", metavar="FIT", help="results.h5 of msa-fit-indexer, or its "
                        "folder: the selector index")
    select.add_argument("--selectors", type=names, metavar="A,B",
                        help="oracle, mean-key, quest, window, index (default: mean-key,window,"
                             "oracle, and index with --indexer; with --from-advice none); '' for none: the "
                             "model's own attention alone. "
                             "Layers that share ids: NAME:every=4, the first of four layers selects for all, "
                             "NAME:leaders=0+3+11, these select for those behind them"
                        ).offered = ("oracle", "mean-key", "quest", "window", "index")
    select.add_argument("--from-advice", metavar="SUMMARY", help="summary.json of msa-advise, or its "
                        "folder: each layer as it is recommended, beside the selectors")
    size = select.add_mutually_exclusive_group()
    size.add_argument("--budgets", type=integers, metavar="N,M",
                      help="tokens that a query reads (default: 512,1024; with --indexer what it was "
                           "fitted for)")
    size.add_argument("--top-k", type=integers, metavar="N,M", help="the same in blocks")
    select.add_argument("--block-size", type=int, metavar="N",
                        help="tokens (default: 128; with --indexer what it was fitted for)")
    select.add_argument("--forced-first", type=integers, metavar="N,M",
                        help="oldest blocks that are always kept (default: 0,1, both; of index also what it "
                             "was fitted for). A window keeps the first block in any case")
    select.add_argument("--forced-local", type=int, metavar="N",
                        help="newest ones, the query's own among them (default: 1; with --indexer what "
                             "it was fitted for)")
    select.add_argument("--dense-layers", type=integers, default=[], metavar="0,1",
                        help="layers that attend to everything; those with a sliding window always "
                             "keep to it")
    select.add_argument("--element", type=names, metavar="A,B",
                        help="e4m3, e4m3:unscaled: each setting also with queries, keys and values in it, in layers that "
                             "select; e4m3 has scales of blocks, unscaled keys and values have none"
                        ).offered = ("e4m3", "e4m3:unscaled")
    select.add_argument("--sensitivity", choices=("dense", "sparse"), metavar="ONE",
                        help="of each setting, on the text, one layer at a time: dense (what is gained "
                             "by it) or alone sparse (what is lost by it); as many passes more as there "
                             "are layers")
    on = top.add_argument_group("on what")
    on.add_argument("--context", type=int, default=2048, metavar="N",
                    help="tokens of a sequence, at most (default: 2048)")
    on.add_argument("--sequences", type=int, default=64, metavar="N",
                    help="sequences of text, at most, of all documents in turn (default: 64)")
    on.add_argument("--tasks", type=names, default=["needle"], metavar="A,B",
                    help="exercises in retrieval: needle (default), multi_key, tracking, recall, "
                         "copy, definition (of functions); '' for none").offered = (
                             "needle", "multi_key", "tracking", "recall", "copy", "definition")
    on.add_argument("--lengths", type=integers, metavar="N,M",
                    help="tokens of an exercise (default: that of --context)")
    on.add_argument("--exercises", type=int, default=16, metavar="N",
                    help="of each task and length, by depth (default: 16)")
    on.add_argument("--depths", type=int, default=4, metavar="N",
                    help="parts of the depth that are told apart (default: 4)")
    on.add_argument("--pairs", type=int, default=8, metavar="N",
                    help="facts of multi_key and recall, chains of tracking, functions of definition (default: 8)")
    on.add_argument("--bytes", action="store_true",
                    help="a model of bytes, without a tokenizer (as msalab convert makes of msa-pretrain's)")
    how = top.add_argument_group("how")
    how.add_argument("--seed", type=int, default=0, metavar="N")
    how.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, auto")
    how.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"),
                     help="that the model runs in; auto (default): that of the weights")
    how.add_argument("--revision", help="of the model on the hub")
    how.add_argument("--overwrite", action="store_true", help="replace existing results")
    return top


def main(arguments=None) -> int:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    return ended(lambda: _work(options), options, interrupted="interrupted; the same command goes on")


def _work(options):
    from .run import run

    first = launched_rank() == 0  # of several ranks, one prints
    answer = run(options, lambda line: print(line, file=sys.stderr) if first else None)
    if first:
        print_tables(answer)


if __name__ == "__main__":
    sys.exit(main())
