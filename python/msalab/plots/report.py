# SPDX-License-Identifier: MIT
"""All pictures of a results file, and a page that shows them: one file, no network, no viewer."""

from __future__ import annotations

import base64
import json
import math
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np

from ..explore import Microscope, as_elements, most_telling
from ..progress import Progress
from ..table import Table
from .gallery import PAPER, SECTIONS, Section, expected
from .glossary import definitions
from .results import Results, ResultsError, blamed
from .seen import seen
from .style import as_part_of_page, has_names, save
from .summary import summary_table

MOST_LAYERS = 6  # that a page shows by themselves unless it is told which
SHARES = ("mass_kept", "oracle_mass", "block_recall", "score_recall")  # shown with a bar, 0 to 1


@dataclass(frozen=True)
class Shown:
    """A picture as the page has it."""

    name: str
    layer: int | None
    selector: str | None
    seen: str  # in words
    svg: str  # base64; of a picture with names on hover the element itself
    is_element: bool


def write_report(results: Results, out_dir, microscope: Microscope, layers=None, before: Sequence[Section] = (),
                 after: Sequence[Section] = (), instead: Sequence[Section] = (),
                 note=lambda line: None) -> Path:
    """Writes every picture (PNG, SVG, CSV), summary.csv and report.html into out_dir; sections of
    other files stand before and after those of the results, or instead of the one of their key.
    layers: default: all in what shows them together, by themselves at most MOST_LAYERS."""
    every = results.layers if layers is None else layers
    layers = telling_layers(results) if layers is None else layers
    if len(layers) < len(every):
        note(f"pictures of layers {', '.join(map(str, layers))} alone, of {len(every)}; --layers picks "
             "others, --layers all draws all")
    results.require_layers(layers)
    sections = in_order(results, before, after, instead)
    with _whole_folder(Path(out_dir)) as folder:
        shown: dict[str, list[Shown]] = {}
        of = {section.key: every if section.is_overview else layers for section in sections}
        waited = {section.key: expected(section, results, of[section.key]) for section in sections}
        progress = Progress(note, sum(waited.values()))
        for section in sections:
            shown[section.key] = []
            with blamed(results.path, f"the section {section.key} cannot be drawn"):
                for picture in section.draw(results, of[section.key]):
                    shown[section.key].append(_save(picture, folder))
                    progress.advance(len(shown[section.key]) <= waited[section.key],
                                     f"{sum(map(len, shown.values()))} pictures, {section.key}")
            progress.count(max(0, waited[section.key] - len(shown[section.key])))
        with blamed(results.path, "the summary cannot be made"):
            summary = summary_table(results, every)
            summary.to_csv(folder / "summary.csv")
            for section in sections:
                if section.table is not None:
                    section.table.to_csv(folder / f"{section.table_name}.csv")
            page = _render(results, microscope, layers, every, summary, sections, shown).encode()
        (folder / "report.html").write_bytes(page)
    return Path(out_dir) / "report.html"


def in_order(results: Results, before=(), after=(), instead=()) -> list[Section]:
    """The sections that suit the results and those of other files, the paper's figures first."""
    replaced = {section.key: section for section in instead}
    found = [*before, *(replaced.get(section.key, section) for section in SECTIONS if section.suits(results)), *after]
    return sorted(found, key=lambda section: -1 if section.is_first else PAPER.index(section.paper) if section.paper
                  else len(PAPER))


def write_pictures(results: Results, out_dir, sections, layers) -> list[Path]:
    """The pictures of these sections alone, without a page: the PNG files. layers: default: at most MOST_LAYERS."""
    results.require_layers(layers or ())
    made = []
    with _whole_folder(Path(out_dir)) as folder:
        for section in sections:
            with blamed(results.path, f"the section {section.key} cannot be drawn"):
                for picture in section.draw(results, layers or telling_layers(results)):
                    made.append(save(picture.figure, picture.table, folder, picture.name)[0].name)
    return [Path(out_dir) / name for name in made]


def telling_layers(results: Results) -> list[int]:
    """At most MOST_LAYERS of those that can be sparse: the first and the last one, those with the strongest sink and the least
    mass kept, and others evenly between."""
    layers = list(results.full_layers)
    if len(layers) <= MOST_LAYERS:
        return layers
    practical = [name for name in results.selectors if "oracle" not in name] or results.selectors

    def kept(layer):
        return max(results.average(name, layer, "mass_kept") for name in practical)

    with blamed(results.path, "its averages cannot be read"):
        chosen = [layers[0], layers[-1], min(layers, key=kept),
                  max(layers, key=lambda layer: results.average("dense", layer, "sink_mass"))]
    chosen += [layers[round(place)] for place in np.linspace(0, len(layers) - 1, MOST_LAYERS)[1:-1]]
    return sorted(list(dict.fromkeys(chosen))[:MOST_LAYERS])


