# SPDX-License-Identifier: MIT
"""`msalab evaluate` on folders of small models with random weights. Needs PyTorch, transformers and
the compiled module."""

import json
import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_indexer import make_indexer  # noqa: E402
from test_capture_models import BIN, SIZES, make_model, needs_programs  # noqa: E402

import msalab.transformers as mt  # noqa: E402
from msalab.evaluation import scoring  # noqa: E402
from msalab.evaluation.__main__ import main  # noqa: E402
from msalab.evaluation.merge import main as merge  # noqa: E402
from msalab.evaluation.text import Tokenizer  # noqa: E402

CONTEXT, BLOCK = 200, 16
ALL = 13  # blocks of CONTEXT
TEXT = ("Blocks of keys are chosen, block by block. " * 12 + "\0" + "Wörter ändern das Maß. " * 30
        + "\0" + "0123456789 " * 11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small"
    make_model("qwen3", vocab_size=256).save_pretrained(path)
    return path


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def evaluate(folder, text_file, out, *more):
    return main([str(folder), "--text", str(text_file), "--out", str(out), "--bytes", "--context",
                 str(CONTEXT), "--block-size", str(BLOCK), "--top-k", f"2,{ALL}", "--exercises", "3",
                 "--depths", "2", *map(str, more)])


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def test_loss_is_the_models_own_and_that_of_the_sparse_model(folder, text_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluate(folder, text_file, out, "--selector", "mean-key,window", "--tasks", "",
                    "--dense-layers", "1") == 0
    summary, printed = summary_of(out), capsys.readouterr().out
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with h5py.File(out / "results.h5") as file:
        nats = file["evaluate/text/nats"][()]
        sequence = file["evaluate/text/sequence"][()]
        configs = file["configs"].asstr()[()].tolist()
        errors = file["evaluate/text/layer_error"][()]
    assert configs == ["dense", "mean-key@32", "mean-key@208", "window@32", "window@208"]
    documents = [np.frombuffer(part.encode(), np.uint8) for part in TEXT.split("\0")]
    first = torch.as_tensor(documents[0][:CONTEXT].astype(np.int64))[None]
    with torch.no_grad():
        own = model(first, labels=first).loss.item()
        mt.configure(model, "mean-key", BLOCK, 2, dense_layers=(1,))
        model.set_attn_implementation(mt.NAME)
        sparse = model(first, labels=first).loss.item()
    here = nats[:, sequence == 0].mean(1)
    rounding = 2.0 ** -20 * own  # the library sums losses of a few nats in single precision
    assert abs(here[0] - own) < rounding and abs(here[1] - sparse) < rounding
    assert abs(sparse - own) > 1e4 * rounding
    # With all blocks nothing but rounding is left, which logits of some ten carry into the loss.
    assert np.abs(nats[[2, 4]] - nats[0]).max() < 1e-4 < np.abs(nats[[1, 3]] - nats[0]).max()
    assert (errors[:, [1, 3]] < 1e-5).all() and (errors[:, [0, 2]] > 1e-3).all()
    dense, sparse = summary["configs"][:2]
    bits = nats / np.log(2)
    assert dense["bits_per_token"] == pytest.approx(bits[0].mean(), rel=1e-12)
    assert dense["bits_per_byte"] == dense["bits_per_token"]
    assert sparse["excess"]["mean"] == pytest.approx((bits[1] - bits[0]).mean(), rel=1e-9)
    assert sparse["excess"]["low"] <= sparse["excess"]["mean"] <= sparse["excess"]["high"]
    assert summary["resampled"] == "documents" and summary["documents"] == 3
    by_position = [row for row in summary["by_position"] if row["config"] == "mean-key@32"]
    assert [(row["first"], row["end"]) for row in by_position] == [(0, 64), (64, 128), (128, 199)]
    assert sum(row["tokens"] for row in by_position) == summary["tokens"] == nats.shape[1]
    assert sum(row["tokens"] * row["excess"]["mean"] for row in by_position) == pytest.approx(
        (bits[1] - bits[0]).sum(), rel=1e-9)
    assert f"{dense['bits_per_token']:.4f}" in printed
    assert {"loss_by_budget.png", "loss_by_position.svg", "error_by_layer.csv"} <= {
        path.name for path in out.iterdir()}
    assert not (out / "units").exists()


@needs_programs
def test_msa_inspect_reads_the_results(folder, text_file, tmp_path):
    assert evaluate(folder, text_file, tmp_path / "out", "--selector", "window") == 0
    for damaged in (False, True):
        path = tmp_path / "out/results.h5"
        if damaged:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        said = subprocess.run([BIN / "msa-inspect", path], capture_output=True, text=True)
        assert said.returncode == (2 if damaged else 0), said.stderr
    assert "checksum" in said.stderr


def test_answers_are_scored_where_they_stand(folder, text_file, tmp_path, monkeypatch):
    """A model that knows every answer gets all of them, one that knows all but a letter none."""
    wrong = []

    def knows(self, ids):
        count = len(self.plans) + 1
        right = np.ones((count, len(ids) - 1), bool)
        nats = np.zeros(right.shape)
        right[1, wrong] = False
        nats[1, wrong] = 2.0
        return scoring.Scores(nats, right, np.zeros((count - 1, len(self.layers))))

    monkeypatch.setattr(scoring.Scorer, "__call__", knows)
    wrong.append(-1)  # the last letter of the answer
    assert evaluate(folder, text_file, tmp_path / "out", "--sequences", 0, "--tasks",
                    "needle,recall", "--selector", "window", "--pairs", 2) == 0
    rows = summary_of(tmp_path / "out")["retrieval"]
    assert {row["exact_match"] for row in rows if row["config"] != "window@32"} == {1.0}
    for row in rows:
        if row["config"] == "window@32":
            assert row["exact_match"] == (0 if row["task"] == "needle" else 0.5)
            assert row["log_likelihood"] == (-2 if row["task"] == "needle" else -1)
            assert row["exact_match_difference"]["mean"] == row["exact_match"] - 1
    assert [row["exercises"] for row in rows if row["task"] == "needle"
            and row["config"] == "dense"] == [1, 2]


def test_a_stopped_run_goes_on_where_it_was(folder, text_file, tmp_path, monkeypatch, capsys):
    arguments = (folder, text_file)
    assert evaluate(*arguments, tmp_path / "whole") == 0
    score, scored = scoring.Scorer.__call__, []

    def counted(self, ids):
        scored.append(len(ids))
        if len(scored) == 4:
            raise KeyboardInterrupt
        return score(self, ids)

    monkeypatch.setattr(scoring.Scorer, "__call__", counted)
    out = tmp_path / "out"
    assert evaluate(*arguments, out) == 130
    assert not (out / "results.h5").exists()
    assert evaluate(*arguments, out) == 2
    assert "a run was under way; --resume goes on" in capsys.readouterr().err
    assert evaluate(*arguments, out, "--resume", "--seed", 1) == 2
    assert "seed was 0, is 1" in capsys.readouterr().err
    assert evaluate(*arguments, out, "--resume") == 0
    units = len(summary_of(out)["configs"]) and summary_of(out)["sequences"] + 3  # 3 exercises
    assert len(scored) == units + 1
    for name in ("summary.json", "results.h5", "loss_by_budget.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_shards_of_a_run_are_merged_to_its_bytes(folder, text_file, tmp_path, monkeypatch, capsys):
    assert evaluate(folder, text_file, tmp_path / "whole") == 0
    printed = capsys.readouterr().out
    shards = [tmp_path / f"part{index}" for index in range(3)]
    score, scored = scoring.Scorer.__call__, []

    def counted(self, ids):
        scored.append(len(ids))
        if len(scored) == 2:
            raise KeyboardInterrupt
        return score(self, ids)

    monkeypatch.setattr(scoring.Scorer, "__call__", counted)
    for index, out in enumerate(shards):
        part = ("--shard", f"{index}/3")
        if index == 0:  # is stopped, and goes on
            assert evaluate(folder, text_file, out, *part) == 130
            assert evaluate(folder, text_file, out, *part) == 2
            part = (*part, "--resume")
        assert evaluate(folder, text_file, out, *part) == 0
        assert not (out / "results.h5").exists()
    said = capsys.readouterr()
    assert "shard 2/3: its " in said.err and "of several folders msalab merge does" in said.err
    assert said.out == ""
    summary = summary_of(tmp_path / "whole")
    assert len(scored) == summary["sequences"] + 3 + 1  # nothing twice but what was interrupted
    assert merge([*map(str, shards), "--out", str(tmp_path / "merged")]) == 0
    assert capsys.readouterr().out == printed
    for name in ("summary.json", "results.h5", "loss_by_budget.csv"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # One of them may become the whole.
    assert evaluate(folder, text_file, shards[0], "--resume") == 0
    assert summary_of(shards[0]) == summary


def test_processes_of_devices_give_the_bytes_of_one(folder, text_file, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert evaluate(folder, text_file, tmp_path / "whole") == 0
    finally:
        torch.set_num_threads(before)
    printed = capfd.readouterr().out
    out = tmp_path / "devices"
    assert evaluate(folder, text_file, out, "--devices", "0,1") == 0
    said = capfd.readouterr()
    assert said.out == printed  # once
    assert "shard 0/2: 1/" in said.err and "shard 1/2: 1/" in said.err
    assert {path.name for path in out.iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()}
    for name in ("summary.json", "results.h5", "loss_by_budget.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("more, said", [
    (["--shard", "0/2"], "--shard is given, and so is --devices"),
    (["--device", "cuda:1"], "--devices goes with --device cuda or cpu, not cuda:1")])
def test_devices_that_cannot_share_a_run(folder, text_file, tmp_path, capsys, more, said):
    assert evaluate(folder, text_file, tmp_path / "out", "--devices", "0,1", *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_fitted_indexer_comes_first(folder, text_file, tmp_path):
    make_indexer(tmp_path / "results.h5", range(4), groups=2, dim=16, model_dim=SIZES["hidden_size"])
    assert evaluate(folder, text_file, tmp_path / "out", "--indexer", tmp_path, "--tasks", "",
                    "--sequences", 1) == 0
    summary = summary_of(tmp_path / "out")
    assert [c.get("selector") for c in summary["configs"][1::2]] == ["index", "mean-key", "window",
                                                                    "oracle"]
    assert summary["resampled"] == "sequences"
    assert summary["configs"][1]["excess"]["low"] is None  # of one sequence


def test_a_tokenizers_bytes_are_those_of_the_text(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(path)], 300, show_progress=False)
    folder = tmp_path / "words"
    make_model("llama", vocab_size=300).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(
        folder)
    for document in TEXT.split("\0"):
        ids, widths = Tokenizer(folder).with_bytes(document)
        assert widths.sum() == len(document.encode()) and len(ids) == len(widths) < widths.sum()
        ends = np.cumsum(widths)
        assert tokenizer.decode(ids[:9].tolist()) == document.encode()[:int(ends[8])].decode()
    assert main([str(folder), "--text", str(path), "--out", str(tmp_path / "out"), "--context", "64",
                 "--block-size", "16", "--budgets", "32", "--selector", "window", "--sequences", "2",
                 "--lengths", "150", "--exercises", "1"]) == 0
    found = summary_of(tmp_path / "out")
    config = found["configs"][1]
    assert config["config"] == "window@32" and 0 < config["bits_per_byte"] < config["bits_per_token"]
    assert {row["length"] for row in found["retrieval"]} == {150}


@pytest.mark.parametrize("arguments, said", [
    (["--selector", "best"], "--selector names best; there are: oracle, mean-key"),
    (["--selector", "index"], "--selector index needs --indexer"),
    (["--tasks", "poem"], "--tasks names poem"),
    (["--context", "1"], "--context is 1, must be at least 2"),
    (["--context", "40000"], "--context has 40000, must be at most 32768, the positions"),
    (["--lengths", "10"], "an exercise of needle takes"),
    (["--dense-layers", "7"], r"dense_layers names [7]"),
    (["--forced-local", "3"], "--forced-local are 3 blocks, must be at most the least budget, 2"),
    (["--forced-local", "0"], "--forced-local is 0, must be at least 1"),
    (["--indexer", "nowhere"], "nowhere: no such file"),
    (["--device", "nowhere"], "device nowhere cannot be used"),
    (["--shard", "3/3"], "--shard is '3/3', must be I/N with I from 0 to N - 1, or slurm"),
])
def test_refuses_bad_options_and_leaves_nothing(folder, text_file, tmp_path, capsys, arguments, said):
    assert evaluate(folder, text_file, tmp_path / "out", *arguments) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_refuses_budgets_in_parts_of_a_block(folder, text_file, tmp_path, capsys):
    assert main([str(folder), "--text", str(text_file), "--out", str(tmp_path / "out"), "--bytes",
                 "--budgets", "100"]) == 2
    assert "--budgets has 100, must be a multiple of --block-size = 128" in capsys.readouterr().err


def test_refuses_models_and_texts_that_are_not_there(folder, text_file, tmp_path, capsys):
    assert evaluate(tmp_path / "none", text_file, tmp_path / "out") == 2
    assert "none cannot be loaded" in capsys.readouterr().err
    assert evaluate(folder, tmp_path / "none.txt", tmp_path / "out") == 2
    assert "none.txt" in capsys.readouterr().err
    assert main([str(folder), "--text", str(text_file), "--out", str(tmp_path / "out")]) == 2
    assert "has no tokenizer that" in capsys.readouterr().err
