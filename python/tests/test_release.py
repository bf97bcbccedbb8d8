# SPDX-License-Identifier: MIT
"""What a release needs: the package's page, the citation and the workflow say the same."""

import re
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tomllib comes with Python 3.11", allow_module_level=True)
import tomllib

ROOT = Path(__file__).parents[2]
VERSION = re.search(r"project\(msalab VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_citation_has_the_version():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_page_of_the_package_is_not_bare():
    project = PYPROJECT["project"]
    assert project["urls"] and project["keywords"] and project["authors"]
    assert "Typing :: Typed" in project["classifiers"]


def test_wheels_are_built_for_pythons_that_the_package_takes():
    least = tuple(map(int, PYPROJECT["project"]["requires-python"].removeprefix(">=").split(".")))
    names = PYPROJECT["tool"]["cibuildwheel"]["build"].split()
    assert all((3, int(re.match(r"cp3(\d+)-", name)[1])) >= least for name in names)
    # The last one is abi3 and serves later ones.
    assert names[-1].startswith(PYPROJECT["tool"]["scikit-build"]["wheel"]["py-api"])


def test_the_short_paper_cites_what_its_bibliography_has():
    folder = ROOT / "docs/joss"
    cited = set(re.findall(r"@(\w+)", (folder / "paper.md").read_text(encoding="utf-8")))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (folder / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))
