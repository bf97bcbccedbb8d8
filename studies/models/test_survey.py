# SPDX-License-Identifier: MIT
"""The script of the study of public models on a tiny model with windowed and full layers: from a folder to records and a
page, and again where it was stopped. Needs PyTorch, transformers, the compiled module and the programs."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

sys.path.append(str(Path(__file__).parents[2] / "python/tests"))
from make_evaluation import estimate, made, rows_of  # noqa: E402
from test_capture_models import BIN, make_model, needs_programs  # noqa: E402

from msalab.ending import Refusal  # noqa: E402
from studies.models import __main__ as survey  # noqa: E402
from studies.models import page, records  # noqa: E402

PIECES = ["keeps-64", "heads", "fit-64", "loss-512", "asked", "solved", "retrieval", "fit-wide", "retrieval-wide", "advice",
          "advised", "reuse", "precision", "cache"]


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setenv("MSALAB_BIN", str(BIN))
    make_model("gemma3", vocab_size=256, max_position_embeddings=2048).save_pretrained(tmp_path / "model")
    for side in ("train", "held_out"):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        text = "\0".join("".join(f"{side}, document {n}, line {line}.\n" for line in range(100)) for n in range(30))
        (tmp_path / "corpus" / side / "code.txt").write_text(text)
    (tmp_path / "page.md").write_text("# A page\n\n<!-- table answers from studies/models/records -->\n<!-- end -->\n")
    return [str(tmp_path / "model"), "--name", "gemma3", "--corpus", str(tmp_path / "corpus"), "--work",
            str(tmp_path / "work"), "--records", str(tmp_path / "records"), "--page", str(tmp_path / "page.md"),
            "--context", "1K", "--kinds", "code", "--bytes", "--learnt", "1", "--queries", "64", "--exercises", "2",
            "--workers", "2", "--fitters", "2", "--evaluators", "2", "--pieces", *PIECES]


@needs_programs
def test_from_a_folder_to_records_and_the_page(words, tmp_path, capfd, monkeypatch):
    assert survey.main([*words, "--seconds", "-1"]) == 0
    said = capfd.readouterr().err
    assert "gemma3 1024 code heads: not begun" in said and (tmp_path / "records/gemma3/crossover.json").exists()
    real = survey._msalab
    monkeypatch.setattr(survey, "_msalab", lambda *more, **how: real(
        *more, **how) if more[0] != "evaluate" else real("evaluate"))
    assert survey.main(words) == 1  # what fails is said, and the others go on
    said = capfd.readouterr().err
    assert "loss-512: msalab evaluate ended with exit code 2" in said and "retrieval: needs the piece asked" in said
    found = page.load(tmp_path / "records").found["gemma3", 1024, "code"]
    assert list(found) == ["advice", "cache", "fit-64", "fit-wide", "heads", "keeps-64", "precision", "reuse"]
    assert set(found["keeps-64"]["selectors"]["layer"]) == {1, 3}  # the others have windows
    shared = found["reuse"]["patterns"].where(pattern_role="own").records()[0]
    assert shared["computing_layers"] == "1 3" and found["precision"]["index"]["format"][0] == "f32"
    assert found["cache"]["measured"].records()[0]["queries"] == 512  # the last half of the one sequence
    assert set(found["cache"]["caches"]["blocks"]) == {8, 16}  # no cache of fewer than the step's own
    before = {piece: record.run for piece, record in found.items()}
    monkeypatch.setattr(survey, "_msalab", real)
    assert survey.main(words) == 0
    said = capfd.readouterr().err
    for piece in ("solved", "retrieval", "retrieval-wide"):
        assert f"{piece}: left out, the model solves no task to 50%" in said
    assert "heads" not in said
    found = page.load(tmp_path / "records").found["gemma3", 1024, "code"]
    assert all(found[piece].run == run for piece, run in before.items())  # with the load and the seconds of then
    assert {"loss-512", "asked", "advised"} <= set(found)
    assert set(found["loss-512"]["configs"]["selector"]) == {"", "oracle", "mean-key", "window", "index"}
    assert found["loss-512"].run["survey"]["kind"] == "code"
    assert len(found["heads"]["heads"]) == 2 * 8
    assert "| Gemma 3 270M | 1K | code |" in (tmp_path / "page.md").read_text()
    for share in ("PROMISING", "LEAST_RIGHT"):  # of a model that answers nothing
        monkeypatch.setattr(survey, share, 0.0)
    assert survey.main([*words[:-len(PIECES)], "solved", "retrieval", "retrieval-wide"]) == 0
    found = page.load(tmp_path / "records").found["gemma3", 1024, "code"]
    forced = {f"{one}@512,first=1" for one in ("oracle", "mean-key", "index")}
    assert set(found["retrieval"]["configs"]["config"]) == {"dense", *forced}
    assert set(found["retrieval-wide"]["configs"]["config"]) == {"dense", "index@512,first=1"}
    assert set(found["solved"]["configs"]["config"]) == {"dense"} and len(found["solved"]["retrieval_total"]) == 4
    assert found["retrieval"].run["survey"]["evaluators"] == 2 and found["heads"].run["survey"]["evaluators"] == 1
    (tmp_path / "work").rename(tmp_path / "moved")
    assert survey.main(words) == 0  # nothing is missing but what has no answer: no capture is made anew
    assert not (tmp_path / "work/gemma3/1024-code/capture.h5").exists()


@needs_programs
def test_what_is_not_a_context_or_piece_is_refused(words, capsys):
    assert survey.main([*words[:-len(PIECES)], "heads", "tails"]) == 2
    assert "--pieces has tails; there are: keeps-64 heads" in capsys.readouterr().err
    assert survey.main([*words, "--context", "4K"]) == 2
    assert "--context is 4096, must be more than 512 and at most the model's 2048 positions" in capsys.readouterr().err


def test_pieces_run_side_by_side_but_make_once_what_they_share(words, tmp_path, monkeypatch):
    running, together, lock = [], [], threading.Lock()
    makes = {"fit-64": "fit-64", "advice": "advice"}

    def do(of, piece):
        with lock:
            together.extend({other, piece} for other in running)
            running.append(piece)
        time.sleep(0.2)
        with lock:
            running.remove(piece)
            if "capture" in survey.SHARED[records.piece_of(piece)]:
                (of.work / "capture.h5").touch()
            if piece in makes:
                (of.work / makes[piece]).mkdir()
                (of.work / makes[piece] / "summary.json").touch()
            if piece in ("asked", "solved"):
                (tmp_path / piece).touch()

    monkeypatch.setattr(survey, "do", do)
    monkeypatch.setattr(survey, "price", lambda *_: None)
    monkeypatch.setattr(survey.Survey, "record", lambda of, piece: (tmp_path / piece).exists() or None)
    pieces = ["keeps-64", "heads", "fit-64", "loss-512", "asked", "solved", "retrieval", "advice", "advised"]
    assert survey.main([*words[:-len(PIECES) - 2], "3", "--pieces", *pieces]) == 0
    assert {"keeps-64", "asked"} in together  # what shares nothing runs beside the capture's maker
    for pair in ({"keeps-64", "heads"}, {"keeps-64", "fit-64"}, {"fit-64", "loss-512"}, {"asked", "solved"},
                 {"asked", "retrieval"}, {"solved", "retrieval"}, {"advice", "advised"}):
        assert pair not in together
    readers = {"heads", "fit-64", "advice"}
    assert any(pair <= readers for pair in together)  # once the capture is there


def test_a_piece_begins_when_what_it_reads_is_there_not_when_its_maker_ends(words, monkeypatch):
    began = threading.Event()

    def do(of, piece):
        if piece == "loss-1024":
            began.set()
            return
        for path in (of.work / "capture.h5", of.work / "fit-64/summary.json"):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        assert began.wait(20)

    monkeypatch.setattr(survey, "do", do)
    monkeypatch.setattr(survey, "price", lambda *_: None)
    monkeypatch.setattr(survey, "LOOK", 0.05)
    assert survey.main([*words[:-len(PIECES)], "loss-512", "loss-1024", "--context", "2K"]) == 0 and began.is_set()


@pytest.mark.parametrize("more, expected", [([], []), (["--device", "cuda"], ["--backend", "cuda"]),
                                            (["--device", "cuda", "--backend", "cpu"], ["--backend", "cpu"])])
def test_programs_run_where_the_model_does_unless_said(words, more, expected):
    assert survey.Survey(survey.parser().parse_args([*words, *more]), 1024, "code").backend == expected


@pytest.mark.parametrize("seconds", [0, 2.5])
def test_a_piece_that_another_call_has_ended_has_no_seconds(words, tmp_path, monkeypatch, seconds):
    one = survey.Survey(survey.parser().parse_args(words), 1024, "code")
    (tmp_path / "summary.json").write_text(json.dumps(made(rows_of())))

    def asked(of):
        survey._own.seconds += seconds
        return tmp_path

    monkeypatch.setitem(survey.PIECES, "asked", asked)
    survey.do(one, "asked")
    found = records.read(one.archive)["code", "asked"].run["survey"]
    assert {key for key in found if "seconds" in key} == ({"seconds", "processor_seconds"} if seconds else set())


def test_a_fit_of_an_older_version_without_its_layers_is_said(words):
    one = survey.Survey(survey.parser().parse_args(words), 1024, "code")
    (one.work / "fit-64").mkdir(parents=True)
    (one.work / "fit-64/summary.json").touch()
    with pytest.raises(Refusal, match="indexer.h5 is not there, of an older version of this script: remove .*fit-64"):
        one.indexed()
    (one.work / "fit-64/indexer.h5").touch()
    assert one.indexed() == one.work / "fit-64/indexer.h5"


def exercises_of(right, count, configs=("dense",)):
    """The content of an evaluation of exercises: the share of right answers by task."""
    content = made({"evaluated": rows_of()["evaluated"]})
    rows = [{"config": config, "task": task, "exercises": count} | estimate("right_answers", share, share / 2, 1)
            for task, share in right.items() for config in configs]
    kinds = {"config": "text", "task": "text", "exercises": "integer", "right_answers": "estimate"}
    content["columns"] |= {name: {"type": kind, "unit": "", "definition": ""} for name, kind in kinds.items()}
    content["tables"]["retrieval_total"] = {"about": "", "key": [], "columns": list(kinds), "rows": rows}
    return content


@pytest.fixture
def asking(words, tmp_path, monkeypatch):
    """Calls of msalab evaluate, answered by `answers`, by piece, with so many exercises as they name."""
    calls, answers = [], {}

    def evaluate(*words, times=1):
        words = list(map(str, words))
        said = dict(zip(words[2:], words[3:]))
        piece, count = Path(said["--out"]).name.split("-of-")
        assert count == said["--exercises"] and said["--sequences"] == "0"
        calls.append((piece, count, said["--tasks"], said["--selectors"], said.get("--budgets"), times))
        content = exercises_of(answers[piece], int(count))
        Path(said["--out"]).mkdir()
        (Path(said["--out"]) / "summary.json").write_text(json.dumps(content))

    monkeypatch.setattr(survey, "_msalab", evaluate)
    monkeypatch.setattr(survey, "price", lambda *_: None)
    monkeypatch.setattr(survey.Survey, "fit", lambda of, dim: of.work / f"fit-{dim}")
    monkeypatch.setattr(survey.Survey, "head_dim", lambda of: 256)
    (tmp_path / "work/gemma3/2048-code").mkdir(parents=True)
    (tmp_path / "work/gemma3/2048-code/capture.h5").touch()

    def run(exercises, *pieces, evaluators=3):
        calls.clear()
        more = ["--exercises", str(exercises), "--evaluators", str(evaluators), "--workers", "1", "--context", "2K",
                "--pieces"]
        return survey.main([*words[:-len(PIECES) - 1], *more, *(pieces or survey.OF_EXERCISES)]), list(calls)

    return run, answers, records.path_of(tmp_path / "records", "gemma3", 2048)


def test_what_a_model_may_solve_is_asked_more_and_what_it_solves_is_retrieved(asking):
    run, answers, _ = asking
    answers |= {"asked": {"needle": 1.0, "multi_key": 0.5, "tracking": 0.4375, "definition": 0.0},
                "solved": {"needle": 0.8, "multi_key": 0.79},
                **dict.fromkeys(("retrieval", "retrieval-wide"), {"needle": 0.8})}
    assert run(256) == (0, [
        ("asked", "16", "needle,multi_key,tracking,definition", "", None, 3),
        ("solved", "256", "needle,multi_key", "", None, 3),
        ("retrieval", "256", "needle", "oracle,mean-key,index", "512,1024", 3),
        ("retrieval-wide", "256", "needle", "index", "512,1024", 3)])
    assert run(256) == (0, [])


def test_records_of_fewer_exercises_are_replaced(asking):
    run, answers, archive = asking
    answers |= dict.fromkeys(("asked", "solved", "retrieval", "retrieval-wide"), {"needle": 1.0})
    assert [one[:2] for one in run(8)[1]] == [(piece, "8") for piece in survey.OF_EXERCISES]
    records.write(archive, "code", "heads", exercises_of({"needle": 1.0}, 16))
    assert [one[:2] for one in run(24)[1]] == [("asked", "16"), ("solved", "24"), ("retrieval", "24"),
                                               ("retrieval-wide", "24")]
    assert {piece for _, piece in records.read(archive)} == {*survey.OF_EXERCISES, "heads"}
    assert run(20) == (0, [])  # more are there


def test_nothing_is_retrieved_of_what_the_model_does_not_solve(asking, capfd, monkeypatch):
    run, answers, _ = asking
    assert run(64, "retrieval") == (1, []) and "retrieval: needs the piece asked" in capfd.readouterr().err
    answers |= {"asked": {"needle": 0.75}, "solved": {"needle": 0.79}}
    assert [one[0] for one in run(64)[1]] == ["asked", "solved"]
    assert capfd.readouterr().err.count("left out, the model solves no task to 80%") == 2
    answers |= {"solved": {"needle": 1.0}, "retrieval": {"needle": 1.0}}
    monkeypatch.setattr(survey.Survey, "head_dim", lambda of: 64)
    assert [one[0] for one in run(65)[1]] == ["solved", "retrieval"]
    assert "retrieval-wide: left out, its heads have the 64 channels of the other" in capfd.readouterr().err


@pytest.mark.parametrize("context, budgets", [(2048, "512,1024"), (8192, "512,1024,2048"), (16384, "1024,2048"),
                                              (32768, "2048")])
def test_budgets_of_retrieval_are_a_sixteenth_to_a_half(words, monkeypatch, context, budgets):
    one = survey.Survey(survey.parser().parse_args(words), context, "code")
    monkeypatch.setattr(survey.Survey, "right", lambda *_: ["needle"])
    monkeypatch.setattr(survey.Survey, "fit", lambda *_: "fit")
    monkeypatch.setattr(survey.Survey, "on_exercises", lambda of, piece, tasks, *more: more[more.index("--budgets") + 1])
    assert one.retrieval() == budgets and survey.belongs("retrieval", context)
    assert not survey.belongs("retrieval", 1023) and not survey.belongs("retrieval-wide", 1023)
