#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What Index Branches select, and what the first token gets, before and after training: by layer and head
(fig:vis-selection, fig:attention-sink).

usage: pictures.py measure MODEL BEFORE AFTER TEXT ARCHIVE.tar.xz [options]   (PYTHONPATH=build/release/python,
                                                                           MSALAB_BIN=build/release/bin)
       pictures.py draw ARCHIVE.tar.xz DIR [--layers L,M]   (PYTHONPATH=python; needs no GPU)

BEFORE: Index Branches of MODEL, as the fitted-seed-1.safetensors of studies/conversion/gpu.sh. AFTER: the folder of a
trained model. Both models attend densely to the first documents of TEXT while they are captured. draw prints a row for each
layer.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import matplotlib
import numpy as np

from msalab.capture.layer import as_bfloat16
from msalab.evaluation.text import read_documents
from msalab.plots import Results, style
from msalab.plots.heat_map import future
from msalab.programs import find_program
from msalab.table import Table

sys.path.append(str(Path(__file__).resolve().parents[2] / "notebooks"))
from palettes import with_palette  # noqa: E402

WHEN = ("before", "after")
SELECTORS = ("index", "oracle", "mean-key", "window")
BLOCK = 64  # tokens
DOCUMENTS = 3  # of studies/conversion/inputs.py, one of each kind
QUERIES = 512  # of each document
LEVELS = 20  # of colours of a map: more make its picture larger
NUMBERS, MAPS = "pictures.json", "selection.npz"
COLUMNS = ("layer", "when", "block_recall", *(f"mass_{name}" for name in SELECTORS), "same", "distance", "oracle_distance",
           "dense", "sparse")
OF_HEADS = ("layer", "head", "when", "dense", "sparse")
OF_GROUPS = ("layer", "when", "group", "first_block")
ABOVE = 0.02  # chance, by which block 0 is selected in every group of a layer that finds it: the registered rule


