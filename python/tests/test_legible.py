# SPDX-License-Identifier: MIT
"""Every picture of a report with all sections: its letters, its dark colours, and its words for those who do not see it."""

import re

import matplotlib
import pytest
from conftest import FIGURES
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.text import Text

from msalab.plots import style

PHONE, POINTS = 390, 72 * style.WIDTH  # CSS pixels and points of a picture's width
PIXELS, CONTRAST = 11, 4.5


def letters(figure):
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def under(text) -> str:
    """The colour below: of an image where it stands on one."""
    box = text.get_bbox_patch()
    if box is not None:
        return matplotlib.colors.to_hex(box.get_facecolor())
    images = [one for one in (text.axes.images if text.axes else ()) if isinstance(one, AxesImage)]
    if images and text.get_transform() == text.axes.transData:
        column, row = map(round, text.get_position())
        return matplotlib.colors.to_hex(images[0].cmap(images[0].norm(images[0].get_array()[row, column])))
    return "#ffffff"


def test_letters_can_be_read(full_report):
    assert len(FIGURES) > 25
    for name, figure in FIGURES.items():
        assert figure.get_figwidth() == style.WIDTH
        for text in letters(figure):
            place = f"{name}: {text.get_text()!r}"
            assert text.get_fontsize() * PHONE / POINTS >= PIXELS, place
            colour, below = matplotlib.colors.to_hex(text.get_color()), under(text)
            assert style.contrast(colour, below) >= CONTRAST, place
            if colour not in style.ON_IMAGE:
                assert style.contrast(style.on_dark(colour), style.on_dark(below)) >= CONTRAST, place


def test_letters_stay_in_the_picture(full_report):
    for name, figure in FIGURES.items():
        canvas = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
        if canvas is None:
            canvas = FigureCanvasAgg(figure).get_renderer()
        width = figure.bbox.width
        for text in letters(figure):
            box = text.get_window_extent(canvas)
            if text.get_clip_on() or box.width == 0:
                continue
            assert box.x0 > -0.02 * width and box.x1 < 1.02 * width, f"{name}: {text.get_text()!r}"


def under_legends(figure) -> list[str]:
    """What legends lie upon: lines of data and other letters."""
    canvas, found = FigureCanvasAgg(figure), []
    canvas.draw()
    for legend in figure.findobj(Legend):
        box, own = legend.get_window_extent(canvas.get_renderer()), set(legend.findobj(Text))
        for axes in figure.axes:
            for line in axes.lines:
                path = line.get_path().transformed(axes.transData)
                if line.get_transform() == axes.transData and path.intersects_bbox(box, filled=False):
                    found.append(f"line {line.get_label()!r}")
        found += [f"text {text.get_text()!r}" for text in set(letters(figure)) - own
                  if text.get_window_extent(canvas.get_renderer()).padded(-1).overlaps(box)]
    return found


def test_legends_lie_upon_nothing(full_report):
    found = {name: under for name, figure in FIGURES.items() if (under := under_legends(figure))}
    assert not found


def test_small_letters_and_pale_ones_are_seen(full_report):
    figure = next(iter(FIGURES.values()))
    text = figure.text(0.5, 0.5, "small", fontsize=9, color="#aaaaaa")
    try:
        with pytest.raises(AssertionError, match="small"):
            test_letters_can_be_read(full_report)
        text.set_fontsize(12)
        with pytest.raises(AssertionError, match="small"):
            test_letters_can_be_read(full_report)
    finally:
        text.remove()


def test_svgs_have_their_dark_colours(full_report):
    for path in full_report.glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        dark = dict(re.findall(r'\[style\*="((?:fill|stroke): #[0-9a-f]{6})"\] { (?:fill|stroke): (#[0-9a-f]{6}) !', svg))
        used = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", svg.split("</style>", 1)[1]))
        assert used - dark.keys() <= {f"fill: {colour}" for colour in style.ON_IMAGE}, path.name
        assert dark["fill: #ffffff"] == style.PAPER_DARK


def test_words_say_what_is_seen(full_report):
    page = (full_report / "report.html").read_text(encoding="utf-8")
    words = re.findall(r'alt="([^"]*)"', page) + re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert len(words) >= len(FIGURES)
    without = [text for text in words if not re.search(r"\d", text.split("?", 1)[1].replace("Layer 3", ""))]
    assert not without
    assert any("away from the diagonal most at key blocks: group 0 block" in text for text in words)
