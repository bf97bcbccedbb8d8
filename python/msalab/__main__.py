# SPDX-License-Identifier: MIT
"""The command `msalab`."""

import os
import sys
from importlib import import_module
from pathlib import Path

from .arguments import did_you_mean
from .ending import Refusal, ended, leave
from .programs import folders, programs

SHARE = Path(__file__).parent / "share/msalab"  # of the repository, what studies of the installed package read
TOOLS = {"capture": "activations of a PyTorch model as a file",
         "check-batching": "whether an Index Branch chooses the same blocks however it is called",
         "conform": "whether a kernel or an engine computes MSA as the paper defines it",
         "convert": "activations from and to safetensors, npz and npy",
         "crossover": "from which context on MSA pays in a whole model: prefill, decode and training, by the model of costs",
         "demo": "a first look: all of it on a sample of a public model, with pictures",
         "diff": "how the selected blocks of two systems or runs differ, and what it costs",
         "evaluate": "loss and retrieval of a model with MSA in place of its attention",
         "explore": "one page from a token to the blocks that it chose, to click through",
         "paper": "the paper figure by figure, beside what is measured here",
         "plot": "every picture of results, and report.html",
         "train": "continued training of a model with MSA in place of its attention",
         "try": "from a model to a verdict: capture, fit, analysis, loss, price and report in one"}

# Of the package, installed or not: the question of each, as its own help has it.
PROGRAMS = {
    "advise": "Which setting should I use, per layer, and what does it cost?",
    "analyze": "What does MiniMax Sparse Attention select on my activations, and what does it lose?",
    "bench": "How fast is each stage of MiniMax Sparse Attention, and the whole layer?",
    "cache": "What would a KV cache off the GPU see?",
    "compare": "Which selector keeps most of the attention at an equal budget, and at what cost?",
    "cost": "What does MiniMax Sparse Attention cost, and in which loop order?",
    "fit-indexer": "How good can an Index Branch get on my model?",
    "inspect": "Is this file valid, and what is in it?",
    "precision": "Which number format may the index operands and the KV cache have?",
    "pretrain": "What does a choice of training do to a model with MiniMax Sparse Attention?",
    "reuse": "Which layers may share a selection, and what does it lose?",
    "synth": "How do selectors and kernels behave on attention whose structure I know?",
}

# In the order of use.
GROUPS = {
    "to begin with": ("demo",),
    "activations of a model": ("capture", "convert", "inspect", "synth"),
    "what would MSA select, lose and cost?": ("analyze", "compare", "fit-indexer", "advise", "precision", "reuse",
                                              "cache", "cost", "crossover"),
    "the model itself": ("try", "evaluate", "train", "pretrain"),
    "results": ("plot", "explore", "diff"),
    "kernels and engines": ("bench", "conform", "check-batching"),
    "the paper": ("paper",)}


def usage() -> str:
    lines = ["usage: msalab COMMAND [ARGUMENTS]", "",
             "Would MiniMax Sparse Attention work on a model, what would it lose, and what would it cost?",
             "All in one: msalab try MODEL --text FILE --out DIR"]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<16}{TOOLS.get(name) or PROGRAMS[name]}" for name in names)]
    lines += ["", "msalab COMMAND --help says what each does. With a model of yours:",
              "  msalab capture MODEL --text FILE --out mine.h5", "  msalab analyze mine.h5 --out results/mine", "  msalab plot results/mine/results.h5 --out results/mine"]
    if not programs():
        lines += ["", f"The commands with a question are programs, which are not here ({folders()[-1]}): pip install ."]
    return "\n".join(lines)


def run_tool(name: str, arguments) -> int:
    if name == "plot":
        from .plots.__main__ import main as plot
        return plot(arguments)
    if name == "explore":
        from .explore.__main__ import main as explore
        return explore(arguments)
    if name == "paper":
        return of_study("paper", arguments)
    if name == "check-batching":
        from .batching import main as check_batching
        return check_batching(arguments)
    if name == "conform":
        from .conform.__main__ import main as conform
        return conform(arguments)
    if name == "crossover":
        from .crossover import main as crossover
        return crossover(arguments)
    if name == "demo":
        from .demo import main as demo
        return demo(arguments)
    if name == "diff":
        from .diff import main as diff
        return diff(arguments)
    if name == "evaluate":
        from .evaluation.__main__ import main as evaluate
        return evaluate(arguments)
    if name == "train":
        from .training.__main__ import main as train
        return train(arguments)
    if name == "try":
        from .trial import main as trial
        return trial(arguments)
    from .capture.__main__ import main as capture
    return capture([name, *arguments])


def of_study(name: str, arguments) -> int:
    """A study lies with its records in a clone, where that is the current folder, else beside the programs."""
    places = (Path.cwd(), SHARE)
    for place in places:
        if (place / "studies" / name).is_dir():
            sys.path.insert(0, str(place))
            return import_module(f"studies.{name}.__main__").main(arguments)
    raise Refusal(f"{places[0] / 'studies' / name}: no such folder; msalab {name} runs in a clone of msalab's repository, "
                  "or where the package is installed")


def main(arguments=None) -> int:
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["help"]
    if command in TOOLS:
        return ended(lambda: run_tool(command, rest), None)
    if command in programs():
        path = programs()[command]
        os.execv(path, [str(path), *rest])
    if command in ("-h", "--help", "help"):
        print(usage())
        return 0
    if command == "--version":
        from importlib.metadata import PackageNotFoundError, version
        try:
            print("msalab", version("msalab"))
        except PackageNotFoundError:
            print("msalab of a clone, which is not installed")
        return 0
    if command in PROGRAMS:
        print(f"msalab: {command} is the program msa-{command} of this package, which is not here: there is no "
              f"{folders()[-1] / f'msa-{command}'}; `pip install .` in the repository compiles and installs it, and "
              f"`./msalab build` there makes build/release/bin/msa-{command}, which runs by itself, and by this command "
              "where MSALAB_BIN names its folder", file=sys.stderr)
        return 2
    known = sorted({*TOOLS, *PROGRAMS})
    print(f"msalab: '{command}' is no command{did_you_mean(command, known)}; commands are: {', '.join(known)}",
          file=sys.stderr)
    return 2


if __name__ == "__main__":
    leave(main())