def call(*words):
    done = subprocess.run([*map(str, words)], stdout=sys.stderr, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    if done.returncode:
        sys.exit(f"{words[0]}: ended with exit code {done.returncode}; its message is above")


def analyse(model, indexer, texts: list[Path], folder: Path, options) -> tuple[Path, dict[int, np.ndarray]]:
    """The results of msa-analyze, and layer -> what all queries of the first document select. The capture, of gigabytes,
    goes."""
    capture, out = folder / "capture.h5", folder / "analysis"
    call(sys.executable, "-m", "msalab", "capture", model, "--indexer", indexer, "--text", *texts, "--max-tokens",
         options.context, "--device", options.device, *["--bytes"] * options.bytes, "--out", capture)
    call(find_program("msa-analyze"), capture, "--out", out, "--selectors", ",".join(SELECTORS), "--block-size", BLOCK,
         "--top-k", options.top_k, "--sample-queries", QUERIES * len(texts), "--backend", options.backend)
    selected = dict(all_selected(capture, options.top_k))
    capture.unlink()
    return out / "results.h5", selected


def all_selected(capture: Path, top_k: int):
    """Layer and ids [Nq, Hkv, k] of the first document, of which msa-analyze has a sample."""
    from msalab import index_select  # compiled, which drawing needs not be

    with h5py.File(capture) as file:
        end = int(file["cu_seqlens"][1])
        for layer in map(int, file["layers"]):
            q, k = (file[f"layers/{layer}/{name}"] for name in ("index_q", "index_k"))
            q, k = (as_bfloat16(one[:end]) if "logical_dtype" in one.attrs else one[:end] for one in (q, k))
            yield layer, index_select(q.astype(np.float32), k.astype(np.float32), top_k, block_size=BLOCK)


def counts_of(ids: np.ndarray) -> np.ndarray:
    """[Nq, Hkv, k] of all queries of a document -> [Hkv, rows, columns]: how many of a block's queries select a block."""
    own, groups = np.arange(len(ids)) // BLOCK, ids.shape[1]
    blocks = int(own[-1]) + 1
    cell = (np.arange(groups)[:, None] * blocks + own[:, None, None]) * blocks + ids
    counts = np.bincount(cell[ids >= 0], minlength=groups * blocks * blocks)
    return counts.reshape(groups, blocks, blocks).astype(np.uint8)  # BLOCK at most


def first_block(ids: np.ndarray) -> np.ndarray:
    """[Hkv]: the share of the queries that see more than k blocks which select block 0."""
    return (ids[ids.shape[2] * BLOCK:] == 0).any(2).mean(0)


def chance(tokens: int, top_k: int) -> float:
    """Of the same: k - 1 of the earlier blocks are selected beside the query's own."""
    return float(np.mean((top_k - 1) / (np.arange(top_k * BLOCK, tokens) // BLOCK)))


def same(one: np.ndarray, other: np.ndarray) -> float:
    """[rows, Hkv, k] each: the share of the blocks of one that the other has, too."""
    chosen = one >= 0
    return float(((one[..., None] == other[..., None, :]).any(-1) & chosen).sum() / chosen.sum())


def distance(ids: np.ndarray, position: np.ndarray) -> float:
    """Tokens from a block's first token back to that of the query's own block, the mean over the chosen blocks."""
    back = position[:, None, None] // BLOCK - ids
    return float(BLOCK * back[ids >= 0].mean())


def of_layer(results: dict[str, Results], layer: int):
    """A row of COLUMNS for each of WHEN."""
    queries = [one.queries(layer) for one in results.values()]
    if not np.array_equal(queries[0].token, queries[1].token):
        sys.exit(f"layer {layer}: the two analyses are of different queries")
    counted = results["before"].rows_with_choice(layer)
    ids = {when: {name: one.ids(name, layer)[:][counted] for name in ("index", "oracle")} for when, one in results.items()}
    position, shared = queries[0].position[counted], same(*(ids[when]["index"] for when in WHEN))
    for when, one in results.items():
        yield (layer, when, one.average("index", layer, "block_recall"),
               *(one.average(name, layer, "mass_kept") for name in SELECTORS), shared,
               *(distance(ids[when][name], position) for name in ("index", "oracle")),
               one.average("dense", layer, "sink_mass"), one.average("index", layer, "sink_mass_sparse"))


def heads_of(results: dict[str, Results], layer: int):
    """A row of OF_HEADS for each head and of WHEN."""
    for when, one in results.items():
        dense, sparse = one.metric("dense", layer, "sink_mass"), one.metric("index", layer, "sink_mass_sparse")
        yield from ((layer, head, when, *map(float, values)) for head, values in enumerate(zip(dense, sparse)))


def pack(results: dict[str, Results], selected: dict[str, dict[int, np.ndarray]], path: Path, kept: list[int] | None):
    """What draw() needs, small: counts of the heat maps of the first document, of the layers `kept` (None: all), and
    numbers by layer, head and group."""
    layers = results["before"].layers
    sizes, queries = results["before"].sizes(layers[0]), results["before"].queries(layers[0])
    numbers = {"heads": sizes.query_heads, "groups": sizes.kv_heads, "top_k": results["before"].top_k("index", layers[0]),
               "documents": int(queries.sequence[-1]) + 1, "tokens": sizes.tokens,
               "queries": len(results["before"].rows_with_choice(layers[0])),
               "commit": {when: one.run.get("commit", "") for when, one in results.items()},
               "inputs": {when: one.run_json("inputs") for when, one in results.items()},
               "by_layer": [row for layer in layers for row in of_layer(results, layer)],
               "by_head": [row for layer in layers for row in heads_of(results, layer)],
               "by_group": [(layer, when, group, float(share)) for layer in layers for when in WHEN
                            for group, share in enumerate(first_block(selected[when][layer]))],
               "chance": chance(len(selected["before"][layers[0]]), results["before"].top_k("index", layers[0]))}
    kept, maps = layers if kept is None else kept, io.BytesIO()
    if unknown := sorted({*kept} - {*layers}):
        sys.exit(f"--maps: there is no layer {unknown[0]}; there are {layers}")
    np.savez(maps, layers=kept, queries=np.bincount(np.arange(len(selected["before"][layers[0]])) // BLOCK),
             **{when: np.stack([counts_of(ids[layer]) for layer in kept]) for when, ids in selected.items()})
    with tarfile.open(path, "w:xz") as tar:
        for name, data in ((NUMBERS, json.dumps(numbers).encode()), (MAPS, maps.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def measure(options):
    if not options.archive.parent.is_dir():
        sys.exit(f"{options.archive.parent}: no such folder")
    with tempfile.TemporaryDirectory(dir=options.archive.parent) as work:
        texts = []
        for number, document in enumerate(read_documents([options.text])[:DOCUMENTS]):
            texts.append(Path(work, f"document-{number}.txt"))
            texts[-1].write_text(document, encoding="utf-8")
        folders = [Path(work, when) for when in WHEN]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor() as both:
            (one, of_one), (other, of_other) = both.map(lambda of: analyse(*of[:2], texts, of[2], options), (
                (options.model, options.before, folders[0]), (options.after, options.after, folders[1])))
        with Results(one) as before, Results(other) as after:
            pack({"before": before, "after": after}, {"before": of_one, "after": of_other}, options.archive,
                 options.maps)
    print(f"{options.archive}: {options.archive.stat().st_size} bytes")


class Found:
    """Of an archive: numbers, tables of them, and maps {layer: [Hkv, rows, columns]} of shares of each of WHEN."""

    def __init__(self, path: Path):
        with tarfile.open(path) as tar:
            self.numbers = json.load(tar.extractfile(NUMBERS))
            with np.load(io.BytesIO(tar.extractfile(MAPS).read())) as maps:
                self.maps = {when: dict(zip(maps["layers"].tolist(), maps[when] / maps["queries"][:, None]))
                             for when in WHEN}
        self.by_layer = Table.from_rows(COLUMNS, self.numbers["by_layer"])
        self.by_head = Table.from_rows(OF_HEADS, self.numbers["by_head"])
        self.by_group = Table.from_rows(OF_GROUPS, self.numbers["by_group"])
        self.layers = sorted(set(self.by_layer["layer"].tolist()))
        self.groups, self.heads = self.numbers["groups"], self.numbers["heads"]

    def least_and_most(self) -> list[int]:
        """Of the layers with maps, those in which the first token got least and most of the dense attention, before."""
        shares = {layer: self.by_layer.where(when="before", layer=layer)["dense"][0] for layer in self.maps["before"]}
        return [pick(shares, key=shares.get) for pick in (min, max)]

    def sinks(self, layer: int, when: str, name: str) -> np.ndarray:
        """[Hq]"""
        return self.by_head.where(layer=layer, when=when)[name]


@style.styled
def draw_selection(found: Found, layers: list[int]):
    """A row for each layer and of WHEN, a panel for each group (fig:vis-selection)."""
    lines = [(layer, when) for layer in layers for when in WHEN]
    figure = style.new_figure(1 + len(lines) * 0.92 * style.WIDTH / max(found.groups, 3))
    axes = figure.subplots(len(lines), found.groups, sharex=True, sharey=True, squeeze=False)
    rows = []
    for panels, (layer, when) in zip(axes, lines):
        panels[0].set_ylabel(f"layer {layer}, {when}")
        for group, panel in enumerate(panels):
            share = found.maps[when][layer][group]
            image = panel.imshow(share, cmap=matplotlib.colormaps[style.MAGNITUDE].resampled(LEVELS), vmin=0, vmax=1,
                                 interpolation="nearest")
            panel.grid(False)
            panel.add_patch(future(len(share), 1))
            panel.locator_params(nbins=3, integer=True)
            rows += [(layer, when, group, row, column, share[row, column]) for row, column in
                     zip(*np.nonzero(share))]
    for group, panel in enumerate(axes[0]):
        panel.set_title(f"group {group}")
    figure.supxlabel(f"key block ({BLOCK} tokens each)")
    figure.supylabel("query block")
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_label("share of queries that select the block")
    return figure, Table.from_rows(("layer", "when", "group", "query_block", "key_block", "share"), rows)


LOOKS = {("dense", "before"): (style.DENSE, 0.5), ("dense", "after"): (style.DENSE, 1),
         ("sparse", "before"): (style.selector_style("index")["color"], 0.45),
         ("sparse", "after"): (style.selector_style("index")["color"], 1)}


@style.styled
def draw_sinks(found: Found, layers: list[int]):
    """A panel for each layer, bars for each head (fig:attention-sink)."""
    figure = style.new_figure(1 + 2.1 * len(layers))
    axes = figure.subplots(len(layers), 1, squeeze=False, sharey=True)[:, 0]
    heads = np.arange(found.heads)
    for panel, layer in zip(axes, layers):
        for place, ((name, when), (colour, alpha)) in enumerate(LOOKS.items()):
            panel.bar(heads + 0.2 * place - 0.3, found.sinks(layer, when, name), 0.2, color=colour, alpha=alpha,
                      label=f"{name}, {when}")
        for edge in heads[found.heads // found.groups::found.heads // found.groups]:
            panel.axvline(edge - 0.5, color=style.GUIDE, linewidth=0.8, linestyle=":")
        panel.set(title=f"layer {layer}", xlim=(-0.6, found.heads - 0.4))
        panel.grid(False, axis="x")
        panel.locator_params(axis="x", integer=True)
    axes[-1].set_xlabel("query head (dotted lines part the GQA groups)")
    figure.supylabel("mean probability on token 0")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, Table.from_rows(OF_HEADS, [row for row in found.numbers["by_head"] if row[0] in layers])


@style.styled
def draw_sinks_by_layer(found: Found):
    """Heads by layers, before and after: above of dense attention, below over the selected blocks."""
    figure = style.new_figure(1.6 + 2 * min(0.16 * found.heads + 0.5, 3.2))
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    most = max(0.05, max(found.by_head[name].max() for name in ("dense", "sparse")))
    for line, name in zip(axes, ("dense", "sparse")):
        for panel, when in zip(line, WHEN):
            values = np.stack([found.sinks(layer, when, name) for layer in found.layers], 1)
            image = panel.imshow(values, cmap=style.MAGNITUDE, vmin=0, vmax=most, aspect="auto", interpolation="nearest")
            panel.grid(False)
            for edge in range(found.heads // found.groups, found.heads, found.heads // found.groups):
                panel.axhline(edge - 0.5, color=style.NO_DATA, linewidth=0.8)
            panel.set_title(f"{name}, {when}", loc="left")
            panel.locator_params(nbins=5, integer=True)
    for panel in axes[-1]:
        places = range(0, len(found.layers), max(1, len(found.layers) // 5))
        panel.set_xticks(places, [found.layers[place] for place in places])
    figure.supxlabel("layer")
    figure.supylabel("query head")
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02)
    bar.set_label("mean probability on token 0")
    return figure, found.by_head


def markdown(found: Found) -> str:
    """Before and after in each cell, a row for each layer and their means."""
    heads = ("layer", "block recall", "mass kept, index", "oracle", "mean-key", "window", "same blocks", "tokens back, index",
             "oracle", "token 0, dense", "sparse", "block 0")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for layer in (*found.layers, None):
        cells = []
        for name in (*COLUMNS[2:], "first_block"):
            table = found.by_group if name == "first_block" else found.by_layer
            rows = table if layer is None else table.where(layer=layer)
            one, other = (rows.where(when=when)[name].mean() for when in WHEN)
            digits = 0 if "distance" in name else 3
            cells.append(f"{one:.{digits}f}" + ("" if name == "same" else f", {other:.{digits}f}"))
        lines.append(f"| {'mean' if layer is None else layer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def find_first_block(found: Found, when: str) -> int:
    """Layers that select block 0 in every group more often than by chance."""
    least = [found.by_group.where(when=when, layer=layer)["first_block"].min() for layer in found.layers]
    return int((np.array(least) > found.numbers["chance"] + ABOVE).sum())


def draw(options):
    found = Found(options.archive)
    layers = options.layers or found.least_and_most()
    if unknown := [layer for layer in layers if layer not in found.maps["before"]]:
        sys.exit(f"{options.archive}: has no map of layer {unknown[0]}; it has those of {list(found.maps['before'])}")
    for name, drawn in (("even_selection", draw_selection(found, layers)), ("even_sink", draw_sinks(found, layers)),
                        ("even_sink_by_layer", draw_sinks_by_layer(found))):
        png, *_ = style.save(*drawn, options.out, name)
        png.write_bytes(with_palette(png.read_bytes()))
        print(png)
    found.by_layer.to_csv(options.out / "even_layers.csv")
    print(f"\n{found.numbers['queries']} queries of {found.numbers['documents']} documents, {found.numbers['tokens']} tokens, "
          f"{found.numbers['top_k']} blocks kept; before, after:\n\n{markdown(found)}")
    print(f"\nblock 0 is selected more often than by chance, {found.numbers['chance']:.3f}, by {ABOVE} in every group: "
          f"{find_first_block(found, 'before')} of {len(found.layers)} layers before, {find_first_block(found, 'after')} after")


def layer_list(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("measure", help="on a GPU: captures and analyses, of which ARCHIVE keeps the numbers")
    command.set_defaults(run=measure)
    for name in ("model", "before", "after", "text", "archive"):
        command.add_argument(name, metavar=name.upper(), type=Path)
    command.add_argument("--device", default="cpu", help="of the captures: cpu (default), cuda")
    command.add_argument("--backend", default="cpu", help="of the analyses: cpu (default), cuda")
    command.add_argument("--context", type=int, default=8192, help="tokens of a document (default: 8192)")
    command.add_argument("--top-k", type=int, default=32, help=f"blocks of {BLOCK} tokens that a query keeps (default: 32)")
    command.add_argument("--maps", type=layer_list, metavar="L,M", help="layers whose maps of selections are kept "
                         "(default: all)")
    command.add_argument("--bytes", action="store_true", help="models of bytes, without a tokenizer")
    command = commands.add_parser("draw", help="pictures, as PNG, SVG and CSV, and the table, of ARCHIVE")
    command.set_defaults(run=draw)
    command.add_argument("archive", metavar="ARCHIVE", type=Path)
    command.add_argument("out", metavar="DIR", type=Path)
    command.add_argument("--layers", type=layer_list, metavar="L,M",
                         help="of the pictures by head; default: of those with maps, the ones with the weakest and the strongest sink, before")
    options = top.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
