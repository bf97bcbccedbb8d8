# SPDX-License-Identifier: MIT
"""msalab train --compile: the numbers of the eager run, and one compilation for all layers."""

import json
from argparse import Namespace

import pytest
from test_train import (BLOCK, CONTEXT, IN_ANOTHER_ORDER, TOP_K, kept, make_model, start, tiny, torch,  # noqa: F401
                        train, values_of, weights_of)
from torch._dynamo.utils import counters

from msalab.selectors import Rule
from msalab.training import attention as attentions
from msalab.training import learner

HOW = ["--lr", 1e-3, "--index-lr", 1e-3, "--log-every", 1]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    counters.clear()


def graphs():
    return counters["stats"]["unique_graphs"]


def assert_alike(one, other):
    for name, part in (("loss", ""), ("kl_loss", "0"), ("gradient_norm", ""), ("index_gradient_norm", "")):
        bound = IN_ANOTHER_ORDER["float32"] * (1 if name == "loss" else 10)
        assert values_of(one, name, part) == pytest.approx(values_of(other, name, part), rel=bound), name


# Inductor takes half a minute of a core for each kind of pass, whose kernels are PyTorch's affair: one kind is compiled
# with it, all of them without kernels.
@pytest.mark.parametrize("backend, words", [("inductor", ["--warmup-steps", 0]),
                                            ("aot_eager", ["--warmup-steps", 1, "--probe-every", 2])])
def test_the_curves_are_those_of_the_eager_run(tiny, tmp_path, monkeypatch, backend, words):  # noqa: F811
    how, compiler = [*HOW, "--steps", 3, *words], torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend=backend))
    assert train(tiny, tmp_path / "eager", *how) == 0
    assert graphs() == 0
    assert train(tiny, tmp_path / "compiled", *how, "--compile") == 0
    assert graphs() > 0
    assert_alike(tmp_path / "compiled", tmp_path / "eager")


BY_PYTORCH = """
import torch
compiler = torch.compile
torch.compile = lambda function: compiler(function, backend="aot_eager")  # compiles no kernels
from msalab.training.__main__ import main
code = main()
from msalab.ending import leave
from torch._dynamo.utils import counters
leave(code or not counters["stats"]["unique_graphs"])
"""


@pytest.mark.parametrize("processes, words", [(1, ["--checkpointing"]), (2, [])])
def test_with_checkpointing_and_in_two_processes_too(tiny, tmp_path, processes, words):  # noqa: F811
    how = [*HOW, "--steps", 3, "--warmup-steps", 1]
    assert train(tiny, tmp_path / "eager", *how) == 0
    (tmp_path / "train.py").write_text(BY_PYTORCH)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
              str(tmp_path / "train.py")]
    code, errors = start(launch, tiny, tmp_path / "compiled", *how, "--compile", *words)
    assert code == 0, errors
    assert_alike(tmp_path / "compiled", tmp_path / "eager")


def test_resumed_it_writes_the_same_bytes(tiny, tmp_path, capsys, monkeypatch):  # noqa: F811
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="aot_eager"))
    how = [*HOW, "--steps", 4, "--warmup-steps", 2, "--deterministic", "--compile"]
    assert train(tiny, tmp_path / "whole", *how) == 0
    assert train(tiny, tmp_path / "parts", *how, "--seconds", 0) == 130
    torch._dynamo.reset()
    assert train(tiny, tmp_path / "parts", *how, "--resume") == 0
    assert kept(tmp_path / "parts") == kept(tmp_path / "whole")
    for name, one in weights_of(tmp_path / "whole/model").items():
        assert one.tobytes() == weights_of(tmp_path / "parts/model")[name].tobytes()
    assert json.loads((tmp_path / "whole/run.json").read_text())["options"]["compile"] is True
    assert train(tiny, tmp_path / "whole", *how[:-1], "--resume") == 2
    assert "options compile was True, is False" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--attention", "msa", "--warmup-steps", 2], ["--attention", "dense"],
                                   ["--attention", "msa", "--warmup-steps", 2, "--checkpointing"]])
def test_all_layers_share_the_compiled_graphs(tiny, tmp_path, monkeypatch, words):  # noqa: F811
    """With as many layers as would pass the limit of compilations of one function, if each took its own."""
    compiler, found = torch.compile, {}
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="eager"))
    for layers in (2, torch._dynamo.config.recompile_limit + 1):
        torch._dynamo.reset()
        counters.clear()
        make_model(num_hidden_layers=layers).save_pretrained(tiny / f"of-{layers}")
        assert train(tiny, tmp_path / f"of-{layers}", *HOW, "--compile", "--steps", 6, *words,
                     model=f"of-{layers}") == 0
        found[layers] = graphs()
        if "--checkpointing" not in words:  # attention and its Index Branch are in them
            assert not counters["graph_break"]
    two, many = found.values()
    assert two == many > 0


def test_beside_a_kl_aside_no_memory_is_used_again():
    """The Index Branch is as wide as the model here: what lies behind it would be written over its queries."""
    from torch._inductor.utils import run_and_get_code

    def reuses(aside):
        torch._dynamo.reset()
        options, model = Namespace(attention="msa", dense_layers=[], indexer=None, index_dim=16, index_rotary=None,
                                   index_norm="rms", seed=0), make_model()
        modules, windows, selecting = attentions.trainable(model, options)
        branches = {number: attentions.branch_of(form)
                    for number, form in attentions.forms_of(model, selecting, options).items()}
        attention = attentions.Attention("msa", Rule(BLOCK, TOP_K), frozenset(), True)
        attentions.attach(modules, windows, model, attention, branches)
        one, tokens, positions = learner.Learner(model, attention), torch.arange(CONTEXT), torch.arange(CONTEXT)
        learner.compile_parts(one, aside)

        def passed():
            attention.begin([0, CONTEXT], positions, False)
            nats, kl = one(tokens, positions, tokens.roll(-1))
            (nats / CONTEXT + kl).backward()
        with torch._inductor.config.patch(force_disable_caches=True):
            _, codes = run_and_get_code(passed)
        of_layers = [code for code in codes if "index_kl" in code]
        assert of_layers
        return any("# reuse" in code for code in of_layers)

    assert reuses(False) and not reuses(True)
