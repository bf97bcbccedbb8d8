# SPDX-License-Identifier: MIT
"""record.py: a record grows, is read by msalab.results, and goes on in the file that is there."""

import json

import pytest
from record import Record, number, numbers_of, spaced, texts

from msalab import results
from msalab.report import Shape
from msalab.results import Column

SHAPES = [Shape("times", "calls", 1, {"name": Column("text", "", "which"), "ms": number("ms", "median"),
                                      "runs_ms": texts("ms", "each", "it failed"), "error": Column("text", "", "what failed", "none")})]


def record(path, device="a GPU"):
    return Record(path, "bench/none.py", "times", SHAPES, {"device": device, "calls": []}, same=("device",))


def test_rows_are_kept_and_replaced_by_key(tmp_path):
    path, times = tmp_path / "r.json", [0.1, 1 / 3, 2]
    first = record(path)
    first.run["calls"].append("one")
    first.put("times", {"name": "a", "error": "out of memory"})
    first.put("times", {"name": "b", "ms": 1 / 3, "runs_ms": spaced(times)})
    second = record(path)
    assert second.find("times", name="a")["error"] and not second.find("times", name="b")["error"]
    assert second.find("times", name="c") is None and second.run["calls"] == ["one"]
    second.put("times", {"name": "a", "ms": 7.0, "runs_ms": spaced([7.0])})
    rows = results.open(path, "bench/none.py")["times"].records()
    assert [(row["name"], row["ms"], row["error"]) for row in rows] == [("b", 1 / 3, ""), ("a", 7.0, "")]
    assert numbers_of(rows[0]["runs_ms"]) == times


def test_another_machine_or_script_has_a_file_of_its_own(tmp_path):
    path = tmp_path / "r.json"
    record(path).put("times", {"name": "a", "ms": 1.0})
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="device is a GPU, here it is another; name another file"):
        record(path, "another")
    path.write_text(path.read_text().replace("bench/none.py", "bench/other.py"))
    with pytest.raises(results.ResultsError, match="program is bench/other.py, must be bench/none.py"):
        record(path)
    assert json.loads(before)["tables"]["times"]["rows"]
