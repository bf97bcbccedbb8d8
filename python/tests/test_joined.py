# SPDX-License-Identifier: MIT
"""Joined products of a served model: one in the place of five, with the model's own weights, whatever becomes of these."""

import copy

import pytest
from test_kv_cache import (GREEDY, HALF, PROMPT, SIZES, after, assert_close, cached, configured, indexer,  # noqa: F401
                           logits_of, model_of, mt, tokens_of, torch, transformers)
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm")


class Products(TorchDispatchMode):
    """Those of matrices, by the columns of their results."""

    def __init__(self):
        super().__init__()
        self.columns = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in PRODUCTS:
            self.columns.append(found.shape[-1])
        return found


def columns_of(model, cache):
    with Products() as counted:
        after(model, cache, tokens_of(1))
    return counted.columns


def qwen():
    torch.manual_seed(5)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES))
    for name, one in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(one)
    return model.to(tokens_of().device).eval()


@pytest.mark.parametrize("make", [model_of, qwen])
def test_five_products_are_one(indexer, make):  # noqa: F811
    model = configured(indexer, model=make())
    own = logits_of(model, tokens_of())
    before = [one.data_ptr() for one in model.parameters()]
    cache = cached(model, tokens_of()[:, :-1])
    sizes = model.model.layers[0].self_attn._msalab.joined.sizes
    assert len(sizes) == 4 and columns_of(model, copy.deepcopy(cache)).count(sum(sizes)) == SIZES["num_hidden_layers"]
    assert not set(sizes) & set(columns_of(model, copy.deepcopy(cache))) - {model.config.hidden_size}
    assert_close(after(model, cache, tokens_of()[:, -1:]), own[:, -1:])
    attention = model.model.layers[0].self_attn  # held once: as parts of one tensor
    assert attention.q_proj.weight.data_ptr() not in before
    assert {one.untyped_storage().data_ptr() for one in (attention.q_proj.weight, attention.k_proj.weight)} == {
        attention._msalab.joined.weight.untyped_storage().data_ptr()}


def test_in_a_graph_too(indexer):  # noqa: F811
    model, found = configured(indexer), []
    cache = cached(model, tokens_of()[:, :-1], max_cache_len=PROMPT)

    def backend(graph, _):
        found.extend(node for node in graph.graph.nodes if "linear" in str(node.target))
        return graph.forward
    call = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    own = logits_of(model, tokens_of())[:, -1:]
    assert_close(after(model, cache, tokens_of()[:, -1:], call), own)
    assert len(found) == 5 * SIZES["num_hidden_layers"] + 1  # joined, output, three of the MLP; head


@pytest.mark.parametrize("change", ["in place", "assigned", "loaded", "another type"])
def test_weights_that_change_are_the_ones_that_are_read(indexer, change):  # noqa: F811
    model, other = configured(indexer), model_of(6)
    first = model.generate(tokens_of(), **GREEDY)
    held = mt.Cache(model)
    with torch.no_grad():
        for one, new in zip(model.parameters(), other.parameters(), strict=True):
            if change == "in place":
                one.copy_(new)
            elif change == "assigned":
                one.data = new.data.clone()
        if change == "loaded":
            model.load_state_dict(other.state_dict())
        elif change == "another type":
            model.to(HALF)
            cache = cached(model, tokens_of()[:, :9])
            assert model.model.layers[0].self_attn._msalab.joined.weight.dtype is HALF and cache.get_seq_length() == 9
            return
    after(model, held, tokens_of()[:, :-1])
    configured(indexer, model=other)
    assert_close(after(model, held, tokens_of()[:, -1:]), logits_of(other, tokens_of())[:, -1:])
    found = model.generate(tokens_of(), **GREEDY)
    assert torch.equal(found, other.generate(tokens_of(), **GREEDY)) and not torch.equal(found, first)


def test_a_folder_and_a_copy_have_the_model_s_weights(indexer, tmp_path):  # noqa: F811
    model = configured(indexer)
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    own = model.generate(tokens_of(), **GREEDY)
    model.save_pretrained(tmp_path / "model")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    twin = copy.deepcopy(model)
    for found in (model, read, twin):
        assert found.state_dict().keys() == weights.keys()
        assert all(torch.equal(one.to(weights[name].device), weights[name]) for name, one in found.state_dict().items())
    with torch.no_grad():
        for one in twin.parameters():
            one.mul_(0.5)
    twin.generate(tokens_of(), **GREEDY)
    assert torch.equal(model.generate(tokens_of(), **GREEDY), own)


def test_a_projection_of_another_kind_is_left_alone(indexer):  # noqa: F811
    """As an adapter's, whose part of the product nobody knows."""
    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) * 2
    model = configured(indexer)
    attention = model.model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    own = logits_of(model, tokens_of())[:, -1:]
    cache = cached(model, tokens_of()[:, :-1])
    assert attention._msalab.joined is None and model.model.layers[0].self_attn._msalab.joined is not None
    assert_close(after(model, cache, tokens_of()[:, -1:]), own)
    plain = configured(indexer)  # wrapped after it was joined
    cached(plain, tokens_of())
    attention = plain.model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    assert_close(after(plain, cached(plain, tokens_of()[:, :-1]), tokens_of()[:, -1:]), own)


def test_a_projection_of_another_input_makes_its_own_product(indexer):  # noqa: F811
    model = configured(indexer)
    attention = model.model.layers[0].self_attn
    cached(model, tokens_of())
    x = torch.randn(1, 3, SIZES["hidden_size"], device=tokens_of().device)
    attention._msalab.joined.begin(x)
    with torch.no_grad():
        assert torch.equal(attention.q_proj(x + 1), torch.nn.functional.linear(x + 1, attention.q_proj.weight))
        assert torch.equal(attention.k_proj(x), attention._msalab.joined.made[1])


def test_gradients_are_those_of_the_projections(indexer):  # noqa: F811
    model, twin = configured(indexer), configured(indexer)
    model.generate(tokens_of(), **GREEDY)
    for one in (model, twin):
        one(tokens_of(), use_cache=False).logits.square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6), name
