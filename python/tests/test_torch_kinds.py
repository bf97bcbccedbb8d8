# SPDX-License-Identifier: MIT
"""Tensors that are not what lies in their memory (negated on reading, wrapped by a transform, with a
tangent, quantised, nested, of a subclass): every operation is right on them, or refuses them."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msalab._msalab")

import msalab  # noqa: E402
import msalab.torch as m  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

N, HQ, HKV, DH, DIDX, BK, K = 61, 4, 2, 16, 16, 8, 3


@pytest.fixture
def data():
    torch.manual_seed(5)
    found = {name: torch.randn(shape) for name, shape in {
        "q": (N, HQ, DH), "k": (N, HKV, DH), "v": (N, HKV, DH), "sinks": (HQ,),
        "index_q": (N, HKV, DIDX), "index_k": (N, DIDX), "d_out": (N, HQ, DH)}.items()}
    found["ids"] = m.msa_index_select(found["index_q"], found["index_k"], K, block_size=BK)
    found["scores"] = m.msa_proxy_score(found["index_q"], found["index_k"], block_size=BK)
    found["out"], found["lse"] = m.dense_attention(*(found[name] for name in "qkv"),
                                                   sinks=found["sinks"], return_softmax_lse=True)
    found["last_q"], found["last_ids"] = found["q"][-1:].clone(), found["ids"][-1:].clone()
    return found


AT = {"block_size": BK}
NO_MEMORY = "is a tensor without memory of its own, must be a dense array or tensor"
# name -> (its operands, the call with them); of either module `ops`, msalab or msalab.torch.
CALLS = {
    "dense_attention": (("q", "k", "v", "sinks"), lambda ops, q, k, v, sinks:
                        ops.dense_attention(q, k, v, sinks=sinks)),
    "sparse_attention": (("q", "k", "v", "ids", "sinks"), lambda ops, q, k, v, ids, sinks:
                         ops.msa_sparse_attention(q, k, v, ids, sinks=sinks, **AT)),
    "decode": (("last_q", "k", "v", "last_ids"), lambda ops, *operands:
               ops.msa_sparse_decode_attention(*operands, **AT)),
    "index_kl": (("q", "k", "index_q", "index_k", "ids"), lambda ops, *operands:
                 ops.msa_index_kl(*operands, **AT)),
    "index_select": (("index_q", "index_k"), lambda ops, *operands:
                     ops.msa_index_select(*operands, K, **AT)),
    "index_scores": (("index_q", "index_k"), lambda ops, *operands:
                     ops.msa_proxy_score(*operands, **AT)),
    "select_blocks": (("scores",), lambda ops, scores: ops.msa_topk_select(scores, K, **AT)),
    "block_mass": (("q", "k", "sinks"), lambda ops, q, k, sinks:
                   ops.msa_block_mass(q, k, sinks=sinks, **AT))}
DIFFERENTIABLE = {"dense_attention": "q", "sparse_attention": "v", "decode": "k",
                  "index_kl": "index_q"}
GRADIENTS = {"dense_attention_grad": (("q", "k", "v", "out", "lse", "d_out", "sinks"),
                                      lambda ops, *operands: ops.dense_attention_grad(
                                          *operands[:6], sinks=operands[6]))}
EVERYWHERE = [(ops, name) for ops in (m, msalab) for name in CALLS]
EACH = pytest.mark.parametrize("ops, name", [*EVERYWHERE, *((msalab, name) for name in GRADIENTS)],
                               ids=lambda value: getattr(value, "__name__", value))


def call(ops, name, data, **changed):
    operands, function = (CALLS | GRADIENTS)[name]
    return function(ops, *({**data, **changed}[operand] for operand in operands))


def equal(found, expected):
    if isinstance(expected, tuple):
        assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    else:
        assert torch.equal(found, expected)


def floats_of(name, data):
    return [operand for operand in (CALLS | GRADIENTS)[name][0]
            if data[operand].dtype == torch.float32]


def negated(tensor):
    """The same values, as the imaginary part of a conjugate: with a negative bit."""
    found = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    if not found.is_contiguous():  # PyTorch's own way to a contiguous one
        found = torch._neg_view(-tensor)
    assert found.is_neg() and torch.equal(found, tensor)
    return found


@EACH
def test_a_negative_bit_is_minded(data, ops, name):
    expected = call(ops, name, data)
    for operand in floats_of(name, data):
        equal(call(ops, name, data, **{operand: negated(data[operand])}), expected)


@pytest.mark.parametrize("name", ["dense_attention", "sparse_attention"])
def test_a_gradient_with_a_negative_bit_is_minded(data, name):
    leaves = {side: data[side].clone().requires_grad_() for side in "qkv"}
    out = call(m, name, data, **leaves)
    expected = torch.autograd.grad(out, list(leaves.values()), data["d_out"], retain_graph=True)
    equal(torch.autograd.grad(out, list(leaves.values()), negated(data["d_out"])), expected)


@EACH
def test_conjugate_and_complex_operands_are_refused(data, ops, name):
    for operand in floats_of(name, data):
        value = torch.complex(data[operand], data[operand]).conj()
        with pytest.raises(ValueError, match="complex64"):
            call(ops, name, data, **{operand: value})


@EACH
def test_zeros_without_memory_are_refused_or_zeros(data, ops, name):
    for operand in floats_of(name, data):
        zeros = torch.zeros_like(data[operand])
        empty = torch._efficientzerotensor(zeros.shape)
        try:
            found = call(ops, name, data, **{operand: empty})
        except ValueError as error:
            assert NO_MEMORY in str(error)
        else:
            equal(found, call(ops, name, data, **{operand: zeros}))


@EACH
def test_quantised_and_nested_tensors_are_refused(data, ops, name):
    for operand in floats_of(name, data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantised = torch.quantize_per_tensor(data[operand], 0.1, 0, torch.qint32)
            nested = [torch.nested.nested_tensor([data[operand]], layout=layout)
                      for layout in (torch.strided, torch.jagged)]
        with pytest.raises(ValueError, match="qint32"):
            call(ops, name, data, **{operand: quantised})
        for tensor in nested:
            with pytest.raises(ValueError, match="nested"):
                call(ops, name, data, **{operand: tensor})


class Named(torch.Tensor):
    """A subclass that changes nothing."""


class Wrapper(torch.Tensor):
    """A subclass whose values lie elsewhere, as those of quantised and distributed tensors."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = torch.utils._pytree.tree_map(
            lambda a: a.inner if isinstance(a, Wrapper) else a, (args, kwargs or {}))
        return function(*plain[0], **plain[1])


