# SPDX-License-Identifier: MIT
import os

import make_cost
import pytest
from make_fit import make_fit
from make_results import Case, make_results

from msalab.plots import Results, report
from msalab.plots.__main__ import main


if os.environ.get("MSALAB_MODULE") == "required":  # ./msalab test has built it
    import msalab._msalab  # noqa: F401


def _open(tmp_path_factory, case):
    path = tmp_path_factory.mktemp("results") / "results.h5"
    make_results(path, case)
    return path


@pytest.fixture(scope="session")
def results_path(tmp_path_factory):
    return _open(tmp_path_factory, Case())


@pytest.fixture
def results(results_path):
    with Results(results_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def sampled_path(tmp_path_factory):
    """Two packed sequences, every fifth query analysed, a partial tail block in each."""
    return _open(tmp_path_factory, Case(lengths=(75, 190), layers=(0,), stride=5))


@pytest.fixture
def sampled(sampled_path):
    with Results(sampled_path) as opened:
        yield opened


FIGURES = {}  # of full_report, by name


@pytest.fixture(scope="session")
def full_report(results_path, tmp_path_factory):
    """The folder of a report of layer 3 with the files of all programs."""
    out = tmp_path_factory.mktemp("full")
    files = make_cost.write_all(out / "in")
    saved = report.save

    def save(figure, table, folder, name):
        FIGURES[name] = figure
        return saved(figure, table, folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "save", save)
        _write_full(out, files, results_path)
    return out


def _write_full(out, files, results_path):
    assert main([str(results_path), "--out", str(out), "--layers", "3",
                 "--selections", str(results_path), "--fit", str(make_fit(out / "in/fit.h5")),
                 "--cost", files["cost"], "--cost", files["orders"], "--bench", files["bench"],
                 "--compare", files["compare"], "--advise", files["advise"],
                 "--cache", files["cache"], "--reuse", files["reuse"],
                 "--precision", files["precision"]]) == 0


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are empty files beside their tables: what a page says takes a fraction of what drawing them does."""
    def write(_, table, png, svg, numbers):
        png.touch()
        svg.write_text("<svg/>")
        table.to_csv(numbers)

    monkeypatch.setattr("msalab.plots.style._write", write)
