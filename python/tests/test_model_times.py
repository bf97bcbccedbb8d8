# SPDX-License-Identifier: MIT
"""bench/time_model.py with tiny models on the CPU: every arm is measured, or says why not."""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from msalab import results

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
pytest.importorskip("transformers", reason="transformers is not installed: requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")


@pytest.fixture
def times(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    path = Path(__file__).parents[2] / "bench/time_model.py"
    spec = importlib.util.spec_from_file_location("time_model", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "time_model", module)  # where some versions of the compiler look it up
    spec.loader.exec_module(module)
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="eager"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return module


def test_every_arm_has_its_time_or_its_error(times, tmp_path, capsys):
    path, words = tmp_path / "record.json", ["--smoke", "--cases", "prefill,decode,8k,32k"]
    times.main([str(path), *words, "--arms", "flash,cudnn,msa-2"])
    times.main([str(path), *words])
    record = results.open(path)
    rows = record["measured"].records()
    measured = {(row["case"], row["arm"], row["compiled"]): row for row in rows}
    assert len(measured) == len(rows) == 2 * (4 + 4 + 5 + 5)  # none of them twice
    for (case, arm, compiled), row in measured.items():
        if arm == "cudnn" or case == "decode" and compiled:
            assert ("No viable backend" if not compiled else "") in row["error"]
        else:
            assert row["ms"] > 0 and len(row["runs_ms"].split()) == 2 and not row["error"], row
    assert len(record.run["calls"]) == 2 and record.run["cases"]["8k"]["block_size"] == 16
    assert "msa-2" in capsys.readouterr().out.split("times as fast as dense")[1]


def test_pytorchs_own_attention_gives_the_same_loss(times, monkeypatch):
    """Of all blocks; flash sums in another order."""
    losses = {}
    case = times.cases_of(times.argparse.Namespace(smoke=True, layers=2, cuda_graph=False))["8k"]
    forward = times.learners.Learner.forward
    monkeypatch.setattr(times.learners.Learner, "forward",
                        lambda self, *of: losses.setdefault(arm, forward(self, *of)))
    group = times.learners.Group("cpu")
    for arm in ("flash", "msalab-dense", f"msa-{case.context // case.block_size}", "none", "msa-1"):
        times.train_step(case, arm, False, group)()
    group.close()
    first, *others = (float(nats.detach()) for nats, _ in losses.values())
    assert others[:2] == pytest.approx([first] * 2, rel=1e-6)
    assert all(abs(other - first) > 1e-5 * first for other in others[2:])


def test_a_profile_lists_what_takes_most(times, tmp_path):
    times.main([str(tmp_path / "no.json"), "--smoke", "--cases", "prefill,decode,8k", "--arms", "msa-2", "--profile",
                str(tmp_path)])
    titles = [f"{case}-msa-2{kind}" for case in ("prefill", "decode", "8k") for kind in ("", "-compiled")]
    assert {path.name for path in tmp_path.iterdir()} == {f"{title}.txt" for title in titles}
    for title in titles:
        lines = (tmp_path / f"{title}.txt").read_text().splitlines()
        assert lines[0] == title
        if title == "decode-msa-2-compiled":
            assert len(lines) == 2 and "NotImplementedError" in lines[1]
            continue
        assert "a step takes" in lines[1] and "calls of the host" in lines[2] and len(lines) == 3 + times.SHOWN
        spent = [float(line.split()[0]) for line in lines[3:]]
        assert spent == sorted(spent, reverse=True)


def test_a_profile_has_kernels_beside_the_calls_of_the_host(times):
    """As on a GPU, of which there is none here."""
    def event(name, n, device, **more):
        return times.argparse.Namespace(key=f"{name} {n}", count=n, device_type=f"DeviceType.{device}",
                                        self_device_time_total=1e3 * n, self_cpu_time_total=2e3 * n, **more)

    kernels, calls = ([event(name, n, device) for n in (1, 3, 2)] for name, device in (("kernel", "CUDA"), ("call", "CPU")))
    shares = (3, " 50.0%"), (2, " 33.3%"), (1, " 16.7%")
    assert times.lines_of([*calls, event("note", 9, "CUDA", is_user_annotation=True), *kernels]) == [
        "its kernels: 6.0 ms", *(f"     {n}.00 ms {share}      {n} times  kernel {n}" for n, share in shares),
        "calls of the host under the profiler: 12.0 ms",
        *(f"     {2 * n}.00 ms {share}      {n} times  call {n}" for n, share in shares)]


def test_serving_has_its_times(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path, rows = tmp_path / "record.json", "(decode|prefill)/512/(1|8)/(msa|msa-static|flash)$"
    serve = importlib.import_module("time_serve")
    serve.main([str(path), "--smoke", "--rows", rows])
    rows = results.open(path)["measured"].records()
    arms = {"decode/512/1": ("msa", "msa-static", "flash"), "decode/512/8": ("msa", "flash"),
            "prefill/512/1": ("msa", "flash")}
    assert {row["row"] for row in rows} == {f"tiny-2/{work}/{arm}" for work in arms for arm in arms[work]}
    for row in rows:
        assert row["ms"] > 0 and 0 < row["floor_ms"] < row["ms"], row


def test_a_token_reads_its_experts_alone(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    serve = importlib.import_module("time_serve")
    config = SimpleNamespace(**serve.config_of("a3b-4"))
    assert config.vocab_size == 151936 * 4 // 48 // 128 * 128  # of four layers in 48
    read = {tokens: serve.share_read("layers.0.mlp.experts.down_proj", config, tokens) for tokens in (1, 8, 99)}
    assert read == {1: 8 / 128, 8: 0.5, 99: 1} and serve.share_read("layers.0.self_attn.q_proj", config, 1) == 1


def test_a_dense_prefill_in_a_graph_has_no_mask_where_it_is_called_causal(monkeypatch):
    """transformers makes one as soon as it thinks that a graph is captured, of a pass without a cache."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    serve = importlib.import_module("time_serve")
    attend, masks = torch.nn.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(serve, "captured", lambda step, ids: step)
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                        lambda *of, **how: masks.append(how.get("attn_mask")) or attend(*of, **how))
    model = serve.make_model("tiny-2", 64).float()
    model.set_attn_implementation("sdpa")
    for arm in ("flash-graph", "flash-causal"):
        serve.prefill_call(model, 64, 1, arm)()
    assert [mask is not None for mask in masks] == [True, True, False, False]


def test_steps_of_a_graph_wait_for_the_cache_and_the_token(monkeypatch):
    """As on a GPU, whose streams run at once: a large cache took longer to fill than the first step to read its token."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    serve = importlib.import_module("time_serve")
    waited, called, on = [], [], ["current"]

    @contextmanager
    def running_on(stream):
        on.append("graph's")
        yield
        on.pop()

    for name, fake in {
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "current_stream": lambda: on[-1],
            "Stream": lambda: SimpleNamespace(wait_stream=waited.append), "stream": running_on,
            "graph": lambda graph, stream: running_on(stream)}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    replay = serve.captured(lambda token: called.append((on[-1], list(waited))) or token + 1, 5)
    assert replay(None) == 6 and called == [("graph's", ["current"])] * 4
