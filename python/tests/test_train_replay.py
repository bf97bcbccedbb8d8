# SPDX-License-Identifier: MIT
"""Passes that a CUDA graph takes: the bytes of a run without one. On the CPU a graph's replay computes again."""

import json
from types import SimpleNamespace

import pytest
from test_train import kept, make_model, needs_gpu, tiny, torch, train, weights_of  # noqa: F401

from msalab.training import attention as attentions
from msalab.training import learner, replay, run

HOW = ["--steps", 14, "--warmup-steps", 5, "--log-every", 1, "--deterministic"]


def assert_same_bytes(one, other):
    assert kept(one) == kept(other)
    for name, value in weights_of(one / "model").items():
        assert value.tobytes() == weights_of(other / "model")[name].tobytes(), name


def captured(self, cu, of, inputs, weights):
    """As Passes._captured, whose graph calculates what its inputs hold by then."""
    inputs = [one.clone() for one in inputs]
    nats = self._run(cu, False, *inputs)
    kls = [(layer, layer.kl.detach().clone()) for layer in self.attention.layers]
    gradients = [(one, one.grad) for one in weights if one.grad is not None]

    def replay_():
        before = [one.grad for one in weights]
        self.learner.zero_grad()
        with torch.enable_grad():
            nats.copy_(self._run(cu, False, *inputs))
        for layer, kl in kls:
            kl.copy_(layer.kl.detach())
            layer.kl = None
        for weight, gradient in gradients:
            gradient.copy_(weight.grad)
        for weight, gradient in zip(weights, before):
            weight.grad = gradient

    replayed.append(of)
    return replay.Graph(of, SimpleNamespace(replay=replay_), inputs, nats, kls, gradients)


replayed: list = []


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    replayed.clear()
    monkeypatch.setattr(replay, "_has_room", lambda: True)
    monkeypatch.setattr(replay.Passes, "_run_aside", lambda self, cu, *inputs: self._run(cu, False, *inputs))
    monkeypatch.setattr(replay.Passes, "_captured", captured)
    monkeypatch.setattr(run, "why_no_graph", lambda *_: None)


@pytest.mark.parametrize("rows", [["--batch", 1], ["--batch", 3, "--probe-every", 4]])
def test_graphs_of_what_repeats_leave_the_bytes_as_they_are(tiny, tmp_path, as_on_a_gpu, rows):  # noqa: F811
    assert train(tiny, tmp_path / "without", *HOW, *rows) == 0
    assert not replayed
    assert train(tiny, tmp_path / "with", *HOW, *rows, "--cuda-graph") == 0
    assert_same_bytes(tmp_path / "with", tmp_path / "without")
    assert {warming for _, warming in replayed} <= {True, False} and replayed
    assert all(cu == (0, 64) for cu, _ in replayed)
    told = [json.loads((tmp_path / name / "run.json").read_text())["options"]["cuda_graph"] for name in ("with", "without")]
    assert told == [True, False]


def test_what_cannot_be_captured_runs_without(tiny, tmp_path, as_on_a_gpu, monkeypatch, capsys):  # noqa: F811
    def refused(self, cu, of, inputs, weights):
        self._run(cu, False, *inputs)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    assert train(tiny, tmp_path / "without", *HOW) == 0
    monkeypatch.setattr(replay.Passes, "_captured", refused)
    assert train(tiny, tmp_path / "with", *HOW, "--batch", 2, "--rows", 1, "--cuda-graph") == 0
    assert_same_bytes(tmp_path / "with", tmp_path / "without")
    assert capsys.readouterr().err.count("note: no CUDA graph takes the passes: CUDA error: operation not permitted "
                                         "when stream is capturing\n") == 1


def test_who_gets_a_graph():
    def why_not(kind="msa", device="cuda", compiled=True, keeps=True, **sizes):
        made = learner.Learner(make_model(**sizes), attentions.Attention(kind, None, frozenset(), True, keeps=keeps))
        return replay.why_no_graph(made, torch.device(device), compiled)

    assert why_not() is None and why_not("dense") is None
    assert "device is cpu" in why_not(device="cpu")
    assert "--compile" in why_not(compiled=False)
    assert "--checkpointing" in why_not(keeps=False)
    assert "--attention oracle" in why_not("oracle")
    made = learner.Learner(make_model(), attentions.Attention("msa", None, frozenset(), True))
    made.model.model.layers[0].drop = torch.nn.Dropout(0.1)
    assert "(Dropout)" in replay.why_no_graph(made, torch.device("cuda"), True)


@needs_gpu
@pytest.mark.parametrize("rows", [["--batch", 1], ["--batch", 3]])
def test_on_a_gpu_the_bytes_are_those_without_a_graph(tiny, tmp_path, monkeypatch, capsys, rows):  # noqa: F811
    how, replays = [*HOW, *rows, "--device", "cuda", "--compile"], []
    inside = replay.Graph.__call__
    monkeypatch.setattr(replay.Graph, "__call__", lambda self, *of: replays.append(self.of) or inside(self, *of))
    assert train(tiny, tmp_path / "with", *how, "--cuda-graph") == 0
    assert "no CUDA graph" not in capsys.readouterr().err
    assert {warming for _, warming in replays} == {True, False}
    torch._dynamo.reset()
    assert train(tiny, tmp_path / "without", *how) == 0
    assert_same_bytes(tmp_path / "with", tmp_path / "without")


def test_a_graph_that_cannot_be_is_refused(tiny, tmp_path, capsys):  # noqa: F811
    assert train(tiny, tmp_path / "out", *HOW, "--cuda-graph") == 2
    assert "--cuda-graph: it is for a GPU, and the device is cpu" in capsys.readouterr().err
