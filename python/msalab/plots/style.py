# SPDX-License-Identifier: MIT
"""The look of every picture, and the only place with colours.

Magnitudes: viridis, fixed 0-1. Masked: grey. Selectors: a colour and a marker each, by their name
alone, and fill and line by their options; the oracle, the reference, is black and dashed. Pictures are
drawn narrow with letters of one size, so that they stay readable at the width of a phone. In a browser's
dark mode the SVG is dark.
"""

from __future__ import annotations

import functools
import re
import textwrap
import zlib
from pathlib import Path

import matplotlib
import matplotlib.colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

MAGNITUDE = "viridis"
# Less, none, more: vermilion, white, blue.
DIFFERENCE = matplotlib.colors.LinearSegmentedColormap.from_list("difference", ("#d55e00", "#ffffff", "#0072b2"))
MASKED, NO_DATA, REFERENCE = "0.82", "white", "black"
DENSE, OTHERS, GUIDE = "0.55", "0.72", "0.35"
ON_IMAGE = ("#fefefe", "#010101")  # of letters on images
WIDTH = 5.2  # inches
SMALLEST = 10.6  # points: 11 px where a picture of this width is 390 px wide, and the page shows none narrower
FAINT = 0.6  # greys lighter than that are of grids, fills and what is left aside
PAPER_DARK, INK_DARK = "#1d2028", "#e8eaf0"  # of the page in dark mode
MOST_LAYERS = 12  # that an axis of this width names

# Of Okabe and Ito, told apart by colour-blind readers; black is the oracle's, and yellow is too light on white. The last
# two are those that are furthest from all others for any reader.
_OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8833ff", "#88bb66")
PAIR = _OKABE_ITO[:2]
LABEL_CONTRAST = 4.5  # of letters in a line's colour on white
_MARKERS = "osD^vPX*"
_KNOWN = ["index", "mean-key", "window", "random", "quest", "snapkv", "oracle-logit", "own"]
# Dotted, in colours that none of the above has, of which neighbours here have different ones.
_LESS_KNOWN = [
    "double-sparsity", "sparq", "tova", "twilight", "dsa-tokens", "infllm", "window-tokens",
    "quest-pages", "infllm-v2", "streaming-llm", "h2o", "shadowkv", "hisa-tokens", "keydiff",
    "oracle-value", "oracle-error", "top-p", "ada-oracle", "hisa", "dsa", "nsa", "qsa",
    "qsa-tokens", "seerattention", "minference", "minference-vs", "minference-bs", "flexprefill",
    "xattention", "expected-attention", "h2o-streamed", "h2o-oracle", "previous-layer",
    "skip-softmax"]
_MORE_COLOURS = ("#79b4ea", "#00665e", "#8a1046", "#6fae2e", "#272c7e", "tab:brown", "#e0a100")
_FILLS = ("left", "bottom", "right", "top", "none")
_LINES = tuple((0, dashes) for dashes in ((1, 4), (5, 1), (6, 3), (3, 1, 1, 1, 1, 1), (8, 2, 2, 2),
                                          (6, 1, 6, 4)))
_LOOKS = 29  # of _FILLS x _LINES: small numbers differ in it, and so do powers of two
FORCED = ":first="  # of a selector's name: how many of the oldest blocks it keeps
IN_COLOUR = ("oracle", *_KNOWN[:6])  # where a picture would have too many lines
_OF_ITS_OWN = {"mean-key": {"linestyle": (0, (3, 1.5)), "marker": "s", "markersize": 8,
                            "markerfacecolor": "none"}}  # seen where index lies upon it

_RC = {
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize",
                     "legend.fontsize", "figure.labelsize", "figure.titlesize"), SMALLEST),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "svg.fonttype": "path",
    "svg.hashsalt": "msalab.plots",
}


COLOURS = len(_OKABE_ITO)  # that series_style has before it begins again


def series_style(place: int) -> dict:
    """Colour and marker of the place-th series; after eight the pairs change."""
    turn, step = divmod(place, COLOURS)
    return {"color": _OKABE_ITO[step], "marker": _MARKERS[(step + turn) % len(_MARKERS)]}


