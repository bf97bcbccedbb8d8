# SPDX-License-Identifier: MIT
"""docs/questions.md: twenty questions, each with a command that exists, and no figure of its own."""

import re
from pathlib import Path

import pytest

from msalab.__main__ import PROGRAMS, TOOLS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/questions.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = re.split(r"(?m)^## ", TEXT)[1:]
FOLDERS = ("docs", "gpu", "python", "experiments", "studies/pilot", "studies/conversion")
OTHERS = " ".join(path.read_text(encoding="utf-8") for folder in FOLDERS
                  for path in (ROOT / folder).glob("*.md") if path != PAGE)


def test_there_are_twenty():
    assert [section.split(".")[0] for section in SECTIONS] == [str(n) for n in range(1, 21)]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.split(".")[0])
def test_each_has_a_command_a_figure_and_a_link(section):
    answer = section.split("\n", 1)[1]
    assert re.search(r"`(\./)?(msalab|msa-|pip)", answer)
    assert re.search(r"\d", answer) and "](" in answer
    assert len(answer.split()) <= 110
    for name in re.findall(r"`msalab ([a-z-]+)", answer):
        assert name in TOOLS
    for name in re.findall(r"`msa-([a-z-]+)", answer):
        assert name in PROGRAMS


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.split(".")[0])
def test_figures_are_those_of_other_pages(section):
    figures = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]|\.\d)", section.split("\n", 1)[1]))
    assert {figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", OTHERS)} == set()
