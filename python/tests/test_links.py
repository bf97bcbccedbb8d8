# SPDX-License-Identifier: MIT
"""Every relative link of the project's Markdown pages leads to a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "gpu", "analysis", "experiments", "notebooks", "data", "tests", "python",
           "docs")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS
                                      for page in (ROOT / folder).rglob("*.md"))])


def relative_links(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target.split("#")[0] for target in targets if not re.match(r"#|\w+:", target)]


def test_links_are_found():
    text = "[a](x/y.md#z) ![b\nc](d.png) [e](https://f.g) [h](#i)\n```\n[j](k)\n```\n"
    assert relative_links(text) == ["x/y.md", "d.png"]
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in relative_links(page.read_text(encoding="utf-8"))
               if not (page.parent / link).exists()]
    assert not missing
