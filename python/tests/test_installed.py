# SPDX-License-Identifier: MIT
"""What a wheel holds, laid out by CMake as in a wheel, works without the repository: its programs and their data, and
`msalab paper` with the records that it reads. The wheel itself: tests/package/check_wheel.sh, of ./msalab wheel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/release"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package in it."""
    if not (BUILD / "bin/msa-cost").exists() or not (BUILD / "python/cmake_install.cmake").exists():
        pytest.skip(f"no programs or no module in {BUILD}: ./msalab test builds them")
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "python/msalab", site / "msalab", ignore=shutil.ignore_patterns("__pycache__"))
    for part in (BUILD / "experiments", BUILD / "python"):
        for component in ("programs", "python"):
            subprocess.run(["cmake", "--install", part, "--component", component, "--prefix", site / "msalab"], check=True,
                           stdout=subprocess.DEVNULL)
    return site


def msalab(site, folder, *words):
    here = {name: value for name, value in os.environ.items() if name != "MSALAB_BIN"}
    return subprocess.run([sys.executable, "-m", "msalab", *words], cwd=folder, env={**here, "PYTHONPATH": str(site)},
                          check=True, capture_output=True, text=True).stdout


def test_programs_find_their_data(site, tmp_path):
    assert "H200" in msalab(site, tmp_path, "cost", "--hardware", "h200")


def test_the_demo_has_its_sample_and_records(site, tmp_path):
    code = "from msalab.demo import data_folder; print(data_folder())"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
                           check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found).resolve().is_relative_to(site) and (Path(found) / "sample.h5").exists()
    assert {path.name for path in (Path(found) / "bench").iterdir()} == {
        path.name for path in (ROOT / "data/bench").glob("cuda-h100*.json")}


def test_the_page_of_the_paper_is_written_from_its_records(site, tmp_path):
    pytest.importorskip("h5py")
    pytest.importorskip("matplotlib")
    text, page = (ROOT / "docs/paper.md").read_text(encoding="utf-8"), tmp_path / "paper.md"
    page.write_text(text.replace("28.44x", "0x"), encoding="utf-8")
    msalab(site, tmp_path, "paper", "--page", page)
    assert page.read_text(encoding="utf-8") == text
