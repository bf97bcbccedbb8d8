# SPDX-License-Identifier: MIT
"""Event files of curves: what TensorBoard reads back is what curves.csv has."""

import sys

import pytest
from make_pilot import write_run

from msalab.__main__ import main
from msalab.plots.pilot_records import read_points
from msalab.plots.results import ResultsError
from msalab.plots.tensorboard import find_runs, write_events

HEADER = "step,group,name,part,value\n"


def scalars(folder):
    """{tag: [(step, value)]} as TensorBoard reads the folder."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = loader.EventAccumulator(str(folder), size_guidance={loader.SCALARS: 0}).Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_what_the_curves_have(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    for arm in ("full", "msa"):
        write_run(tmp_path / "records", arm, 1, loss=1.5)
    assert main(["tensorboard", str(tmp_path / "records"), "--out", str(tmp_path / "out")]) == 0
    assert "msa/seed-1: " in capsys.readouterr().out
    found = scalars(tmp_path / "out/msa/seed-1")
    assert found["train/loss"] == [(step, 1.5) for step in (0, 100, 200, 300, 400)]
    assert found["train/kl_loss/0"] == [(step, pytest.approx(0.5 - n / 10))
                                        for n, step in enumerate((0, 100, 200, 300, 400))]
    assert found["evaluation/exact_match/recall"][-1] == (400, 1.0)
    assert "probe/score_recall/1" in found
    assert scalars(tmp_path / "out/full/seed-1").keys() == found.keys()


@pytest.mark.parametrize("line, message", [
    ("0,train,loss,,much\n", "line 2 must be step,group,name,part,value, not '0,train,loss,,much'"),
    ("0,train\n", "line 2 must be step,group,name,part,value")])
def test_lines_that_are_no_points_are_refused(tmp_path, line, message):
    (tmp_path / "curves.csv").write_text(HEADER + line)
    with pytest.raises(ResultsError, match=message):
        list(read_points(tmp_path / "curves.csv"))
    (tmp_path / "curves.csv").write_text("something,else\n")
    with pytest.raises(ResultsError, match="curves.csv: line 1 must be step,group"):
        list(read_points(tmp_path / "curves.csv"))


def test_runs_are_found_by_their_folders(tmp_path):
    write_run(tmp_path / "sweep", "full", 1)
    write_run(tmp_path / "sweep", "msa", 2)
    assert list(find_runs([tmp_path / "sweep"])) == ["full/seed-1", "msa/seed-2"]
    assert list(find_runs([tmp_path / "sweep/msa/seed-2"])) == ["seed-2"]
    write_run(tmp_path / "other", "msa", 2)
    with pytest.raises(ResultsError, match="its run would be called seed-2, as that of"):
        find_runs([tmp_path / "sweep/msa/seed-2", tmp_path / "other/msa/seed-2"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match="empty: has no curves.csv"):
        find_runs([tmp_path / "empty"])


def test_event_files_are_not_mixed(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "events.out.tfevents.1").write_text("")
    with pytest.raises(ResultsError, match="has event files already"):
        write_events([], tmp_path, None)


def test_without_tensorboard_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    write_run(tmp_path, "msa", 1)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    assert main(["tensorboard", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'msalab[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
