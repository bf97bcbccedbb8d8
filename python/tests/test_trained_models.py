# SPDX-License-Identifier: MIT
"""A model that msa-pretrain has trained, as a model of transformers: `msalab evaluate` finds the loss
that msa-pretrain finds. Needs PyTorch, transformers, the compiled module and the programs."""

import json
import random
import subprocess

import h5py
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("transformers", reason="transformers is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from test_capture_models import BIN, needs_programs  # noqa: E402

from msalab.capture.__main__ import main as convert  # noqa: E402
from msalab.evaluation.__main__ import main as evaluate  # noqa: E402

CONTEXT, BLOCK, TOP_K = 320, 16, 4
COMPLETE = (64, 128, 256)  # ends of the parts of a sequence that both programs look at as a whole
pytestmark = needs_programs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Arm -> the folder of its run, and the one held-out sequence of all."""
    folder = tmp_path_factory.mktemp("trained")
    # Drawn words: an edit of the project's own pages must not train another model.
    draw = random.Random(20)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(60)]
    text = " ".join(draw.choices(words, k=4000))
    (folder / "text.txt").write_text(text[:-CONTEXT - 1])
    # A document of one byte more than the context is cut in one way alone.
    (folder / "held_out.txt").write_text(text[-CONTEXT - 1:])

    def train(arm, *options, steps=40):
        subprocess.run(
            [BIN / "msa-pretrain", folder / "text.txt", "--held-out-text", folder / "held_out.txt",
             "--out", folder / arm, "--context", str(CONTEXT), "--block-size", str(BLOCK), "--top-k",
             str(TOP_K), "--steps", str(steps), "--warmup-steps", str(steps // 4), "--sequences", "2",
             "--lr-warmup", str(steps // 2), "--eval-sequences", "1", "--eval-exercises", "0", "--probe-every",
             "0", "--threads", "1", *options], check=True, capture_output=True)
        return folder / arm / "checkpoint.h5"

    return folder, train


def bits_of(results):
    """Bits of each part of the sequence by msa-pretrain."""
    with h5py.File(results) as file:
        assert tuple(file["text/end"][:3]) == COMPLETE
        return file["text/bits_per_byte"][:3]


@pytest.mark.parametrize("arm, options, config", [
    ("full", ["--attention", "full"], "dense"),
    ("msa", ["--rotary-dim", "4", "--index-rotary", "12"], f"index@{TOP_K * BLOCK}")])
def test_a_trained_model_has_the_loss_of_its_training_program(trained, tmp_path, arm, options,
                                                              config):
    folder, train = trained
    checkpoint = train(arm, *options)
    assert convert(["convert", str(checkpoint), "--out", str(tmp_path / "model")]) == 0
    with_indexer = ["--indexer", str(tmp_path / "model")] if arm == "msa" else []
    assert (tmp_path / "model/results.h5").exists() == (arm == "msa")
    assert evaluate([str(tmp_path / "model"), "--text", str(folder / "held_out.txt"), "--bytes",
                     "--out", str(tmp_path / "out"), "--context", str(CONTEXT), "--block-size",
                     str(BLOCK), "--top-k", str(TOP_K), "--tasks", "", *with_indexer]) == 0
    with h5py.File(tmp_path / "out/results.h5") as file:
        configs = file["configs"].asstr()[()].tolist()
        bits = file["evaluate/text/nats"][()] / np.log(2)
        position = file["evaluate/text/position"][()]
    found = np.array([[row[(position >= begin) & (position < end)].mean()
                       for begin, end in zip((0, *COMPLETE), COMPLETE)] for row in bits])
    expected = bits_of(folder / arm / "results.h5")
    # Of losses of a few bits, the roundings of two implementations in single precision.
    np.testing.assert_allclose(found[configs.index(config)], expected, rtol=0, atol=2e-5)
    other = f"mean-key@{TOP_K * BLOCK}"
    assert np.abs(found[configs.index(other)] - expected).max() > 1e-3  # what the bound must catch


def test_what_transformers_has_no_words_for_is_refused(trained, tmp_path, capsys):
    _, train = trained
    for arm, options, said in (("sink", ["--sink"], "trained with --sink"),
                               ("window", ["--attention", "window"], "--attention is window"),
                               ("lm", ["--signals", "lm"], "--signals is lm, must be kl")):
        checkpoint = train(arm, *options, steps=2)
        assert convert(["convert", str(checkpoint), "--out", str(tmp_path / arm)]) == 2
        assert f"{checkpoint}: " in (error := capsys.readouterr().err) and said in error
        assert not (tmp_path / arm).exists()
    results = str(checkpoint.with_name("results.h5"))
    assert convert(["convert", results, "--out", str(tmp_path / "none")]) == 2
    assert "has no weights" in capsys.readouterr().err
    checkpoint = train("few", "--attention", "full", steps=2)
    again = ["convert", str(checkpoint), "--out", str(tmp_path / "model")]
    assert convert([*again, "--layers", "1"]) == 2
    assert "--layers has no effect" in capsys.readouterr().err
    assert [convert(again), convert(again), convert([*again, "--overwrite"])] == [0, 2, 0]
    assert "exists; --overwrite replaces it" in capsys.readouterr().err
    assert json.loads((tmp_path / "model/config.json").read_text())["vocab_size"] == 256
