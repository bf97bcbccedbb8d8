# SPDX-License-Identifier: MIT
"""`msalab try` on a small model with random weights: from a text to a verdict, once, and again where it was stopped.
Needs PyTorch, transformers, the compiled module and the programs."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_evaluation import answer  # noqa: E402
from test_capture_models import BIN, make_model, needs_programs  # noqa: E402

from msalab import steps, trial  # noqa: E402
from msalab.__main__ import main  # noqa: E402
from msalab.capture.reader import ActivationsReader  # noqa: E402
from msalab.ending import Refusal  # noqa: E402

TEXT = "".join(f"Line {line} of a text that says how blocks of keys are chosen.\n" for line in range(150))
OPTIONS = ["--bytes", "--context", "288", "--block-size", "16", "--top-k", "2", "--sequences", "8"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("MSALAB_BIN", str(BIN))
    make_model("qwen3", vocab_size=256).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "model"


@needs_programs
def test_from_a_model_to_a_verdict(model, tmp_path, capfd, monkeypatch):
    words = ["try", str(model), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), *OPTIONS]
    real, stopped = trial._msalab, []

    def stop(command, *more):
        if command != "evaluate":
            return real(command, *more)
        stopped.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "_msalab", stop)
    assert main(words) == 130
    said = capfd.readouterr().err
    assert "6 steps, about" in said and "interrupted; the same command goes on" in said
    monkeypatch.setattr(trial, "_msalab", real)
    with ActivationsReader(tmp_path / "out/capture.h5") as file:
        assert list(file.cu_seqlens) == [0, 288, 576]  # what --context says, of each sequence
    captured = (tmp_path / "out/capture.h5").stat().st_mtime_ns
    assert main(words) == 0
    said = capfd.readouterr()
    assert "2 steps, about" in said.err and "4 are done" in said.err and stopped == [1]
    assert (tmp_path / "out/capture.h5").stat().st_mtime_ns == captured
    for word in ("Dense: ", "32 tokens a query, the Index Branch: ", "64 tokens a query, the best choice of blocks: ",
                 "with the first block kept", "Pictures: "):
        assert word in said.out
    assert (tmp_path / "out/report/report.html").stat().st_size > 100000
    assert main(words) == 0  # all is done
    assert "0 steps" in capfd.readouterr().err


@needs_programs
def test_what_cannot_be_tried_is_refused(model, tmp_path, capfd):
    text, out = str(tmp_path / "text.txt"), str(tmp_path / "out")
    assert main(["try", str(model), "--text", text, "--out", out, "--bytes", "--context", "64"]) == 2
    assert "--top-k is 1: twice as many blocks of 64 tokens are the whole context of 64" in capfd.readouterr().err
    (tmp_path / "line.txt").write_text("one line")
    assert main(["try", str(model), "--text", str(tmp_path / "line.txt"), "--out", out, *OPTIONS]) == 2
    assert "line.txt: has no two halves of text" in capfd.readouterr().err
    assert main(["try", str(model), "--text", str(tmp_path / "no.txt"), "--out", out, *OPTIONS]) == 2
    assert "no.txt: no such file" in capfd.readouterr().err


def test_halves_are_cut_at_lines_and_keep_their_time(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    learnt, held = trial.split_text(tmp_path / "a.txt", tmp_path)
    parts = held.read_bytes().split(b"\0")
    assert b"".join([*(path.read_bytes() for path in learnt), *parts]) == TEXT.encode()
    assert (len(learnt), len(parts)) == (trial.CAPTURED, trial.PARTS)
    assert all(part.endswith(b"\n") for part in [*parts, learnt[0].read_bytes()])
    before = held.stat().st_mtime_ns
    trial.split_text(tmp_path / "a.txt", tmp_path)
    assert held.stat().st_mtime_ns == before


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MSALAB_BIN", str(tmp_path))
    with pytest.raises(Refusal, match="msa-none: no such program"):
        trial.find_program("msa-none")


def evaluated(index, oracle, tokens=1024):
    def config(selector, budget, first, percent):
        return {"config": f"{selector}@{budget}", "selector": selector, "token_budget": budget, "forced_first": first,
                "bits_of_text": 2.0, "excess": 0.02 * percent, "units": 4, "beyond_units": 4, "beyond_tokens": 1}
    return answer({"evaluated": [{"model": "m", "foretold_tokens": tokens, "text_sequences": 4, "documents": 4,
                                  "resampled": "documents", "context": 256, "model_layers_run": "0"}],
                   "configs": [{"config": "dense", "bits_of_text": 2.0}, *(
        config(selector, budget, 0, percent * 128 / budget) for budget in (64, 128)
        for selector, percent in (("index", index), ("oracle", oracle)))]})


@pytest.mark.parametrize("index, oracle, says", [
    (0.5, 0.1, "With 128 tokens MSA loses 0.50 % of the bits untrained"),
    (-1.86, -3, "With 128 tokens MSA saves 1.86 % of the bits untrained: no loss is left to close."),
    (0, 0, "With 128 tokens MSA loses 0.00 % of the bits untrained: no loss is left to close."),
    (0.004, 0, "With 128 tokens MSA loses 0.00 % of the bits untrained: no loss is left to close."),
    (0.006, 0, "With 128 tokens MSA loses 0.01 % of the bits untrained: training may close that."),
    (4, 0.5, "128 tokens are enough (the best choice loses 0.50 %), the Index Branch does not find them yet (4.00 %)"),
    (4, -0.5, "128 tokens are enough (the best choice saves 0.50 %), the Index Branch does not find them yet (4.00 %)"),
    (9, 3, "Even the best choice of 128 tokens loses 3.00 %")])
def test_the_verdict_follows_the_loss_at_the_larger_budget(index, oracle, says):
    lines = trial.verdict(evaluated(index, oracle))
    assert lines[-1].startswith(says)
    assert lines[1].startswith(f"64 tokens a query, the Index Branch: {2 * index:+.2f} % (no interval")


def test_an_estimate_knows_the_model(model):
    """Zeros would make every step look as if it took no time."""
    sizes = trial.sizes_of(str(model))
    assert sizes == (sum(weight.numel() for weight in make_model("qwen3", vocab_size=256).parameters()), 4, "float32")
    assert trial.sizes_of(str(model / "none")) == (0, 0, "")


@pytest.mark.parametrize("flags, said", [("fma avx512f", "float32"), ("fma avx512_bf16", "auto")])
def test_the_loss_is_in_the_format_that_is_fast_here(flags, said, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(trial, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(trial, "flops_per_second", lambda dtype, device: {"bfloat16": 1e9, "float32": 3e9}[dtype])
    assert trial.format_of_loss("bfloat16", "cpu") == (said, 3e9 if said == "float32" else 1e9)
    assert trial.format_of_loss("bfloat16", "cuda")[0] == trial.format_of_loss("", "cpu")[0] == "auto"


def test_short_documents_have_no_verdict():
    lines = trial.verdict(evaluated(0.5, 0.1, 400))
    assert lines[-1] == ("The documents held out have 100 tokens on average, for a context of 256: a text 3 times as long "
                         "says what MSA loses there.")


def test_steps_name_their_options(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "sizes_of", lambda model: (10**8, 12, "float32"))
    (tmp_path / "a.txt").write_text(TEXT)
    base = dict(text=tmp_path / "a.txt", model="m", block_size=16, top_k=2, context=128, sequences=8, steps=0,
                device="cpu", bytes=True)
    def keys(**other):
        return {step.name: step.key() for step in trial.steps_of(Namespace(**{**base, **other}), tmp_path)}
    assert keys() == keys() and keys()["capture"] != keys(model="n")["capture"]
    other = {name for name, key in keys(top_k=3).items() if key != keys()[name]}
    assert other == {"fit", "free", "forced", "evaluation"}
    json.dumps(steps.done_steps(tmp_path))
    assert Path(tmp_path / "learnt_1.txt").exists()
