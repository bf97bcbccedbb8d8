# SPDX-License-Identifier: MIT
"""The script of the study of public models on a tiny model with windowed and full layers: from a folder to records and a
page, and again where it was stopped. Needs PyTorch, transformers, the compiled module and the programs."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

sys.path.append(str(Path(__file__).parents[2] / "python/tests"))
from test_capture_models import BIN, make_model, needs_programs  # noqa: E402

from studies.models import __main__ as survey  # noqa: E402
from studies.models import page, records  # noqa: E402

PIECES = ["keeps-64", "heads", "fit-64", "loss-512", "asked", "retrieval-512", "fit-wide", "advice", "advised"]


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
            "--pieces", *PIECES]


@needs_programs
def test_from_a_folder_to_records_and_the_page(words, tmp_path, capfd, monkeypatch):
    assert survey.main([*words, "--seconds", "-1"]) == 0
    said = capfd.readouterr().err
    assert "gemma3 1024 code heads: not begun" in said and (tmp_path / "records/gemma3/crossover.json").exists()
    real = survey._msalab
    monkeypatch.setattr(survey, "_msalab", lambda *more: real(*more) if more[0] != "evaluate" else real("evaluate"))
    assert survey.main(words) == 1  # what fails is said, and the others go on
    said = capfd.readouterr().err
    assert "loss-512: msalab evaluate ended with exit code 2" in said and "retrieval-512: retrieval needs the piece asked" in said
    found = page.load(tmp_path / "records").found["gemma3", 1024, "code"]
    assert list(found) == ["advice", "fit-64", "fit-wide", "heads", "keeps-64"]
    assert set(found["keeps-64"]["selectors"]["layer"]) == {1, 3}  # the others have windows
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "records/gemma3").iterdir()}
    monkeypatch.setattr(survey, "_msalab", real)
    assert survey.main(words) == 0
    said = capfd.readouterr().err
    assert "retrieval-512: left out, the model solves no task to 80%" in said and "heads" not in said
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    found = page.load(tmp_path / "records").found["gemma3", 1024, "code"]
    assert {"loss-512", "asked", "advised"} <= set(found)
    assert set(found["loss-512"]["configs"]["selector"]) == {"", "oracle", "mean-key", "window", "index"}
    assert found["loss-512"].run["survey"]["kind"] == "code"
    assert len(found["heads"]["heads"]) == 2 * 8
    assert "With 512 of 1K tokens of code text" in (tmp_path / "page.md").read_text()
    (tmp_path / "work").rename(tmp_path / "moved")
    assert survey.main(words) == 0  # nothing is missing but what has no answer: no capture is made anew
    assert not (tmp_path / "work/gemma3/1024-code/capture.h5").exists()


@needs_programs
def test_what_is_not_a_context_or_piece_is_refused(words, capsys):
    assert survey.main([*words[:-len(PIECES)], "heads", "tails"]) == 2
    assert "--pieces has tails; there are: keeps-64 heads" in capsys.readouterr().err
    assert survey.main([*words, "--context", "4K"]) == 2
    assert "--context is 4096, must be more than 512 and at most the model's 2048 positions" in capsys.readouterr().err


def test_heads_have_their_record():
    assert records.path_of(records.FOLDER, "gemma3", 2048, "code", "heads").name == "2048-code-heads.json.xz"