@EACH
def test_subclasses_are_seen(data, ops, name):
    expected = call(ops, name, data)
    for operand in floats_of(name, data):
        equal(call(ops, name, data, **{operand: data[operand].as_subclass(Named)}), expected)
        try:
            found = call(ops, name, data, **{operand: Wrapper(data[operand])})
        except ValueError as error:
            assert NO_MEMORY in str(error)
        else:
            equal(found, expected)


@EACH
def test_fake_tensors_are_refused_by_operations_on_arrays(data, ops, name):
    expected = call(ops, name, data)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {operand: mode.from_tensor(tensor) for operand, tensor in data.items()}
        if ops is msalab:
            with pytest.raises(ValueError, match=NO_MEMORY):
                call(ops, name, fakes)
        else:
            found = call(ops, name, fakes)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_mode_is_refused(data, name):
    operand = DIFFERENTIABLE[name]
    value, tangent = data[operand], torch.ones_like(data[operand])
    refusal = pytest.raises(ValueError, match="has no derivative in forward mode")
    with forward_ad.dual_level():
        call(m, name, data)
        for dual in (forward_ad.make_dual(value, tangent),
                     forward_ad.make_dual(value.clone().requires_grad_(), tangent)):
            with refusal:
                call(m, name, data, **{operand: dual})
    with refusal:
        torch.func.jvp(lambda x: call(m, name, data, **{operand: x}), (value,), (tangent,))
    with refusal:
        torch.func.jacfwd(lambda x: call(m, name, data, **{operand: x}))(value)
    with refusal:
        torch.func.hessian(lambda x: call(m, name, data, **{operand: x}).sum())(value)


def test_operators_refuse_dual_tensors(data):
    q, k, v = (data[name] for name in "qkv")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v, torch.ones_like(v))
        with pytest.raises(ValueError, match="dense_attention has no derivative in forward mode"):
            torch.ops.msalab.dense_attention(q, k, dual, *(None,) * 6)


@pytest.mark.parametrize("name", ["index_select", "index_scores", "select_blocks", "block_mass"])
def test_what_has_no_gradient_has_no_tangent(data, name):
    """As autograd has none: a constant."""
    operand = CALLS[name][0][0]
    value = data[operand]
    found, tangent = torch.func.jvp(lambda x: call(m, name, data, **{operand: x}), (value,),
                                    (torch.ones_like(value),))
    equal(found, call(m, name, data))
    assert not tangent.any()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_transforms_have_autograds_gradient(data, name):
    operand = DIFFERENTIABLE[name]
    value = data[operand].clone().requires_grad_()

    def loss(x):
        return (call(m, name, data, **{operand: x}) ** 2).sum()

    expected, = torch.autograd.grad(loss(value), value)
    assert expected.any()
    value = value.detach()
    equal(torch.func.grad(loss)(value), expected)
    found, pull = torch.func.vjp(loss, value)
    equal(found, loss(value))
    equal(pull(torch.ones(()))[0], expected)
    many = torch.stack([value, 2 * value])
    equal(torch.func.vmap(torch.func.grad(loss))(many)[0], expected)
    equal(torch.func.vmap(loss)(many)[1], loss(2 * value))
    equal(torch.func.jacrev(loss)(value), expected)


def test_transforms_reach_modules(data):
    from msalab.nn import MSAttention

    attention = MSAttention(32, HQ, HKV, DH, index_dim=DIDX, block_size=BK, top_k=K)
    x = torch.randn(N, 32)

    def loss(parameters):
        y, kl = torch.func.functional_call(attention, parameters, (x,))
        return y.square().sum() + kl

    parameters = dict(attention.named_parameters())
    found = torch.func.grad(loss)({name: value.detach() for name, value in parameters.items()})
    loss(parameters).backward()
    for name, value in parameters.items():
        torch.testing.assert_close(found[name], value.grad, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_operations_on_arrays_refuse_what_a_transform_has_wrapped(data, name):
    operand = floats_of(name, data)[0]
    value = data[operand]
    for transform in (torch.func.vmap(lambda x: call(msalab, name, data, **{operand: x})),
                      torch.func.functionalize(lambda x: call(msalab, name, data,
                                                              **{operand: x[0]}))):
        with pytest.raises(ValueError, match=NO_MEMORY):
            transform(value[None])