def selector_style(name: str) -> dict:
    """Line style of a selector, the same in every picture. With the first block forced
    ("quest:first=1") it has its selector's colour, hollow on a line of its own. With other options it
    has its selector's colour and marker, which no other selector shares; fill and line are theirs."""
    base, forced, _ = name.partition(FORCED)
    if forced:
        return {**selector_style(base), "linestyle": "-.", "markerfacecolor": "white"}
    if name == "oracle":
        return {"color": REFERENCE, "marker": "x", "linestyle": "--", "zorder": 3}
    if name in _KNOWN:
        return {**series_style(_KNOWN.index(name)), "linestyle": "-", "zorder": 2,
                **_OF_ITS_OWN.get(name, {})}
    base, with_options, options = name.partition(":")
    if with_options:
        return {**selector_style(base), **_of_options(options)}
    place = _LESS_KNOWN.index(name) if name in _LESS_KNOWN else zlib.crc32(name.encode())
    return {"color": _MORE_COLOURS[place % len(_MORE_COLOURS)],
            "marker": _MARKERS[place % len(_MARKERS)], "linestyle": ":", "zorder": 2}


def _of_options(options: str) -> dict:
    """How markers are filled and lines are dashed. Values of one option, whole numbers that differ
    by less than _LOOKS or powers of two, never share both."""
    numbers = [int(number) for number in re.findall(r"\d+", options)]
    place = (zlib.crc32(re.sub(r"\d+", "", options).encode())
             + sum(weight * number for weight, number in enumerate(numbers, 1))) % _LOOKS
    line, fill = divmod(place, len(_FILLS))
    return {"linestyle": _LINES[line], "fillstyle": _FILLS[fill]}


def layer_axis(axes, layers, label: str = "layer", where=None, side: str = "x"):
    """An axis of layers, as many of them named as have room. where: of each; default: its number."""
    layers = sorted(set(layers))
    where = layers if where is None else list(where)
    step = -(-len(layers) // MOST_LAYERS)
    getattr(axes, f"set_{side}ticks")(where[::step], [str(layer) for layer in layers[::step]])
    getattr(axes, f"set_{side}label")(label)


class _PlainLocator(LogLocator):
    def tick_values(self, vmin, vmax):
        if vmax < 3 * vmin:
            return MaxNLocator(5).tick_values(vmin, vmax)
        return super().tick_values(vmin, vmax)


def plain_log_ticks(axis):
    """Ticks of a logarithmic axis as plain numbers: 1, 2, 5, 10 and so on. An axis that spans less
    than threefold has equal steps, since it would show one of these at most."""
    axis.set_major_locator(_PlainLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def sentence(axes, text: str, **look):
    """A title as long as it needs to be, above the axes from the left."""
    axes.set_title("\n".join(textwrap.wrap(text, 56)), loc="left", **look)


def title_and_legend(axes, title: str, **look):
    """The legend between the title and the axes, where no data lie."""
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, borderpad=0.2, **look)
    points = legend.get_window_extent().height * 72 / axes.figure.dpi
    axes.set_title(title, loc="left", pad=points + SMALLEST / 2)


def say_instead(axes, words: str = "no query sees more than k blocks"):
    """Why nothing is drawn; by default: averages are over the queries that had a choice."""
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes,
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})


