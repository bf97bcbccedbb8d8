# SPDX-License-Identifier: MIT
"""msalab.results: the tables of a report, and what is refused of a file that is none."""
import json

import numpy as np
import pytest
from make_report import estimate, report

from msalab import results

ROWS = [{"name": "a", "count": 1, "share": 0.25, "mass": estimate(0.5), "is_good": True},
        {"name": "b", "count": None, "share": None, "mass": {"value": 0.75, "low": None, "high": None},
         "is_good": False}]


def made(tmp_path, change=lambda content: None):
    content = report("msa-things", {"things": (1, ROWS), "sizes": (0, [{"steps": 3}])}, {"seed": 1},
                     reached=False, text="too few", notes={"intervals": "of 7 blocks"})
    change(content)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_folder_its_summary_and_the_results_beside_it_are_the_answer(tmp_path):
    path = made(tmp_path)
    for place in (tmp_path, path, tmp_path / "results.h5", str(path)):
        answer = results.open(place, "msa-things")
        assert list(answer.tables) == ["things", "sizes"]
    assert answer.verdict == (False, "too few")
    assert answer.notes == {"intervals": "of 7 blocks"}
    assert answer.run["options"] == {"seed": 1}
    assert answer.definitions["share"] == "what share means"


def test_columns_have_the_type_that_is_described(tmp_path):
    things = results.open(made(tmp_path))["things"]
    assert things.key == ("name",)
    assert list(things.columns) == ["name", "count", "share", "mass", "mass_low", "mass_high", "is_good"]
    assert things.described["mass"].type == "estimate"
    np.testing.assert_array_equal(things["count"], [1, np.nan])
    np.testing.assert_array_equal(things["share"], [0.25, np.nan])
    np.testing.assert_array_equal(things["mass"], [0.5, 0.75])
    np.testing.assert_array_equal(things["mass_low"], [0.49, np.nan])
    assert things["is_good"].dtype == bool
    steps = results.open(made(tmp_path))["sizes"]["steps"]
    assert steps.dtype == np.int64


def test_a_row_is_found_by_its_key(tmp_path):
    answer = results.open(made(tmp_path))
    assert answer["things"].row(name="a")["mass_high"] == 0.51
    assert answer["sizes"].row() == {"steps": 3}
    with pytest.raises(results.ResultsError, match="table things: 0 rows have {'name': 'c'}, must be one"):
        answer["things"].row(name="c")
    with pytest.raises(results.ResultsError, match="has no table pairs; there are: things, sizes"):
        answer["pairs"]


def test_pandas_has_the_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    things = results.open(made(tmp_path))["things"]
    assert isinstance(things.to_pandas(), pandas.DataFrame)
    assert list(things.to_pandas().columns) == list(things.columns)


def cell(name, value):
    def change(content):
        content["tables"]["things"]["rows"][1][name] = value
    return change


@pytest.mark.parametrize("change, message", [
    (lambda content: content.update(format="msa-compare-summary"),
     'format is "msa-compare-summary", must be "msa-report"'),
    (lambda content: content.update(format_version=2), "format_version is 2, must be 1"),
    (lambda content: content.update(program="msa-reuse"), "program is msa-reuse, must be msa-things"),
    (lambda content: content["columns"].pop("share"), "is damaged"),
    (lambda content: content["tables"]["things"]["rows"][0].pop("mass_low"), "is damaged"),
    (cell("count", 1.5), "table things, row 1: count is 1.5, must be of type integer"),
    (cell("count", True), "table things, row 1: count is True, must be of type integer"),
    (cell("share", "1"), "table things, row 1: share is '1', must be of type real"),
    (cell("name", 1), "table things, row 1: name is 1, must be of type text"),
    (cell("is_good", 1), "table things, row 1: is_good is 1, must be of type truth")])
def test_what_is_wrong_is_named(tmp_path, change, message):
    path = made(tmp_path, change)
    with pytest.raises(results.ResultsError, match=f"^{path}: .*{message}"):
        results.open(path, "msa-things")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(results.ResultsError, match="summary.json: not a readable JSON file"):
        results.open(tmp_path)
