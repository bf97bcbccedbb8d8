# SPDX-License-Identifier: MIT
import shutil

import h5py
import pytest

from msaplots import Results, ResultsError
from msaplots.__main__ import main


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
    ("format_version", 2, ("format_version is 2", "must be 1")),
])
def test_refuses_other_formats_and_versions(results_path, tmp_path, attribute, value, words):
    changed = tmp_path / "changed.h5"
    shutil.copy(results_path, changed)
    with h5py.File(changed, "a") as file:
        file.attrs[attribute] = value
    refused(changed, *words)


@pytest.mark.parametrize("version", [1, "1", b"1"])
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
