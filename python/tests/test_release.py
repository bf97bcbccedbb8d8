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
CMAKE = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
VERSION = re.search(r"project\(msalab VERSION ([\d.]+)", CMAKE)[1]
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


def test_a_build_for_all_refuses_no_gpu_since_ampere():
    chips = re.search(r'CMAKE_CUDA_ARCHITECTURES "([^"]+)"', CMAKE)[1].split(";")
    real = {int(re.match(r"\d+", one)[0]) for one in chips if not one.endswith("-virtual")}
    ptx = [int(one.removesuffix("-virtual")) for one in chips if not one.endswith("-real")]

    def runs(chip: int) -> bool:
        """By code for the same family, not later, or by PTX that is not later."""
        return any(one // 10 == chip // 10 and one <= chip for one in real) or any(one <= chip for one in ptx)

    assert {80, 86, 89, 90, 100, 120} <= real and not chips[-1].endswith("-real")
    assert [chip for chip in (80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121, 130) if not runs(chip)] == []


def test_the_short_paper_cites_what_its_bibliography_has():
    folder = ROOT / "docs/joss"
    cited = set(re.findall(r"@(\w+)", (folder / "paper.md").read_text(encoding="utf-8")))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (folder / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))
