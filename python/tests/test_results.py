# SPDX-License-Identifier: MIT
import json
import shutil

import h5py
import numpy as np
import pytest

from msalab.plots import Results, ResultsError, report
from msalab.plots.__main__ import main


def refused(path, *words):
    with pytest.raises(ResultsError) as error:
        Results(path)
    for word in (str(path), *words):
        assert word in str(error.value)


def test_refuses_what_is_no_results_file(tmp_path):
    refused(tmp_path / "absent.h5", "no such file")
    text = tmp_path / "text.h5"
    text.write_text("not HDF5")
    refused(text, "not a readable HDF5 file")


@pytest.mark.parametrize("attribute, value, words", [
    ("format", "msa-activations", ("msa-activations", "msa-results")),
    ("format_version", 2, ("format_version is 2", "must be 3")),
])
def test_refuses_other_formats_and_versions(results_path, tmp_path, attribute, value, words):
    changed = tmp_path / "changed.h5"
    shutil.copy(results_path, changed)
    with h5py.File(changed, "a") as file:
        file.attrs[attribute] = value
    refused(changed, *words)


@pytest.mark.parametrize("version", [3, "3", b"3"])
def test_takes_the_version_as_number_or_text(results_path, tmp_path, version):
    changed = tmp_path / "changed.h5"
    shutil.copy(results_path, changed)
    with h5py.File(changed, "a") as file:
        file.attrs["format_version"] = version
    with Results(changed) as results:
        assert results.layers == [3, 6]


def test_names_the_missing_object(results):
    with pytest.raises(ResultsError, match="/select/quest/3/ids is missing"):
        results.ids("quest", 3)
    with pytest.raises(ResultsError, match="/layers/5 is missing"):
        results.sizes(5)


def damaged(results_path, tmp_path, damage):
    path = tmp_path / "damaged.h5"
    shutil.copy(results_path, path)
    with h5py.File(path, "a") as file:
        damage(file)
    return path


def replaced(name, values):
    def damage(file):
        del file[name]
        file[name] = values
    return damage


IDS, HALF = np.zeros((384, 4, 4), np.int32), np.full((384, 4, 4), 0.5)


@pytest.mark.parametrize("damage, words", [
    (replaced("select/window/3/ids", IDS[1:]), "/select/window/3/ids has shape (383, 4, 4), must"),
    (replaced("select/window/3/ids", HALF), "/select/window/3/ids is float64, must hold integers"),
    (replaced("select/window/3/ids", IDS + 24),
     "/select/window/3/ids holds 24 to 24, must be -1 or from 0 to 23"),
    (replaced("queries/3/position", np.full(384, -1)), "/queries/3/position holds -1 to -1"),
    (replaced("queries/3/position", np.arange(9)), "/queries/3/position has 9 values, token has"),
    (replaced("metrics/dense/3/entropy", np.ones(3)), "/metrics/dense/3/entropy has shape (3,)"),
    (replaced("curves/oracle/3/k", np.zeros(6, int)), "/curves/oracle/3/k must hold positive"),
    (lambda file: (file.__delitem__("select/window/3/ids"),
                   file.create_group("select/window/3/ids")),
     "/select/window/3/ids must be a dataset"),
    (lambda file: file["layers/3"].attrs.__setitem__("block_size", 0),
     "/layers/3 attribute block_size is 0, must be positive"),
    (lambda file: file["layers/3"].attrs.__setitem__("kv_heads", 2.5),
     "/layers/3 attribute kv_heads is 2.5, must be an integer"),
    (lambda file: file["layers/3"].attrs.__setitem__("tokens", "many"),
     "/layers/3 attribute tokens is 'many', must be an integer"),
    (lambda file: file["popularity/oracle/3"].attrs.__delitem__("gini"),
     "/popularity/oracle/3/queries_per_block lacks attribute gini"),
    (lambda file: file["run"].attrs.__setitem__("argv", '{"a": 1}'),
     "/run attribute argv must be a JSON list of texts"),
    (lambda file: file.create_group("layers/first"), "/layers/first is no layer number")])
def test_command_names_what_is_damaged(results_path, tmp_path, capsys, monkeypatch, damage, words):
    monkeypatch.setattr(report, "_save", lambda *_: None)  # drawing is enough, and faster
    path, out = damaged(results_path, tmp_path, damage), tmp_path / "out"
    assert main([str(path), "--out", str(out), "--layers", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ") and words in error
    assert not out.exists()


def test_an_earlier_report_stays_when_a_later_one_fails(results_path, tmp_path):
    path = damaged(results_path, tmp_path, lambda file: file.__delitem__("metrics/dense/3/entropy"))
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("earlier")
    assert main([str(path), "--out", str(out), "--layers", "3"]) == 2
    assert [entry.name for entry in out.iterdir()] == ["report.html"]
    assert (out / "report.html").read_text() == "earlier"


def test_sizes_that_a_file_cannot_hold_are_refused(results_path, tmp_path):
    def damage(file):
        del file["curves/oracle/3/k"]
        file.create_dataset("curves/oracle/3/k", (10 ** 10,), "i8", chunks=(1024,))

    with Results(damaged(results_path, tmp_path, damage)) as results, pytest.raises(
            ResultsError, match="/curves/oracle/3/k was never written"):
        results.curve("oracle", 3)


def test_says_what_there_is(results):
    assert results.selectors == ["oracle", "random", "window"]
    assert results.sizes(3).group_size == 2
    assert results.top_k("oracle", 3) == 4
    assert results.run_json("options")["block_size"] == 16


def test_rows_of_each_sequence(sampled):
    queries = sampled.queries(0)
    assert queries.rows_of(0) == slice(0, 15)
    assert queries.rows_of(1) == slice(15, 53)
    assert queries.position[15] == 0 and queries.token[15] == 75


def test_command_reports_errors_with_exit_code_2(results_path, tmp_path, capsys):
    assert main([str(tmp_path / "absent.h5"), "--out", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main([str(results_path), "--out", str(tmp_path / "out"), "--layers", "4"]) == 2
    assert "no layer 4; it has [3, 6]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("program, advice", [
    ("msa-cache", "msalab plot draws its summary.json"),
    ("msa-compare", "--compare draws its summary.json"),
    ("msa-fit-indexer", "--fit draws it, beside results of msa-analyze"),
    ("msalab evaluate", "--evaluate draws its summary.json, beside results of msa-analyze"),
    ("msa-precision", "msalab plot draws its summary.json"),
    ("msa-pretrain", "its curves are in curves.csv")])
def test_results_of_another_program_are_told_where_they_belong(results_path, tmp_path, program,
                                                                advice):
    path = tmp_path / "results.h5"
    shutil.copy(results_path, path)
    with h5py.File(path, "a") as file:
        file["run"].attrs["program"] = program
    with pytest.raises(ResultsError, match=f"was written by {program}; {advice}"):
        Results(path)


def test_run_json_says_how_the_results_were_made(results_path, tmp_path):
    copy = tmp_path / "results.h5"
    shutil.copy(results_path, copy)
    with h5py.File(copy, "a") as file:
        del file["run"].attrs["argv"], file["run"].attrs["host"]
    for program, argv in (("make_results", ["a.h5", "--top-k", "4"]), ("another", [])):
        copy.with_name("run.json").write_text(json.dumps(
            {"program": program, "argv": ["a.h5", "--top-k", "4"], "host": "here"}))
        with Results(copy) as results:
            assert results.run_json("argv") == argv
            assert results.run.get("host") == ("here" if argv else None)