def _luminance(colour) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
              for part in matplotlib.colors.to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other="white") -> float:
    """By WCAG: from 1 to 21."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def on_image(share: float) -> str:
    """Of letters on MAGNITUDE at this share; the same in dark mode, as images are."""
    under = matplotlib.colormaps[MAGNITUDE](share)
    return max(ON_IMAGE, key=lambda colour: contrast(colour, under))


def on_dark(colour: str) -> str:
    """What a colour is in dark mode: greys from paper to ink, and all but the faintest as light as letters need."""
    found, paper, ink = map(matplotlib.colors.to_rgb, (colour, PAPER_DARK, INK_DARK))
    is_light = min(found) > FAINT
    if max(found) - min(found) < 0.02:
        found = [dark + (1 - found[0]) * (light - dark) for dark, light in zip(paper, ink)]
    while not is_light and contrast(found, paper) < LABEL_CONTRAST + 0.05:  # as hexadecimals round it
        found = [part + 0.04 * (1 - part) for part in found]
    return matplotlib.colors.to_hex(found)


def legible(colour):
    """The colour, darker where letters in it could hardly be read on white."""
    parts = matplotlib.colors.to_rgb(colour)
    while contrast(parts) < LABEL_CONTRAST:
        parts = tuple(0.96 * part for part in parts)
    return parts


def label_ends(axes, ends: dict[str, tuple[float, float]], colours: dict[str, object]):
    """Names the lines that end at `ends` (name -> (x, y)) in a column right of the axes, in the
    order of their ends and apart enough to be read, each with a thin line to its end."""
    low, high = axes.get_ylim()
    gap = 0.065 * (high - low)
    names = sorted(ends, key=lambda name: ends[name][1])
    heights = []
    for name in names:
        heights.append(max(ends[name][1], heights[-1] + gap if heights else low))
    ceiling = high - gap / 2  # the whole first name, below what stands above the axes
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], ceiling)
        ceiling = heights[place] - gap
    for name, height in zip(names, heights):
        axes.annotate(name, ends[name], (1.04, (height - low) / (high - low)),
                      textcoords="axes fraction", va="center", color=legible(colours[name]),
                      annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": colours[name], "linewidth": 0.6,
                                  "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3})


_HOVER = "hover:"


def name_on_hover(artist, name: str):
    """The SVG shows the name where a pointer rests on the artist."""
    artist.set_gid(_HOVER + name)


def _with_titles(svg: str) -> str:
    """Each named artist gets a <title>, which browsers show on hover. Lines are thin: one that
    nobody sees, broad enough to be met by a pointer, lies under each."""
    svg = re.sub(f'(<g id="{_HOVER}[^"]*">\\s*)((<path d="[^"]*"[^>]* style=")fill: none;[^"]*"/>)',
                 r'\1\3fill: none; stroke: transparent; stroke-width: 8"/>\2', svg)
    return re.sub(f'<g id="{_HOVER}([^"]*)">', r"<g><title>\1</title>", svg)


def _with_dark(svg: str) -> str:
    """A browser in dark mode shows the SVG in the colours of on_dark()."""
    rules = [f"svg {{ fill: {INK_DARK} }}"]  # black is not written
    for use, colour in sorted(set(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", svg))):
        if colour not in ON_IMAGE:
            rules.append(f'[style*="{use}: {colour}"] {{ {use}: {on_dark(colour)} !important }}')
    style = "<style>@media screen and (prefers-color-scheme: dark) { " + " ".join(rules) + " }</style>"
    return re.sub(r"(<svg[^>]*>)", lambda match: match[1] + style, svg, count=1)


def has_names(svg: str) -> bool:
    """Is something in the SVG named on hover?"""
    return "<title>" in svg


def as_part_of_page(svg: str, name: str) -> str:
    """The SVG as an element of a page, where a pointer reaches what is named: with ids of its own,
    and without what points to other places."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg"):], flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)


def styled(draw):
    """Decorates a figure function: it runs with the project's settings, whatever the caller's."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with matplotlib.rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def save(figure: Figure, table, out_dir, name: str) -> list[Path]:
    """Writes name.png, name.svg and name.csv into out_dir; returns their paths."""
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = [out_dir / f"{name}.{ending}" for ending in ("png", "svg", "csv")]
    try:
        _write(figure, table, *paths)
    except OSError as error:  # of a full disk, which names no file
        raise OSError(error.errno, error.strerror, error.filename or f"{out_dir / name}.*") from error
    return paths


def _write(figure: Figure, table, png: Path, svg: Path, numbers: Path):
    with matplotlib.rc_context(_RC):  # by the canvases: savefig() draws each file twice
        figure.set_dpi(matplotlib.rcParams["savefig.dpi"])
        FigureCanvasAgg(figure).print_png(png)
        figure.set_layout_engine("none")  # as it stands; laying out again costs as much as drawing
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    svg.write_text(_with_dark(_with_titles(svg.read_text(encoding="utf-8"))), encoding="utf-8")
    table.to_csv(numbers)
