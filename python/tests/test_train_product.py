# SPDX-License-Identifier: MIT
"""Projections of a layer and of its Index Branch as one product: the numbers of separate ones."""

from argparse import Namespace

import pytest
from test_train import BLOCK, CONTEXT, IN_ANOTHER_ORDER, TOP_K, make_model, torch
from torch._dynamo.utils import counters

from msalab.selectors import Rule
from msalab.training import attention as attentions
from msalab.training import learner
from msalab.training.product import Part

OPTIONS = Namespace(attention="msa", dense_layers=[], indexer=None, index_dim=16, index_rotary=None, index_norm="rms",
                    seed=0)
ENDS = [0, 40, CONTEXT]


def made(joins, detach=True, warming=False, **sizes):
    model = make_model(**sizes)
    modules, windows, selecting = attentions.trainable(model, OPTIONS)
    forms = attentions.forms_of(model, selecting, OPTIONS)
    branches = {number: attentions.branch_of(form) for number, form in forms.items()}
    attention = attentions.Attention("msa", Rule(BLOCK, TOP_K), frozenset(), detach, warming, joins=joins)
    attentions.attach(modules, windows, model, attention, branches)
    return learner.Learner(model, attention)


def passed(one):
    """Loss, KL and gradients."""
    torch.manual_seed(1)
    tokens = torch.randint(256, (CONTEXT,))
    positions = torch.cat([torch.arange(end - begin) for begin, end in zip(ENDS, ENDS[1:])])
    one.zero_grad()
    one.attention.begin(ENDS, positions, False)
    nats, kl = one(tokens, positions, tokens.roll(-1))
    (kl if one.attention.warming else nats / CONTEXT + kl).backward()
    gradients = {name: of.grad for name, of in one.named_parameters() if of.grad is not None}
    return float(nats.detach()), float(kl.detach()), gradients


def assert_alike(one, other):
    bound = IN_ANOTHER_ORDER["float32"]
    assert one[:2] == pytest.approx(other[:2], rel=bound)
    assert one[2].keys() == other[2].keys()
    for name, gradient in one[2].items():
        assert (gradient - other[2][name]).norm() <= 10 * bound * gradient.norm(), name


@pytest.mark.parametrize("how", [{}, {"detach": False}, {"warming": True}, {"attention_bias": True}])
def test_one_product_gives_the_numbers_of_several(how):
    one = made(True, **how)
    has_parts = not how.get("attention_bias", False)
    assert sum(isinstance(module, Part) for module in one.modules()) == 6 * has_parts
    assert_alike(passed(one), passed(made(False, **how)))
    for number in range(2):  # nothing is left for the next micro-batch
        assert one.attention.layers[number].made is None
    assert all(module.made is None for module in one.modules() if isinstance(module, Part))


def test_layers_share_their_graphs(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="aot_eager"))  # no kernels
    sizes = {"num_hidden_layers": 5}
    one = made(True, **sizes)
    learner.compile_parts(one)
    assert_alike(passed(one), passed(made(False, **sizes)))
    assert counters["stats"]["unique_graphs"] == 2  # of the layers and of the loss


def test_beside_a_kl_aside_no_memory_is_used_again():
    """The Index Branch is as wide as the model here: what lies behind it would be written over its queries."""
    from torch._inductor.utils import run_and_get_code

    def reuses(aside):
        torch._dynamo.reset()
        one = made(False)
        learner.compile_parts(one, aside)
        with torch._inductor.config.patch(force_disable_caches=True):
            _, codes = run_and_get_code(lambda: passed(one))
        of_layers = [code for code in codes if "index_kl" in code]
        assert of_layers
        return any("# reuse" in code for code in of_layers)

    assert reuses(False) and not reuses(True)
