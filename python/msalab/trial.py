# SPDX-License-Identifier: MIT
"""Would MSA work on this model? From the model to a verdict in one command: capture of its layers, a fitted Index
Branch, what a selection keeps with and without the first block, the model's loss at two budgets, the price, and a report."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

from . import results
from ._compiled import CPUINFO
from .arguments import CommandLine
from .ending import Refusal, ended
from .evaluation.intervals import interval_of
from .programs import find_program
from .steps import Step, run_all

SHARE = 4  # the smaller budget is one token in so many of the context
FULL = 0.75  # of the context that documents held out fill, for a verdict
CAPTURED = 2  # sequences, of the text that is learnt from
PARTS = 8  # documents that the text held out is cut into, for intervals
# Seconds on two quiet cores, of a run of SmolLM2-135M: what a forward pass takes beside its products with weights, the
# fit and an analysis, by layer and token; a start of Python with PyTorch; the report.
ATTENDED, FITTED, ANALYSED, STARTED, DRAWN = 1.7e-5, 1.3e-4, 7e-5, 6, 20
NATIVE = {"bfloat16": ("avx512_bf16", "amx_bf16"), "float16": ("avx512_fp16", "amx_fp16")}  # by the names of Linux
SELECTORS = ("index", "oracle", "mean-key", "window")


def parser() -> CommandLine:
    top = CommandLine(prog="msalab try", description=__doc__,
                      example="msalab try MODEL --text FILE --out results/try   (again: it goes on where it stopped)")
    top.add_argument("model", help="id on the hub, folder, or FILE.gguf")
    top.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text; the first half is learnt from, the "
                     "second half is held out")
    top.add_argument("--out", required=True, metavar="DIR", help="gets everything; report/report.html to look at")
    top.add_argument("--context", type=int, default=1024, metavar="N", help="tokens of each sequence: of "
                     f"the {CAPTURED} that are captured, and of those that the loss is measured on (default: 1024)")
    top.add_argument("--block-size", type=int, default=64, metavar="N", help="tokens of a block (default: 64, of which "
                     "a context of 1024 has 16; elsewhere 128)")
    top.add_argument("--top-k", type=int, metavar="N", help="blocks of the smaller budget; the other is twice as large "
                     "(default: a quarter of the context)")
    top.add_argument("--sequences", type=int, default=6, metavar="N", help="that the loss is measured on (default: 6)")
    top.add_argument("--steps", type=int, default=0, metavar="N", help="of the fit (default: 0, its closed form)")
    top.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    top.add_argument("--bytes", action="store_true", help="a model of bytes, without a tokenizer")
    return top


def split_text(path: Path, out: Path) -> tuple[tuple[Path, ...], Path]:
    """The halves of a text, cut at ends of lines: the first one as CAPTURED files, the second one as one of PARTS
    documents."""
    text = path.read_bytes().replace(b"\0", b"\n")

    def cut(at: int) -> int:
        return text.find(b"\n", at) + 1 or len(text)

    def parts(first: int, last: int, count: int) -> list[bytes]:
        ends = [first, *(cut(first + (last - first) * part // count) for part in range(1, count)), last]
        return [text[one:other] for one, other in zip(ends, ends[1:]) if text[one:other].strip()]

    half = cut(len(text) // 2)
    learnt, held = parts(0, half, CAPTURED), parts(half, len(text), PARTS)
    if not learnt or not held:
        raise Refusal(f"{path}: has no two halves of text with an end of line between them")
    files = {out / f"learnt_{number}.txt": content for number, content in enumerate(learnt, 1)}
    held_out = out / "held_out.txt"
    for file, content in {**files, held_out: b"\0".join(held)}.items():
        if not file.exists() or file.read_bytes() != content:  # an older one keeps its time: steps look at it
            file.write_bytes(content)
    return tuple(files), held_out


def sizes_of(model: str) -> tuple[int, int, str]:
    """(parameters, layers, number format) by the configuration, without weights; zeros where it does not say."""
    try:
        import torch
        import transformers
        config = transformers.AutoConfig.from_pretrained(model)
        with torch.device("meta"):
            whole = transformers.AutoModelForCausalLM.from_config(config)
        return sum(weight.numel() for weight in whole.parameters()), config.num_hidden_layers, str(whole.dtype)[6:]
    except Exception:  # it is only an estimate; what is wrong with the model, its capture says
        return 0, 0, ""


def flops_per_second(dtype: str, device: str) -> float:
    """Of a product of matrices of a small model's size."""
    import torch
    a, b = (torch.ones(1024, 1024, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    float((a @ b)[0, 0])  # the first one also chooses a kernel
    began = time.perf_counter()
    float((a @ b)[0, 0])
    return 2 * 1024**3 / (time.perf_counter() - began)


def format_of_loss(stored: str, device: str) -> tuple[str, float]:
    """The number format that the model runs in for its loss, and its FLOP/s: that of the weights, or float32 on a
    processor without instructions for theirs. A measured time would choose now one, now the other."""
    if not stored:
        return "auto", math.inf
    flags = CPUINFO.read_text(encoding="utf-8").split() if CPUINFO.is_file() else []
    slow = device == "cpu" and stored in NATIVE and not any(flag in flags for flag in NATIVE[stored])
    return "float32" if slow else "auto", flops_per_second("float32" if slow else stored, device)


def _run(*words, out=None) -> None:
    """out: the file that gets what is printed; None: stderr."""
    called = f"msalab {words[3]}" if words[1] == "-m" else Path(words[0]).name
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # this package, also in the child
    done = subprocess.run([*map(str, words)], stdout=out or sys.stderr, env=found)
    if done.returncode:
        raise Refusal(f"{called} ended with exit code {done.returncode}; its message is above")


def _msalab(*words) -> None:
    _run(sys.executable, "-m", "msalab", *words)


def steps_of(options, out: Path) -> list[Step]:
    source = Path(options.text)
    learnt, held = split_text(source, out)
    block, k, context = options.block_size, options.top_k, options.context
    parameters, layers, stored = sizes_of(options.model)
    dtype, rate = format_of_loss(stored, options.device)
    how = ["--device", options.device, *(["--bytes"] if options.bytes else [])]
    sizes = ["--block-size", block, "--top-k", k]
    made = (options.model, *how, *sizes, options.steps)
    capture, fit = out / "capture.h5", out / "fit"
    tokens, passes = len(learnt) * context, 1 + 2 * 2 * 2  # dense; two selectors, two budgets, forced or not

    def passed(count: int) -> float:
        return STARTED + count * (2 * parameters / rate + ATTENDED * layers)

    def analyse(name: str, first: int) -> Step:
        selectors = ",".join(SELECTORS)
        return Step(name, f"what a selection keeps, {'the first block kept' if first else 'no block forced'}",
                    ANALYSED * layers * tokens, learnt, lambda: _run(
                        find_program("msa-analyze"), fit / "indexer.h5", "--out", out / name, *sizes, "--selectors",
                        selectors, "--forced-first", first, "--positions", f"{context // 2}:"),
                    (*made, first, context), out / name)

    return [
        Step("capture", "queries, keys and values of every layer", passed(tokens), learnt,
             lambda: _msalab("capture", options.model, "--text", *learnt, "--max-tokens", context, "--out", capture,
                             "--overwrite", *how), (options.model, context, *how)),
        Step("fit", "an Index Branch for each layer", FITTED * layers * tokens * (1 + options.steps / 100), learnt,
             lambda: _run(find_program("msa-fit-indexer"), capture, "--out", fit, *sizes, "--steps", options.steps),
             made, fit),
        analyse("free", 0), analyse("forced", 1),
        Step("evaluation", "the model's loss on text held out" + (f", in {dtype}, which is faster here" if dtype != "auto"
                                                                  else ""),
             passed(passes * context * options.sequences), (held,), lambda: _msalab(
                 "evaluate", options.model, "--out", out / "evaluation", "--text", held, "--indexer", fit, "--selectors",
                 "index,oracle", "--budgets", f"{block * k},{2 * block * k}", "--forced-first", "0,1", "--context", context,
                 "--sequences", options.sequences, "--tasks", "", "--dtype", dtype, *how),
             (*made, context, options.sequences, dtype), out / "evaluation"),
        Step("report", "prices and pictures", DRAWN, (), lambda: _report(out), ())]


def _report(out: Path) -> None:
    with open(out / "cost.json", "wb") as file:
        _run(find_program("msa-cost"), "--results", out / "free/results.h5", "--json", out=file)
    _msalab("plot", out / "free/results.h5", "--out", out / "report", "--fit", out / "fit/results.h5", "--evaluate",
            out / "evaluation/summary.json", "--cost", out / "cost.json", "--activations", out / "capture.h5")


def verdict(answer: results.Report) -> list[str]:
    """Of an evaluation, in sentences; it names no setting that did not run."""
    dense, run = answer["configs"].row(config="dense")["bits_of_text"], answer["evaluated"].row()
    lines = [f"Dense: {dense:.3f} bits per token of the text held out, {run['foretold_tokens']} tokens."]
    of = {(config["selector"], int(config["token_budget"]), int(config["forced_first"])): interval_of(config, "excess")
          for config in answer["configs"].records() if config["selector"]}
    for budget in sorted({budget for _, budget, _ in of}):
        for selector, called in (("index", "the Index Branch"), ("oracle", "the best choice of blocks")):
            free, forced = of.get((selector, budget, 0)), of.get((selector, budget, 1))
            said = [f"{100 * one['mean'] / dense:+.2f} % {_interval(one, dense)}{ending}" for one, ending in (
                (free, ""), (forced, " with the first block kept")) if one]
            lines.append(f"{budget} tokens a query, {called}: {', '.join(said)}.")
    largest = max(budget for _, budget, _ in of)
    best = min(of["index", largest, first]["mean"] for first in (0, 1) if ("index", largest, first) in of)
    oracle = min(of["oracle", largest, first]["mean"] for first in (0, 1) if ("oracle", largest, first) in of)
    length, context = run["foretold_tokens"] / run["text_sequences"], run["context"]
    if length < FULL * context:
        lines.append(f"The documents held out have {length:.0f} tokens on average, for a context of {context}: a text "
                     f"{math.ceil(context / length)} times as long says what MSA loses there.")
    else:
        lines.append(_advice(100 * best / dense, 100 * oracle / dense, largest))
    return lines


def _interval(excess: dict, dense: float) -> str:
    if excess["low"] is None:
        return "(no interval: fewer than six documents)"
    return f"({100 * excess['low'] / dense:+.2f} to {100 * excess['high'] / dense:+.2f})"


def _change(percent: float) -> str:
    """"loses 0.50 %", or "saves 0.50 %" of a negative loss."""
    return f"{'loses' if percent >= 0 else 'saves'} {abs(percent):.2f} %"


def _advice(index: float, oracle: float, budget: int) -> str:
    """index, oracle: percent of the dense bits that each loses at the larger budget."""
    if index < 0.005:  # or what is printed as 0.00
        return f"With {budget} tokens MSA {_change(index)} of the bits untrained: no loss is left to close."
    if index <= 1:
        return f"With {budget} tokens MSA {_change(index)} of the bits untrained: training may close that."
    if oracle <= 1:
        return (f"{budget} tokens are enough (the best choice {_change(oracle)}), the Index Branch does not find them "
                f"yet ({index:.2f} %): fit it longer (--steps 100), or train the model with it (msalab train).")
    return f"Even the best choice of {budget} tokens loses {oracle:.2f} %: a larger budget, or some layers dense."


def _try(options) -> None:
    if options.top_k is None:
        options.top_k = max(1, options.context // SHARE // options.block_size)
    for name in ("context", "block_size", "top_k", "sequences"):
        if getattr(options, name) < 1:
            raise Refusal(f"{name} is {getattr(options, name)}, must be at least 1")
    if 2 * options.top_k * options.block_size >= options.context:
        raise Refusal(f"top_k is {options.top_k}: twice as many blocks of {options.block_size} tokens are the whole "
                      f"context of {options.context}, and nothing is left out")
    for name in ("msa-fit-indexer", "msa-analyze", "msa-cost"):
        find_program(name)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    run_all(steps_of(options, out), out, lambda line: print(line, file=sys.stderr, flush=True))
    found = verdict(results.open(out / "evaluation", "msalab evaluate"))
    (out / "verdict.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
    print(*found, f"Pictures: {out / 'report/report.html'}", sep="\n")


def main(arguments=None) -> int:
    options = parser().parse_args(arguments)
    return ended(lambda: _try(options), options, interrupted="interrupted; the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
