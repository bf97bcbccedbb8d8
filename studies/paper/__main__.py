# SPDX-License-Identifier: MIT
"""msalab paper --out DIR: the paper figure by figure, as one page with pictures."""

import sys
import tempfile
from pathlib import Path

from msalab.arguments import CommandLine
from msalab.ending import ended
from msalab.steps import run_all
from msalab.programs import find_program

from . import anew, page
from .html import write_html
from .measured import Tree, as_json, gather
from .steps import steps_of

ROOT = Path(__file__).parents[2]
EXAMPLE = """msalab paper --out results/paper     (again: it goes on where it was stopped)
  msalab paper --page docs/paper.md --page README.md
  msalab paper --out results/paper --model MODEL --text FILE"""


def parser_of() -> CommandLine:
    parser = CommandLine(
        prog="msalab paper", example=EXAMPLE,
        description="What the paper says beside what the sample and the records of the repository say: every figure, "
        "table, equation and claim, with pictures. Needs no GPU without --gpu.")
    parser.add_argument("--out", metavar="DIR", help="folder for paper.html and its pictures; what is there is kept")
    parser.add_argument("--page", metavar="FILE", action="append", default=[],
                        help="a Markdown page, as docs/paper.md, whose tables are written anew; repeatable")
    parser.add_argument("--gpu", action="store_true", help="with --out: also measure this machine's GPU, by msa-bench; "
                        "what cannot be measured is named")
    parser.add_argument("--model", metavar="MODEL", help="with --out: also the figures of selection and sink of another "
                        "model, by msalab try: an id on the hub, folder, or FILE.gguf")
    parser.add_argument("--text", metavar="FILE", help="of --model: UTF-8 text that it reads")
    parser.add_argument("--programs", metavar="DIR", help="folder of msa-cost and others; default: "
                        "build/release/bin, else those of the package")
    return parser


def tree_of(options) -> Tree:
    built = Path(options.programs or ROOT / "build/release/bin")
    return Tree(ROOT, built if options.programs or built.is_dir() else find_program("msa-cost").parent)


def _draw(tree, out: Path, numbers, options) -> None:
    steps = steps_of(tree, numbers, out)
    steps += anew.model_steps(options.model, options.text, out) if options.model else []
    steps += anew.gpu_steps(tree, out, note) if options.gpu else []
    run_all(steps, out, note)
    print(write_html(numbers, out, anew.gpu_rows(out) if options.gpu else None,
                     (options.model, anew.model_pictures(out)) if options.model else None))


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(options) -> None:
    tree = tree_of(options)
    if options.gpu:
        anew.gpu_name()
    with tempfile.TemporaryDirectory() as scratch:
        note("reading the records, about 00:10")
        numbers = gather(tree, Path(scratch) / "cost.json")
    for path in map(Path, options.page):
        path.write_text(page.with_tables(path.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    if options.out:
        out = Path(options.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "numbers.json").write_text(as_json(numbers), encoding="utf-8")
        _draw(tree, out, numbers, options)


def main(arguments=None) -> int:
    parser = parser_of()
    options = parser.parse_args(arguments)
    if not options.out and not options.page:
        parser.error("--out or --page is needed")
    if (options.gpu or options.model) and not options.out:
        parser.error("--gpu and --model need --out")
    if bool(options.model) != bool(options.text):
        parser.error("--model and --text belong together")
    return ended(lambda: _run(options), options, interrupted="interrupted; the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
