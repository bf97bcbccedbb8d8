# SPDX-License-Identifier: MIT
"""What `msalab paper` measures anew: --gpu the times of this machine's GPU, --model the selection and the sink of
another model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from msalab.plots import Results, save, selection_heat_map, sink_bars
from msalab.plots.cost import read_record, read_speedups, tokens_text
from msalab.plots.report import telling_layers
from msalab.results import ResultsError
from msalab.steps import Step

from . import published
from .measured import Tree, top_k_of

# Name of a record -> the words of msa-bench that measure it, and seconds on an H100, with those of the dense baselines.
BENCH = {
    "top-k": (("--cases", "top-k"), 60),
    "prefill": (("--cases", "square", "--stages", "layer,dense_attention", "--tokens", "32K,128K,1M"), 400),
    "decode": (("--cases", "decode", "--stages", "layer,dense_attention", "--tokens", "128K,1M", "--batch", "1,8"), 120),
}


def gpu_name() -> str:
    """Of the first GPU; ResultsError where none answers."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        raise ResultsError("--gpu: there is no nvidia-smi here, and so no NVIDIA GPU to measure") from None
    if done.returncode or not done.stdout.strip():
        raise ResultsError(f"--gpu: no NVIDIA GPU answers nvidia-smi: {(done.stderr or done.stdout).strip()}")
    return done.stdout.splitlines()[0].strip()


def _measure(tree: Tree, record: Path, words, note) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([tree.program("msa-bench"), "--backend", "cuda", *words, "--out", record, "--overwrite"],
                          stdout=subprocess.DEVNULL)
    if done.returncode:
        raise ResultsError(f"msa-bench ended with exit code {done.returncode}; its message is above")
    baselines = subprocess.run([sys.executable, tree.root / "bench/baselines.py", "--record", record],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if baselines.returncode:
        last = (baselines.stderr.strip().splitlines() or ["no message"])[-1]
        note(f"note: {record.name} has no times of PyTorch beside it: bench/baselines.py says: {last}")


def gpu_steps(tree: Tree, out: Path, note) -> list[Step]:
    name = gpu_name()
    return [Step(f"gpu {what}", f"{what} on {name}", seconds, (),
                 lambda what=what, words=words: _measure(tree, out / f"gpu/{what}.json", words, note), (name, *words))
            for what, (words, seconds) in BENCH.items()]


def gpu_rows(out: Path):
    """The table of what was measured anew; what a record lacks is said in its place."""
    rows = [("measured anew", "the paper, H800", "here")]
    times = top_k_of(read_record(out / "gpu/top-k.json"))
    for tokens, blocks, k, _, _, own in published.TOP_K:
        found = times.get((tokens, blocks, k))
        here = (f"{found[0]:.0f} us, {found[1] / found[0]:.1f}x less than torch.topk" if found else
                "not measured, or no torch.topk beside it")
        rows.append((f"top-k of {tokens_text(tokens)} rows, {blocks} blocks, k {k}", f"{own} us", here))
    found = read_speedups(out / "gpu/prefill.json", out / "gpu/decode.json").records()
    rows += [(f"{one['phase']} at {tokens_text(one['tokens'])}, {one['selection']}", _of_paper(one),
              f"{one['layer_ms']:.3g} ms, {one['ratio']:.1f}x over {one['baseline']}") for one in found]
    if not found:
        rows.append(("prefill and decoding over dense attention", f"{published.PREFILL}x and {published.DECODE}x",
                     "not measured: no dense attention beside the layers (PyTorch, or msa-bench with cuDNN)"))
    return rows


def _of_paper(row: dict) -> str:
    at_1m = {"prefill": f"{published.PREFILL}x", "decode": f"{published.DECODE}x"}
    return at_1m.get(row["phase"], "") if row["tokens"] == 1 << 20 else ""


def model_steps(model: str, text: str, out: Path) -> list[Step]:
    tried = out / "model"
    words = [sys.executable, "-m", "msalab", "try", model, "--text", text, "--out", tried]

    def attempt():
        done = subprocess.run(words, stdout=sys.stderr)
        if done.returncode:
            raise ResultsError(f"msalab try ended with exit code {done.returncode}; its message is above")

    return [Step("model", f"msalab try {model}, which says how long it takes", 0, (Path(text),), attempt, (model,)),
            Step("model pictures", f"what {model} selects, and its sink", 10, (),
                 lambda: _model_pictures(tried / "free/results.h5", out / "pictures"), (model,))]


def _model_pictures(path: Path, pictures: Path) -> None:
    with Results(path) as results:
        layers = telling_layers(results)
        for layer in layers:
            save(*selection_heat_map(results, "index", layer), pictures, f"model_selection_layer{layer}")
        save(*sink_bars(results, "index", layers), pictures, "model_sink")


def model_pictures(out: Path) -> list[str]:
    """Names of the pictures of another model, in the order of its layers."""
    found = (out / "pictures").glob("model_selection_layer*.svg")
    return [*sorted((path.stem for path in found), key=lambda name: int(name.rpartition("layer")[2])), "model_sink"]
