# SPDX-License-Identifier: MIT
"""What train, evaluate and capture say of a mistake, and that the corrected command then runs."""

import os
import subprocess
import sys
from argparse import ArgumentTypeError, Namespace

import pytest
from test_train import make_model, start, tiny, torch, train, values_of  # noqa: F401

from msalab import results
from msalab.arguments import counted, error_text, integers
from msalab.capture.__main__ import main as capture
from msalab.evaluation.__main__ import main as evaluate
from msalab.evaluation.intervals import interval_text
from msalab.training import run

ONE_STEP = ["--steps", 1]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def said(capsys):
    """said(program, words...): the one line in which it refuses them."""
    def refusal(program, *words, **of):
        assert program(*words, **of) == 2
        lines = capsys.readouterr().err.splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")][0]

    return refusal


def evaluated(tiny, out, *words, model="model", text="text.txt"):  # noqa: F811
    return evaluate(list(map(str, [tiny / model, "--text", tiny / text, "--out", out, "--bytes", "--context", 64,
                                   "--sequences", 2, "--tasks", "", "--selectors", "window", "--block-size", 8,
                                   *words])))


def captured(tiny, out, *words, model="model", text="text.txt"):  # noqa: F811
    return capture(list(map(str, ["capture", tiny / model, "--text", tiny / text, "--out", out, "--bytes", *words])))


PROGRAMS = pytest.mark.parametrize("program", [train, evaluated, captured])


@PROGRAMS
@pytest.mark.parametrize("device", ["gpu", pytest.param("cuda", marks=NO_GPU)])
def test_a_device_that_is_not_there_is_named(tiny, tmp_path, said, program, device):  # noqa: F811
    line = said(program, tiny, tmp_path / "a", "--device", device)
    assert line.startswith(f"device {device} cannot be used: ")


@NO_GPU
def test_processes_of_torchrun_name_their_gpu(tiny, tmp_path, said, monkeypatch):  # noqa: F811
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "localhost"),
                        ("MASTER_PORT", "29500")):
        monkeypatch.setitem(os.environ, name, value)
    assert said(train, tiny, tmp_path / "a", "--device", "cuda").startswith("device cuda:1 cannot be used: ")


def test_training_is_on_one_device(tiny, tmp_path, said):  # noqa: F811
    assert said(train, tiny, tmp_path / "a", "--device", "auto") == "--device is auto, must be one device: cpu or cuda"


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_run_that_was_refused_in_its_first_step_leaves_the_folder_free(tiny, tmp_path, said, warmup):  # noqa: F811
    make_model(head_dim=8).save_pretrained(tiny / "narrow")
    how = ["--steps", 1, "--warmup-steps", warmup]
    assert said(train, tiny, tmp_path / "a", *how, model="narrow") == "head_dim is 8, must be from 16 to 512"
    assert said(train, tiny, tmp_path / "a", *how, "--block-size", 100000) == (
        "--block-size is 100000, must be from 8 to 256")
    assert not any((tmp_path / "a").iterdir())
    assert train(tiny, tmp_path / "a", *how) == 0


def test_an_evaluation_that_was_refused_in_its_first_unit_is_corrected(tiny, tmp_path, said):  # noqa: F811
    make_model(head_dim=8).save_pretrained(tiny / "narrow")
    assert said(evaluated, tiny, tmp_path / "a", model="narrow") == "head_dim is 8, must be from 16 to 512"
    assert evaluated(tiny, tmp_path / "a", "--budgets", 16) == 0


def test_what_is_overwritten_stays_until_the_first_step_is_made(tiny, tmp_path, said):  # noqa: F811
    assert train(tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    said(train, tiny, tmp_path / "a", *ONE_STEP, "--overwrite", "--block-size", 100000)
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before
    assert train(tiny, tmp_path / "a", *ONE_STEP, "--overwrite") == 0
    assert [path.name for path in (tmp_path / "a").glob("state-*")] == ["state-1"]
    assert len(values_of(tmp_path / "a", "loss")) == 1


def test_two_processes_overwrite_and_go_on(tiny, tmp_path):  # noqa: F811
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "msalab.training"]
    how = ["--steps", 3, "--warmup-steps", 0]
    assert train(tiny, tmp_path / "a", "--steps", 3, "--warmup-steps", 0, "--lr", 1e-3) == 0
    for more, steps in ((["--overwrite", "--seconds", 0], 1), (["--resume"], 3)):
        _, errors = start(two, tiny, tmp_path / "a", *how, *more)
        assert len(values_of(tmp_path / "a", "loss")) == steps, errors
    assert results.open(tmp_path / "a").run["options"]["lr"] == 1e-2


LATE = """
import sys, time
from contextlib import suppress
import torch
import torch.distributed as dist
from msalab.ending import leave
from msalab.training.learner import Group
group = Group("cpu")
if group.rank == 1:
    time.sleep(0.5)
work = dist.all_reduce(torch.ones(3), async_op=True)
if group.rank == 0:
    kept = work.get_future().then(lambda future: future.value())  # by a thread of gloo, while this process ends
else:
    with suppress(RuntimeError):  # the other one has left
        work.wait()
print("ended")
leave(0)
"""


def test_a_process_of_torchrun_ends_whatever_its_threads_do(tmp_path):
    """By sys.exit() the first one aborts: "terminate called without an active exception"."""
    (tmp_path / "late.py").write_text(LATE)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           tmp_path / "late.py"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ended", "ended"]


