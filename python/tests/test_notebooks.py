# SPDX-License-Identifier: MIT
"""Every notebook runs from beginning to end: on small made files, or, where MSALAB_RESULTS names
a results file, on that one and those beside it (./msalab test does both; in CI, only the latter)."""

import base64
import io
import os
import shutil
from pathlib import Path

import make_cost
import nbformat
import pytest
from make_fit import make_fit
from nbclient import NotebookClient
from PIL import Image

PACKAGE = Path(__file__).parents[1]
FOLDER = PACKAGE.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def demo_results(results_path, tmp_path_factory):
    """The files of `./msalab demo` that the notebooks read."""
    if "MSALAB_RESULTS" in os.environ:
        return FOLDER.parent / os.environ["MSALAB_RESULTS"]
    demo = tmp_path_factory.mktemp("demo")
    made = make_cost.write_all(demo / "made")
    for kind, name in (("cost", "cost.json"), ("orders", "loop_orders.json"),
                       ("compare", "compare/summary.json"),
                       *((kind, f"{kind}/summary.json")
                         for kind in ("advise", "cache", "precision", "reuse"))):
        (demo / name).parent.mkdir(exist_ok=True)
        shutil.copy(made[kind], demo / name)
    (demo / "fit").mkdir()
    make_fit(demo / "fit/results.h5")
    return shutil.copy(results_path, demo / "results.h5")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, demo_results, monkeypatch):
    monkeypatch.setenv("MSALAB_RESULTS", str(demo_results))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    drawn = sum("image/png" in output.get("data", ()) for cell in notebook.cells
                for output in cell.get("outputs", ()))
    assert drawn == sum(cell.source.endswith("\nfigure") for cell in notebook.cells) > 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_with_its_outputs(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell.outputs for cell in code)
    pictures = [base64.b64decode(output.data["image/png"]) for cell in code
                for output in cell.outputs if "image/png" in output.get("data", ())]
    assert pictures
    # notebooks/palettes.py was not forgotten
    assert {Image.open(io.BytesIO(picture)).mode for picture in pictures} == {"P"}