@contextmanager
def _whole_folder(out_dir: Path):
    """A folder to write into, whose files go to `out_dir` when all of them are there."""
    there = out_dir.exists()
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=out_dir) as folder:
            yield Path(folder)
            for path in Path(folder).iterdir():
                path.replace(out_dir / path.name)
    except BaseException:
        if not there:
            out_dir.rmdir()
        raise


def _save(picture, out_dir: Path) -> Shown:
    _, svg, _ = save(picture.figure, picture.table, out_dir, picture.name)
    drawn = svg.read_text(encoding="utf-8")
    if has_names(drawn):
        return Shown(picture.name, picture.layer, picture.selector, seen(picture.table),
                     as_part_of_page(drawn, picture.name), True)
    return Shown(picture.name, picture.layer, picture.selector, seen(picture.table),
                 base64.b64encode(drawn.encode()).decode(), False)


def best_practical(summary: Table) -> tuple[str, float] | None:
    """The selector that keeps most mass, mean over layers, the oracles aside."""
    names = sorted({name for name in summary["selector"].tolist() if "oracle" not in name})
    kept = {name: float(summary.where(selector=name)["mass_kept"].mean()) for name in names}
    known = [item for item in kept.items() if not math.isnan(item[1])]
    return max(known, key=lambda item: item[1], default=None)


def _render(results: Results, microscope: Microscope, layers, every, summary: Table, sections, shown) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters.update(number=number, caption=caption, zip=zip,
                               label=lambda name: name.replace("_", " "))
    full = [layer for layer in every if layer in results.full_layers] or every
    counted = summary.of(layer=full)
    best = best_practical(counted)
    words, sizes = definitions(results), results.sizes(full[0])
    for section in sections:
        for name, text in section.definitions.items():
            alike = words.get(name, text) == text
            words[name if alike else f"{name} ({section.key})"] = text
    return environment.get_template("report.html.jinja").render(
        microscope=as_elements(microscope), subject=subject(results, microscope.about),
        first=most_telling(results, [layer for layer in layers if layer in full] or layers),
        layers=layers, every=every, selectors=results.selectors, sections=sections, shown=shown,
        preferred=best[0] if best else results.selectors[0], best=best,
        oracle_mass=float(np.mean(counted["oracle_mass"])), is_nan=math.isnan,
        full=full, windows=sorted({results.window(layer) for layer in every if layer not in full}),
        sizes=sizes, sequences=results.sequences, context=min(sizes.tokens, sizes.blocks * sizes.block_size),
        top_k=results.top_k(results.selectors[0], layers[0]),
        queries=len(results.queries(layers[0]).token), summary=summary, shares=SHARES,
        definitions=words, run=_plain_run(results),
        options=json.dumps(results.run_json("options"), indent=1),
        inputs=results.run_json("inputs"), file=results.path.name)


def subject(results: Results, about: dict) -> dict:
    """What the page is about: the model, the text's first line, and when it was analysed."""
    line = next((line.strip(" #") for line in about["text"].splitlines() if line.strip(" #")), "")
    return {"model": about["model"], "text": line if len(line) <= 80 else f"{line[:79]}…",
            "date": results.run.get("finished", "")[:10]}


def _plain_run(results: Results) -> dict[str, str]:
    """The attributes of /run that the page shows as they are; argv as one would type it."""
    shown = {name: text for name, text in results.run.items()
             if name not in ("program", "argv", "captures", "options", "definitions", "inputs")}
    command = shlex.join([results.run.get("program", ""), *results.run_json("argv")])
    captures = "; ".join(map(_of_capture, results.run_json("captures")))
    return {"command": command, **({"captures": captures} if captures else {}), **shown}


def _of_capture(of: dict) -> str:
    """What one file of activations holds, in words."""
    parts = [of.get("model"), f"{of['sequences']} sequence{'s' if of['sequences'] != 1 else ''}",
             f"{of['tokens']} tokens"]
    return f"{of['input']}: {', '.join(part for part in parts if part)}"


def caption(picture: Shown) -> str:
    if picture.layer is None:
        return f"{picture.selector}." if picture.selector else ""
    return f"Layer {picture.layer}, {picture.selector or 'all selectors'}."


def number(value) -> str:
    """Integers with thin spaces by thousands; others with 3 decimals, small ones as 5.3e-5."""
    if math.isnan(value):
        return "–"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if value == 0 or not abs(value) < 0.01:
        return f"{value:.3f}"
    return f"{value:.1e}".replace("e-0", "e-")