@pytest.mark.parametrize("damaged", ["run.json", "state-1/progress.json"])
def test_a_damaged_record_is_named(tiny, tmp_path, said, damaged):  # noqa: F811
    assert train(tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0, "--seconds", 0) == 130
    path = tmp_path / "a" / damaged
    path.write_text(path.read_text()[:-9])
    assert said(train, tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0, "--resume").startswith(
        f"{path}: is damaged")


def test_another_build_is_named(tiny, tmp_path, said, monkeypatch):  # noqa: F811
    assert train(tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0, "--seconds", 0) == 130
    monkeypatch.setattr(run, "version", lambda: "another")
    assert said(train, tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0, "--resume").endswith(
        "is 'another'; --resume needs the options and the build of msalab as recorded, --overwrite begins anew")


@PROGRAMS
@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere", "one/two/three"])
def test_a_model_that_is_not_there_is_named(tiny, tmp_path, said, program, name):  # noqa: F811
    class Here:
        def __truediv__(self, other):
            return name if other == "model" else tiny / other

    assert said(program, Here(), tmp_path / "a") == f"{name}: no such folder or file"


def test_settings_that_keep_everything_are_noted(tiny, tmp_path, capsys):  # noqa: F811
    def note(budget, longest):
        return (f"note: each query reads up to {budget} tokens, and the longest sequence has {longest}: nothing is left "
                "out, as in dense attention\n")

    longest = min(64, max(map(len, (tiny / "text.txt").read_text().split("\0"))))
    assert train(tiny, tmp_path / "a", *ONE_STEP, "--top-k", 100) == 0
    assert note(800, longest) in capsys.readouterr().err
    assert evaluated(tiny, tmp_path / "b", "--budgets", "16,64,4096") == 0
    errors = capsys.readouterr().err
    assert note(4096, 64) in errors and note(64, 64) in errors and "up to 16 tokens" not in errors
    for words in (["--top-k", 3], ["--top-k", 100, "--attention", "dense"]):
        assert train(tiny, tmp_path / "a", *ONE_STEP, "--overwrite", *words) == 0
        assert "each query reads" not in capsys.readouterr().err


@PROGRAMS
def test_a_text_that_is_not_there_is_named(tiny, tmp_path, said, program):  # noqa: F811
    assert said(program, tiny, tmp_path / "a", text="nofile.txt") == f"{tiny / 'nofile.txt'}: no such file"


@pytest.mark.parametrize("program", [train, evaluated])
def test_a_file_is_no_folder(tiny, tmp_path, said, program):  # noqa: F811
    (tmp_path / "t.txt").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert said(program, tiny, tmp_path / "t.txt", *more) == f"{tmp_path / 't.txt'}: is a file, must be a folder"
    assert (tmp_path / "t.txt").read_text() == "mine"


@PROGRAMS
def test_models_of_fewer_tokens_than_bytes_are_refused(tiny, tmp_path, said, program):  # noqa: F811
    make_model(vocab_size=200).save_pretrained(tiny / "few")
    assert said(program, tiny, tmp_path / "a", model="few").endswith(
        "has a vocabulary of 200 tokens: must be from 256 to 512")


def test_options_are_named_as_on_the_command_line(tiny, tmp_path, said):  # noqa: F811
    for words, line in ((["--top-k", 0], "--top-k is 0, must be an integer of at least 1"),
                        (["--block-size", 0], "--block-size is 0, must be an integer of at least 1"),
                        (["--index-dim", 8], "--index-dim is 8, must be from 16 to 256")):
        assert said(train, tiny, tmp_path / "a", *ONE_STEP, *words) == line
    assert said(evaluated, tiny, tmp_path / "b", "--top-k", 0) == (
        "--forced-first and --forced-local are 1 block, must be at most the least budget, 0 blocks")
    options = Namespace(top_k=0, text="", seed=0)
    for text in ("fit.h5: top_k is 0", "own_top_k is 0", "text is top_down"):
        assert error_text(ValueError(text), options) == text
    assert error_text(ValueError("msalab_msa: a text, top_k"), options) == "a text, --top-k"
    assert error_text(ValueError("text and top_k, head_dim"), options) == "text and --top-k, head_dim"


def test_a_run_goes_on_or_is_replaced(tiny, tmp_path, capsys):  # noqa: F811
    with pytest.raises(SystemExit) as ended:
        train(tiny, tmp_path / "a", "--resume", "--overwrite")
    assert ended.value.code == 2 and "error: --resume and --overwrite exclude each other\n" in capsys.readouterr().err


def test_lists_are_of_integers(tiny, tmp_path, capsys):  # noqa: F811
    with pytest.raises(ArgumentTypeError, match="'', must be"):
        integers("")
    with pytest.raises(SystemExit):
        evaluated(tiny, tmp_path / "a", "--budgets", "16,many")
    assert "argument --budgets: '16,many', must be integers with commas between them\n" in capsys.readouterr().err


def test_an_unknown_option_is_said_with_the_usage_of_its_command(tiny, tmp_path, capsys):  # noqa: F811
    with pytest.raises(SystemExit) as ended:
        captured(tiny, tmp_path / "a", "--txt", "b")
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and errors.startswith("usage: msalab capture ")
    assert errors.endswith("msalab capture: error: unrecognized arguments: --txt (did you mean '--text'?) b\n")


def test_one_is_singular():
    assert [counted(number, what) for number, what in ((1, "processes"), (2, "processes"), (1, "sequences"),
                                                       (0, "blocks"))] == [
        "1 process", "2 processes", "1 sequence", "0 blocks"]
    assert interval_text({"low": None, "high": None, "units": 1}, "sequences") == "none: 1 sequence, fewer than 6"
