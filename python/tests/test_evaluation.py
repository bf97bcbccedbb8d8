# SPDX-License-Identifier: MIT
"""`msalab evaluate` on folders of small models with random weights. Needs PyTorch, transformers and
the compiled module."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace as Namespace

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_advice import make_advice  # noqa: E402
from make_indexer import make_indexer  # noqa: E402
from test_capture_models import BIN, SIZES, make_model, needs_programs, run_program  # noqa: E402

import msalab.transformers as mt  # noqa: E402
from msalab import results  # noqa: E402
from msalab.capture.__main__ import main as capture  # noqa: E402
from msalab.evaluation import exercises, run, scoring  # noqa: E402
from msalab.evaluation.__main__ import main  # noqa: E402
from msalab.evaluation.text import Tokenizer  # noqa: E402
from msalab.selectors import Choice, Rule  # noqa: E402

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


def words_of(folder, text_file, out, *more):
    return [str(folder), "--text", str(text_file), "--out", str(out), "--bytes", "--context", str(CONTEXT),
            "--block-size", str(BLOCK), "--top-k", f"2,{ALL}", "--exercises", "3", "--depths", "2", "--forced-first", "0",
            *map(str, more)]


def evaluate(folder, text_file, out, *more):
    return main(words_of(folder, text_file, out, *more))


def summary_of(out):
    """The rows of each table, the same in both files."""
    answer = results.open(out / "results.h5", "msalab evaluate")
    assert answer.path.suffix == ".h5"
    by_json = results.open(out)
    found = {name: table.records() for name, table in by_json.tables.items()}
    assert repr(found) == repr({name: table.records() for name, table in answer.tables.items()})
    assert (by_json.run, by_json.columns, by_json.notes) == (answer.run, answer.columns, answer.notes)
    return found


def test_the_models_own_attention_runs_alone(folder, text_file, tmp_path, capsys):
    for name, selectors in (("alone", ""), ("beside", "window")):
        assert evaluate(folder, text_file, tmp_path / name, "--selectors", selectors, "--tasks", "needle,copy") == 0
    alone, beside = (summary_of(tmp_path / name) for name in ("alone", "beside"))
    assert [row["config"] for row in alone["configs"]] == ["dense"] and not alone["differences"]
    for table in ("configs", "by_position", "retrieval_total", "retrieval"):
        dense = [row for row in beside[table] if row["config"] == "dense"]
        assert [[row[key] for key in dense[0] if row[key] == row[key]] for row in alone[table]] == [
            [row[key] for key in dense[0] if row[key] == row[key]] for row in dense]
    assert "needle" in capsys.readouterr().out and not list((tmp_path / "alone").glob("*.svg"))


def test_loss_is_the_models_own_and_that_of_the_sparse_model(folder, text_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluate(folder, text_file, out, "--selectors", "mean-key,window", "--tasks", "",
                    "--dense-layers", "1") == 0
    summary, printed = summary_of(out), capsys.readouterr().out
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with h5py.File(out / "results.h5") as file:
        nats = file["evaluate/text/nats"][()]
        sequence = file["evaluate/text/sequence"][()]
        configs = file["configs"].asstr()[()].tolist()
        errors = file["evaluate/text/layer_error"][()]
    assert configs == ["dense", "mean-key@32", "mean-key@208", "window@32,first=1",
                       "window@208,first=1"]
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
    bits = nats.astype(float) / np.log(2)
    assert dense["bits_of_text"] == pytest.approx(bits[0].mean(), rel=1e-12)
    assert dense["bits_of_bytes"] == dense["bits_of_text"]
    assert sparse["excess"] == pytest.approx((bits[1] - bits[0]).mean(), rel=1e-9)
    # Of three documents there is no interval, and the table says why.
    assert np.isnan(sparse["excess_low"]) and sparse["units"] == 3
    assert "none: 3 documents, fewer than 6" in printed
    assert summary["evaluated"][0]["resampled"] == "documents" and summary["evaluated"][0]["documents"] == 3
    # Before 32 tokens, all of which a query reads, nothing is lost.
    with h5py.File(out / "results.h5") as file:
        beyond = file["evaluate/text/position"][()] >= 32
    assert sparse["beyond_tokens"] == beyond.sum() < len(beyond)
    assert sparse["excess_beyond"] == pytest.approx((bits[1] - bits[0])[beyond].mean(), rel=1e-9)
    assert np.abs((nats[1] - nats[0])[~beyond]).max() < 1e-4
    by_position = [row for row in summary["by_position"] if row["config"] == "mean-key@32"]
    assert [(row["first_position"], row["end_position"]) for row in by_position] == [(0, 64), (64, 128), (128, 199)]
    assert sum(row["foretold_tokens"] for row in by_position) == summary["evaluated"][0]["foretold_tokens"] == nats.shape[1]
    assert sum(row["foretold_tokens"] * row["excess"] for row in by_position) == pytest.approx(
        (bits[1] - bits[0]).sum(), rel=1e-9)
    assert f"{dense['bits_of_text']:.4f}" in printed
    assert {"loss_by_budget.png", "loss_by_position.svg", "error_by_layer.csv"} <= {
        path.name for path in out.iterdir()}
    assert not (out / "units").exists()


@needs_programs
def test_msa_inspect_reads_the_results(folder, text_file, tmp_path):
    assert evaluate(folder, text_file, tmp_path / "out", "--selectors", "window") == 0
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

    def knows(self, ids, foretold, settings, by_layer):
        count = settings + 1
        right = np.ones((count, len(foretold)), bool)
        nats = np.zeros(right.shape)
        right[1, wrong] = False
        nats[1, wrong] = 2.0
        return scoring.Scores(nats, right, np.zeros((count - 1, len(self.layers))))

    monkeypatch.setattr(scoring.Scorer, "__call__", knows)
    wrong.append(-1)  # the last letter of the answer
    assert evaluate(folder, text_file, tmp_path / "out", "--sequences", 0, "--tasks",
                    "needle,recall", "--selectors", "window", "--pairs", 2) == 0
    rows = summary_of(tmp_path / "out")["retrieval"]
    assert {row["right_answers"] for row in rows if row["config"] != "window@32,first=1"} == {1.0}
    for row in rows:
        if row["config"] == "window@32,first=1":
            assert row["right_answers"] == (0 if row["task"] == "needle" else 0.5)
            assert row["log_likelihood"] == (-2 if row["task"] == "needle" else -1)
            assert row["right_answers_above"] == row["right_answers"] - 1
    assert [row["exercises"] for row in rows if row["task"] == "needle"
            and row["config"] == "dense"] == [1, 2]


def test_a_stopped_run_goes_on_where_it_was(folder, text_file, tmp_path, monkeypatch, capsys):
    arguments = (folder, text_file)
    assert evaluate(*arguments, tmp_path / "whole") == 0
    score, scored = scoring.Scorer.__call__, []

    def counted(self, ids, *more, **options):
        scored.append(len(ids))
        if len(scored) == 4:
            raise KeyboardInterrupt
        return score(self, ids, *more, **options)

    monkeypatch.setattr(scoring.Scorer, "__call__", counted)
    out = tmp_path / "out"
    assert evaluate(*arguments, out) == 130
    assert not (out / "results.h5").exists()
    assert evaluate(*arguments, out, "--seed", 1) == 2
    assert f"error: {out / 'units'}: seed was 0, is 1; it is of another run" in capsys.readouterr().err
    assert evaluate(*arguments, out) == 0
    units = len(summary_of(out)["configs"]) and summary_of(out)["evaluated"][0]["text_sequences"] + 3  # 3 exercises
    assert len(scored) == units + 1
    printed = capsys.readouterr().out
    assert evaluate(*arguments, out) == 0  # it is complete
    assert capsys.readouterr().out == printed != "" and len(scored) == units + 1
    for name in ("summary.json", "results.h5", "loss_by_budget.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("launcher", ["", "mpirun"])
def test_processes_do_a_run_together(folder, text_file, tmp_path, monkeypatch, capsys, launcher):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert evaluate(folder, text_file, tmp_path / "whole") == 0
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    out = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(
        [sys.executable, "-m", "msalab", "evaluate", *words_of(folder, text_file, out)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env=environment | ({"OMPI_COMM_WORLD_RANK": str(rank)} if launcher else {})) for rank in range(2)]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert [one[0] for one in said] == ([printed, ""] if launcher else [printed, printed])
    assert "text" in said[0][1] + said[1][1] and ("text" not in said[1][1] or not launcher)  # one says how far it is
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
    for name in ("summary.json", "results.h5", "loss_by_budget.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_fitted_indexer_comes_first(folder, text_file, tmp_path):
    make_indexer(tmp_path / "results.h5", range(4), groups=2, dim=16, model_dim=SIZES["hidden_size"])
    assert evaluate(folder, text_file, tmp_path / "out", "--indexer", tmp_path, "--tasks", "",
                    "--sequences", 1) == 0
    summary = summary_of(tmp_path / "out")
    assert [c.get("selector") for c in summary["configs"][1::2]] == ["index", "mean-key", "window",
                                                                    "oracle"]
    assert summary["evaluated"][0]["resampled"] == "sequences"
    assert np.isnan(summary["configs"][1]["excess_low"])  # of one sequence


@needs_programs
def test_layers_that_share_a_fit_are_scored_by_the_ids_of_one(folder, text_file, tmp_path, capsys):
    ids = np.frombuffer(TEXT.encode(), np.uint8)[:CONTEXT].astype(np.int64)  # the first sequence
    (tmp_path / "tokens.json").write_text(json.dumps(ids.tolist()))
    assert capture(["capture", str(folder), "--tokens", str(tmp_path / "tokens.json"), "--out",
                    str(tmp_path / "mine.h5")]) == 0
    own, shared = tmp_path / "own", tmp_path / "shared"
    short = ("--steps", 4, "--warmup-steps", 2, "--block-size", BLOCK, "--top-k", 3, "--index-dim", 16)
    run_program("msa-fit-indexer", tmp_path / "mine.h5", "--out", own, *short)
    run_program("msa-fit-indexer", tmp_path / "mine.h5", "--out", shared, *short, "--every", 2)
    run_program("msa-analyze", shared / "indexer.h5", "--out", tmp_path / "seen", "--block-size", BLOCK,
                "--top-k", 3, "--selectors", "index")

    arguments = [str(folder), "--text", str(text_file), "--bytes", "--context", str(CONTEXT), "--sequences", "1",
                 "--exercises", "1", "--depths", "1", "--tasks", "needle", "--selectors", "index",
                 "--forced-first", "0"]
    nats = {}
    for fit in (own, shared):
        out = tmp_path / f"of-{fit.name}"
        assert main([*arguments, "--indexer", str(fit), "--out", str(out)]) == 0
        assert [c["config"] for c in summary_of(out)["configs"]] == ["dense", "index@48"]
        with h5py.File(out / "results.h5") as file:
            nats[fit] = file["evaluate/text/nats"][()]
    assert (nats[own][0] == nats[shared][0]).all() and np.abs(nats[own][1] - nats[shared][1]).max() > 1e-2

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    chosen = {}
    assert mt.configure(model, indexer=shared,
                        observe=lambda layer, found: chosen.update({layer: found})) == [0, 1, 2, 3]
    model.set_attn_implementation(mt.NAME)
    with torch.no_grad():
        first = torch.as_tensor(ids)[None]
        loss = model(first, labels=first).loss.item()
    assert nats[shared][1].mean() == pytest.approx(loss, rel=1e-6)
    assert (chosen[1] == chosen[0]).all() and (chosen[3] == chosen[2]).all()
    assert (chosen[2] != chosen[0]).any()
    # Layer 0 sees here what it saw in the capture, where layer 1 took its ids, too.
    with h5py.File(tmp_path / "seen/results.h5") as file:
        for layer in (0, 1):
            assert (np.sort(file[f"select/index/{layer}/ids"][()]) ==
                    np.sort(chosen[layer].numpy())).mean() > 0.999

    # Neither layer of a pair can be taken alone.
    capsys.readouterr()
    assert main([*arguments, "--indexer", str(shared), "--out", str(tmp_path / "one"), "--sensitivity",
                 "dense"]) == 2
    assert "layer 1 takes the ids of layer 0, which does not select" in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


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
        whole, places = Tokenizer(folder).whole_with_ends(document)
        assert whole == ids.tolist() and places.tolist() == ends.tolist()
        assert tokenizer.decode(ids[:9].tolist()) == document.encode()[:int(ends[8])].decode()
    assert main([str(folder), "--text", str(path), "--out", str(tmp_path / "out"), "--context", "64",
                 "--block-size", "16", "--budgets", "32", "--selectors", "window", "--sequences", "2",
                 "--lengths", "150", "--exercises", "1"]) == 0
    found = summary_of(tmp_path / "out")
    config = found["configs"][1]
    assert config["config"] == "window@32,first=1" and 0 < config["bits_of_bytes"] < config["bits_of_text"]
    assert {row["exercise_tokens"] for row in found["retrieval"]} == {150}


def test_an_index_is_scored_as_it_was_fitted(folder, text_file, tmp_path, capsys):
    fit = make_indexer(tmp_path / "results.h5", range(4), groups=2, dim=16, first=1,
                       model_dim=SIZES["hidden_size"])
    arguments = [str(folder), "--text", str(text_file), "--bytes", "--context", str(CONTEXT),
                 "--sequences", "1", "--tasks", "", "--indexer", str(fit)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "fitted for 3 blocks of 16 tokens, the first 1 and the newest 1 forced" in said
    assert "as asked" not in said
    configs = summary_of(tmp_path / "out")["configs"][1:]
    assert [c["config"] for c in configs] == [
        "index@48", "index@48,first=1", "mean-key@48", "mean-key@48,first=1", "window@48,first=1", "oracle@48",
        "oracle@48,first=1"]
    assert {(c["block_size"], c["top_k"], c["forced_local"]) for c in configs} == {(16, 3, 1)}
    assert main([*arguments, "--out", str(tmp_path / "other"), "--block-size", "32", "--top-k", "2",
                 "--selectors", "index"]) == 0
    assert "note: it selects with blocks of 32 tokens instead, as asked" in capsys.readouterr().err
    assert [c["config"] for c in summary_of(tmp_path / "other")["configs"][1:]] == ["index@64", "index@64,first=1"]
    make_indexer(fit, range(2), groups=2, dim=16, model_dim=SIZES["hidden_size"])
    assert main([*arguments, "--out", str(tmp_path / "few"), "--selectors", "index"]) == 2
    assert ("error: the indexer has no Index Branch of layers [2, 3]; it has those of [0, 1]: fit them, or name them in "
            "--dense-layers\n") in capsys.readouterr().err
    make_indexer(fit, range(4), groups=2, dim=16, first=1, model_dim=SIZES["hidden_size"])
    assert main([*arguments, "--out", str(tmp_path / "none"), "--top-k", "1", "--selectors", "index"]) == 0
    assert [c["config"] for c in summary_of(tmp_path / "none")["configs"][1:]] == ["index@16"]
    assert main([*arguments, "--out", str(tmp_path / "one"), "--top-k", "1", "--selectors", "index",
                 "--forced-first", "1"]) == 2
    assert "are 2 blocks, must be at most the least budget, 1 block" in capsys.readouterr().err


def test_a_plain_kernel_of_an_index_branch_is_noted_once(folder, text_file, tmp_path, capsys, monkeypatch):
    fit = make_indexer(tmp_path / "results.h5", range(4), groups=2, dim=16, model_dim=SIZES["hidden_size"])
    more = ("--indexer", fit, "--tasks", "", "--sequences", 1, "--selectors", "window,index", "--overwrite")
    assert evaluate(folder, text_file, tmp_path / "out", *more) == 0
    assert "plain" not in capsys.readouterr().err
    monkeypatch.setattr(run, "backend_of", lambda _: Namespace(
        answered_by="index_select_any; sm90: k is 64, must be at most 32"))
    assert evaluate(folder, text_file, tmp_path / "out", *more) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "plain" in line]
    assert said == [f"note: index@{tokens}: the Index Branch selects by the plain kernel, many times slower than another "
                    "would (sm90: k is 64, must be at most 32)" for tokens in (2 * BLOCK, ALL * BLOCK)]


def test_the_first_block_is_an_axis(folder, text_file, tmp_path, capsys):
    assert evaluate(folder, text_file, tmp_path / "out", "--selectors", "mean-key,window", "--top-k", 2,
                    "--tasks", "", "--forced-first", "0,1") == 0
    summary = summary_of(tmp_path / "out")
    assert [c["config"] for c in summary["configs"]] == ["dense", "mean-key@32", "mean-key@32,first=1",
                                                        "window@32,first=1"]
    (row,) = summary["first_block"]
    assert row["first_block_gain"] == pytest.approx(row["excess"] - row["forced_excess"], abs=1e-9)
    assert "The first block, not forced and forced" in capsys.readouterr().out


@pytest.mark.parametrize("one", ["dense", "sparse"])
def test_sensitivity_is_that_of_runs_with_dense_layers(folder, text_file, tmp_path, capsys, one):
    arguments = ("--selectors", "mean-key", "--top-k", 2, "--sequences", 2, "--tasks", "needle",
                 "--exercises", 1, "--depths", 1)
    assert evaluate(folder, text_file, tmp_path / "out", *arguments, "--sensitivity", one,
                    "--dense-layers", "0") == 0
    summary = summary_of(tmp_path / "out")
    assert f"mean-key@32, one layer {one}" in capsys.readouterr().out
    rows = {row["layer"]: row["layer_bits"] for row in summary["sensitivity"]}
    assert sorted(rows) == [1, 2, 3] and list(rows.values()) == sorted(rows.values(), reverse=True)
    dense = "0,2" if one == "dense" else "0,1,3"
    assert evaluate(folder, text_file, tmp_path / "two", *arguments, "--dense-layers", dense) == 0
    excess = summary_of(tmp_path / "two")["configs"][1]["excess"]
    alone = summary["configs"][1]["excess"] - excess if one == "dense" else excess
    assert rows[2] == pytest.approx(alone, abs=1e-9)
    assert [c["config"] for c in summary["configs"]] == ["dense", "mean-key@32"]
    assert (tmp_path / "out/sensitivity.csv").exists()


def test_advice_runs_layer_by_layer(folder, text_file, tmp_path, capsys):
    advice = make_advice(tmp_path / "summary.json", {0: None, 1: ("mean-key", 16, 3, 1, 1),
                                                     2: ("window", 32, 2, 0, 1), 3: None})
    assert evaluate(folder, text_file, tmp_path / "out", "--from-advice", advice, "--tasks", "",
                    "--sequences", 1) == 0
    dense, config = summary_of(tmp_path / "out")["configs"]
    assert (config["config"], config["token_budget"]) == ("advice", 64)
    (asked,) = results.open(tmp_path / "out").run["options"]["configs"]
    assert asked["layers"]["1"]["top_k"] == 3 and asked["layers"]["0"] is None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    first = torch.as_tensor(np.frombuffer(TEXT.encode(), np.uint8)[:CONTEXT].astype(np.int64))[None]
    asked = {}
    assert mt.configure(model, advice=advice,
                        observe=lambda layer, ids: asked.update({layer: ids})) == [1, 2]
    model.set_attn_implementation(mt.NAME)
    with torch.no_grad():
        loss = model(first, labels=first).loss.item()
    assert config["bits_of_text"] == pytest.approx(loss / np.log(2), rel=1e-5)
    assert asked[0] is None and asked[1].shape[-1] == 3 and asked[2].shape[-1] == 2
    assert (asked[1][20:, :, 0] == 0).all()  # the first block is forced there


def test_advice_of_some_layers_names_the_option(folder, text_file, tmp_path, capsys):
    advice = make_advice(tmp_path / "summary.json", {0: None, 1: ("mean-key", 16, 3, 1, 1)})
    assert evaluate(folder, text_file, tmp_path / "out", "--from-advice", advice) == 2
    assert ("error: the advice says nothing of layers [2, 3]; it is of those captured, [0, 1]: capture them, or name "
            "them in --dense-layers\n") in capsys.readouterr().err


def test_logits_are_those_that_are_asked_for(folder, monkeypatch):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    model.lm_head.register_forward_hook(lambda _, given, out: rows.append(out.shape[1]))
    monkeypatch.setattr(scoring, "POSITIONS_AT_ONCE", 50)
    settings = [scoring.Setting("window@32", "window", Choice("window", Rule(16, 2)))]
    scorer = scoring.Scorer(model, settings, None)
    ids = np.arange(120) % 256
    rows.clear()
    whole = scorer(ids)
    assert rows == [1, 50, 50, 19] * 2
    rows.clear()
    some = scorer(ids, [30, 31, 90], by_layer=False)
    assert rows == [1, 3] * 2
    assert np.abs(some.nats - whole.nats[:, [29, 30, 89]]).max() < 1e-5
    assert (some.right == whole.right[:, [29, 30, 89]]).all()
    assert np.isnan(some.layer_error).all() and np.isfinite(whole.layer_error).all()
    monkeypatch.setattr(scorer, "_keeps_logits", False)
    assert np.abs(scorer(ids).nats - whole.nats).max() < 1e-5


def test_the_error_behind_a_layer_counts_every_token_alike():
    own, hidden = torch.ones(10, 4), torch.ones(10, 4)
    own[0] *= 1e6  # a massive activation
    hidden[0], hidden[1:] = own[0] * 1.2, 1.1
    assert scoring.mean_error(hidden, own).item() == pytest.approx((0.2 + 9 * 0.1) / 10, rel=1e-5)


@pytest.mark.parametrize("arguments, said", [
    (["--selectors", "best"], "--selectors names best; there are: oracle, mean-key"),
    (["--selectors", "index"], "--selectors index needs --indexer"),
    (["--selectors", "window,window"], "--selectors names one twice"),
    (["--tasks", "poem"], "--tasks names poem"),
    (["--tasks", "needle,needle"], "--tasks names one twice"),
    (["--lengths", "200,-4"], "--lengths has -4, must be at least 1"),
    (["--lengths", "200,200"], "--lengths names one twice"),
    (["--context", "1"], "--context is 1, must be at least 2"),
    (["--context", "40000"], "--context is 40000, must be at most 32768, the positions"),
    (["--lengths", "10"], "an exercise of needle takes"),
    (["--dense-layers", "7"], "error: --dense-layers names [7]"),
    (["--dense-layers", "0,1,2,3"],
     "error: no layer is left to select: each is in --dense-layers or has a sliding window"),
    (["--forced-local", "3"], "--forced-local are 3 blocks, must be at most the least budget, 2"),
    (["--forced-local", "0"], "--forced-local is 0, must be at least 1"),
    (["--indexer", "nowhere"], "nowhere: no such file"),
    (["--device", "nowhere"], "device nowhere cannot be used"),
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
    assert "none: no such folder or file" in capsys.readouterr().err
    assert evaluate(folder, tmp_path / "none.txt", tmp_path / "out") == 2
    assert "none.txt" in capsys.readouterr().err
    assert main([str(folder), "--text", str(text_file), "--out", str(tmp_path / "out")]) == 2
    assert "has no tokenizer that" in capsys.readouterr().err
