# SPDX-License-Identifier: MIT
"""Parts of `msalab evaluate` that need no PyTorch: exercises, sequences, intervals, files, pictures."""

import csv
import hashlib
import json
import math
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from make_evaluation import answer, estimate, made, rows_of

from msalab.capture.layer import CaptureError
from msalab.evaluation import exercises, files, text
from msalab.evaluation.intervals import interval_text, ratio_interval
from msalab.evaluation.tables import retrieval_table, sensitivity_table, table
from msalab.progress import Progress
from msalab.plots import evaluation as pictures
from msalab.plots.__main__ import main as plot
from msalab.plots.results import ResultsError

FILLER = ["Blocks of keys. " * 60, "Another document! " * 5]


class Words:
    """A tokenizer of whole words, with a token before every text."""

    prefix, separator = [1], "\n"

    def __init__(self):
        self.known = {}

    def encode(self, line):
        return [self.known.setdefault(word, len(self.known) + 2)
                for word in line.replace("\n", " \n ").split(" ") if word]

    def locate(self, line, ranges):
        return self.encode(line), [tuple(len(self.encode(line[:at])) for at in one) for one in ranges]


def exercise(task, depth=0.5, length=900, vocabulary=None, pairs=5, seed=3):
    return exercises.make_exercise(task, vocabulary or text.Bytes(), FILLER, length, depth, pairs,
                                   [seed])


@pytest.mark.parametrize("task", exercises.TASKS)
@pytest.mark.parametrize("vocabulary", [text.Bytes(), Words()])
def test_exercises_end_with_an_answer_that_was_planted(task, vocabulary):
    made = exercise(task, vocabulary=vocabulary)
    assert len(made.ids) == 900 and made.answers[-1][1] == 900
    assert len(made.answers) == (5 if task == "recall" else 1)
    ids = made.ids.tolist()
    for begin, end in made.answers:
        answer = ids[begin:end]
        planted = [at for at in range(begin) if ids[at:at + end - begin] == answer]
        if vocabulary.separator == "\n" and task != "copy":  # there the word ends with what is behind it
            behind = "():" if task == "definition" else "."
            word = {number: name for name, number in vocabulary.known.items()}[answer[0]]
            planted = [at for at in range(begin) if ids[at] == vocabulary.known.get(word + behind)]
        assert len(planted) == 1 or task == "copy"
    assert exercise(task).ids.tolist() == exercise(task).ids.tolist()
    assert exercise(task).ids.tolist() != exercise(task, seed=4).ids.tolist()


def test_the_function_asked_for_is_the_one_that_returns_the_value():
    made = bytes(exercise("definition").ids.tolist()).decode()
    functions = re.findall(r'def (\w+)\(\): return "(\w+)"\n', made)
    value, name = re.search(r'\n# The function that returns "(\w+)" is (\w+)$', made).groups()
    assert len(functions) == len(dict(functions)) == 5 and dict(functions)[name] == value


def test_exercises_of_bytes_have_the_shape_of_msa_pretrain():
    made = bytes(exercise("tracking", pairs=1).ids.tolist())
    lines = [line.partition(b"\n")[0] for line in made.split(b"\0")[1:]]
    key, value = lines[0].split(b"=")
    for line in lines[1:-1]:
        name, _, other = line.partition(b"=$")
        assert other == key
        key = name
    assert len(lines) == 2 + exercises.HOPS and lines[-1] == key + b"?" + value


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_depth_is_where_the_line_lies(depth):
    made = bytes(exercise("needle", depth).ids.tolist())
    question = made.rindex(b"\0")
    line = made.index(b"\0")
    planted = made.index(b"\n", line) + 1 - line
    assert abs(line - depth * (question - planted)) <= 0.5


def test_exercises_of_wide_characters_have_as_many_bytes_as_fit(monkeypatch):
    monkeypatch.setitem(globals(), "FILLER", ["äöü" * 100, "ß" * 30])
    for length in (200, 201):
        made = exercise("needle", length=length)
        assert length - 1 <= len(made.ids) <= length and made.answers[-1][1] == len(made.ids)
        bytes(made.ids.tolist()).decode()


def test_exercises_refuse_a_length_without_room():
    with pytest.raises(CaptureError, match="recall takes [0-9]+ tokens without any filler, a length"):
        exercise("recall", length=60)


def test_sequences_are_cut_from_all_documents_in_turn():
    documents = ["a" * 25, "b" * 9, "c" * 11]
    found = text.cut(documents, text.Bytes(), 10, 100)
    assert [(s.document, len(s.ids)) for s in found] == [(0, 10), (1, 9), (2, 10), (0, 10), (0, 5)]
    assert [len(s.bytes) for s in found] == [9, 8, 9, 9, 4]
    assert len(text.cut(documents, text.Bytes(), 10, 2)) == 2


def test_documents_are_read_or_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\0\0zwei ä".encode())
    assert text.read_documents([path]) == ["one", "zwei ä"]
    path.write_bytes(b"\0")
    with pytest.raises(CaptureError, match="text: holds no text"):
        text.read_documents([path])
    path.write_bytes(b"\xff")
    with pytest.raises(CaptureError, match="text: is no UTF-8 text"):
        text.read_documents([path])


def test_intervals_are_those_of_the_bootstrap():
    assert ratio_interval([4.0], [2], 0) == {"mean": 2.0, "low": None, "high": None, "units": 1}
    assert ratio_interval([0.0], [0], 0)["mean"] is None
    # Of fewer than six units an interval is hardly more than the least and the greatest of them.
    five = ratio_interval([2.0, 4.0, 6.0, 2.0, 4.0], [1, 2, 3, 1, 2], 0)
    assert (five["mean"], five["low"], five["units"]) == (2.0, None, 5)
    assert interval_text(five, "documents") == "none: 5 documents, fewer than 6"
    same = ratio_interval([2.0, 4.0, 6.0] * 2, [1, 2, 3] * 2, 0)
    assert same["low"] == same["mean"] == same["high"] == 2.0
    assert interval_text(same, "documents") == "+2.0000 to +2.0000, 6 documents"
    # Of n clusters of one value each the mean is about normal, its deviation 1 / sqrt(n).
    rng, n, inside = np.random.default_rng(1), 60, 0
    for seed in range(200):
        found = ratio_interval(rng.standard_normal(n), np.ones(n), seed)
        inside += found["low"] <= 0 <= found["high"]
        assert abs((found["high"] - found["low"]) / (2 * 1.96 / math.sqrt(n)) - 1) < 0.5
    # Binomial of 200 at 0.95: five deviations are 15.4; percentile intervals are a little short.
    assert 0.95 * 200 - 16 - 4 <= inside <= 200


def test_tables_have_counts_and_intervals_or_the_reason():
    rows = rows_of()
    rows["configs"][0]["bits_of_text"] = 3.0
    rows["configs"][1].update(estimate("excess", 0.5, None, None), units=2)
    for row in rows["retrieval_total"][1:]:
        row.update(estimate("right_answers_above", -0.5, None, None))
    said = answer(rows)
    lines = table(said).splitlines()
    assert lines[2].endswith("none: 2 documents, fewer than 6") and "beyond" in lines[0]
    assert sensitivity_table(said).splitlines()[1].startswith("  layer   1  +0.5000")
    lines = retrieval_table(said).splitlines()
    assert lines[1].endswith("4 exercises, 4 answers")
    assert lines[2].endswith("-0.5000  none: 4 exercises, fewer than 6")


def test_progress_says_what_is_left():
    now, lines = [0.0], []
    progress = Progress(lines.append, 100, clock=lambda: now[0])
    assert progress.left() == ""
    now[0] = 4.0
    progress.advance(10, "one")  # nothing yet: it is young
    assert lines == [] and progress.left() == ""
    now[0] = 20.0
    progress.advance(10, "two")
    assert lines == ["two: 20 %, 01:20 left"]
    now[0] = 21.0
    progress.advance(30, "three")  # lines are seconds apart
    assert lines == ["two: 20 %, 01:20 left"] and progress.left() == ", 00:21 left"


def test_files_end_with_their_checksum(tmp_path):
    path = tmp_path / "one.h5"
    files.write_h5(path, lambda file: file.create_dataset("a", data=[1, 2]))
    with h5py.File(path) as file:
        assert file["a"][()].tolist() == [1, 2]
    content, line = path.read_bytes()[:-76], path.read_bytes()[-76:]
    assert line == b"msa-sha256 " + hashlib.sha256(content).hexdigest().encode() + b"\n"


def test_pictures_show_the_numbers_of_the_summary(tmp_path):
    pictures.draw_all(answer(rows_of()), tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg", ".csv"}

    def rows(name):
        with open(tmp_path / f"{name}.csv", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    assert [(row["selector"], row["budget"], row["low"], row["high"])
            for row in rows("loss_by_budget")] == [
        (name, budget, "0.25", "0.75") for name in ("oracle", "mean-key") for budget in ("64", "128")]
    assert len(rows("loss_by_position")) == 8
    assert {row["error"] for row in rows("error_by_layer")} == {"0.25", "nan"}
    assert {row["exact_match"] for row in rows("retrieval")} == {"0.25"}
    figure, _ = pictures.loss_by_budget(answer(rows_of()))
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines["oracle"] == [0.5, 0.5]


def test_axes_of_layers_name_layers():
    for draw, label in ((pictures.error_by_layer, "behind layer"),
                        (pictures.sensitivity, "layer, dense beside the sparse others")):
        axes = draw(answer(rows_of()))[0].axes[-1]
        assert axes.get_xlabel() == label
        assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1"]


def test_the_report_has_a_section_of_it(results_path, tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(made(rows_of())))
    assert plot([str(results_path), "--out", str(tmp_path / "out"), "--layers", "3", "--evaluate",
                 str(path)]) == 0
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "What does the model itself lose?" in page and "over documents" in page
    assert (tmp_path / "out/evaluation_retrieval.svg").exists()
    with open(tmp_path / "out/evaluation.csv", encoding="utf-8") as file:
        assert [row["excess"] for row in csv.DictReader(file)] == ["nan", *["0.5"] * 4]


def test_refuses_a_summary_of_another_program(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"format": "msa-compare-summary"}))
    with pytest.raises(ResultsError, match='must be "msa-report"'):
        pictures.read_evaluation(path)


def test_differences_of_records_are_named():
    record = {"commit": "1", "options": {f"o{number}": number for number in range(9)}}
    files.same_or_refused("run.json", record, record, "; way out")
    with pytest.raises(CaptureError, match="^run.json: commit was '1', is '2', options o3 was 3, is None; way out$"):
        files.same_or_refused("run.json", record, {"commit": "2", "options": {
            name: value for name, value in record["options"].items() if name != "o3"}}, "; way out")
    with pytest.raises(CaptureError, match="o5 was 5, is None, and 3 more; way out$"):
        files.same_or_refused("run.json", record, {"commit": "1", "options": {}}, "; way out")
