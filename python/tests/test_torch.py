# SPDX-License-Identifier: MIT
"""The operators of PyTorch: autograd against a masked softmax written with torch's own operations,
torch.library's own checks, and torch.compile."""

import inspect

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msalab._msalab")

import msalab  # noqa: E402
import msalab.torch as m  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

HQ, HKV, DH, DIDX, BK, K = 4, 2, 16, 16, 8, 3
CU = [0, 20, 61]


def dot(found, expected):
    torch.testing.assert_close(found, expected, rtol=3e-5, atol=3e-5)


@pytest.fixture
def data():
    torch.manual_seed(5)
    n = CU[-1]
    return {name: torch.randn(shape, requires_grad=True) for name, shape in {
        "q": (n, HQ, DH), "k": (n, HKV, DH), "v": (n, HKV, DH), "sinks": (HQ,),
        "index_q": (n, HKV, DIDX), "index_k": (n, DIDX)}.items()}


def support(ids=None):
    """[N, N, Hkv]: which keys each query and group attends to."""
    n = CU[-1]
    sequence = torch.bucketize(torch.arange(n), torch.tensor(CU[1:]), right=True)
    position = torch.arange(n) - torch.tensor(CU)[sequence]
    seen = (sequence[:, None] == sequence) & (position[:, None] >= position)
    mask = seen[:, :, None].expand(n, n, HKV)
    if ids is None:
        return mask
    blocks = (position // BK)[None, :, None, None]
    return mask & (ids.long()[:, None] == blocks).any(-1)


def masked(q, k, v, sinks=None, ids=None):
    """out [N, Hq, dh] and probabilities [N, N, Hq] in doubles, by torch's autograd."""
    groups = torch.arange(HQ) // (HQ // HKV)
    logits = torch.einsum("ihd,jhd->ijh", q.double(), k.double()[:, groups]) / DH ** 0.5
    logits = logits.masked_fill(~support(ids)[:, :, groups], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.double().expand(len(q), 1, HQ)], 1)
    p = logits.softmax(1)[:, :len(k)]
    return torch.einsum("ijh,jhd->ihd", p, v.double()[:, groups]), p


def gradients(loss, leaves):
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_has_autograds_gradients(data, sparse, with_sinks):
    names = ["q", "k", "v"] + ["sinks"] * with_sinks
    leaves = [data[name] for name in names]
    sinks = data["sinks"] if with_sinks else None
    ids, call = None, m.dense_attention
    if sparse:
        ids = m.msa_index_select(data["index_q"], data["index_k"], K, block_size=BK,
                                 cu_seqlens_q=CU)

        def call(*qkv, **options):
            return m.msa_sparse_attention(*qkv, ids, block_size=BK, **options)
    found = call(*leaves[:3], sinks=sinks, cu_seqlens_q=CU, cu_seqlens_k=torch.tensor(CU))
    expected, _ = masked(*leaves[:3], sinks, ids)
    dot(found, expected.float())
    weights = torch.randn_like(found)
    for one, other in zip(gradients((found * weights).sum(), leaves),
                          gradients((expected * weights).sum(), leaves)):
        dot(one, other)


@pytest.mark.parametrize("full", [False, True])
def test_kl_has_autograds_gradient_and_the_teacher_none(data, full):
    leaves = [data["index_q"], data["index_k"]]
    ids = None if full else m.msa_index_select(*leaves, K, block_size=BK, cu_seqlens_q=CU)
    found = m.msa_index_kl(data["q"], data["k"], *leaves, ids, block_size=BK, cu_seqlens_q=CU)
    assert found.shape == () and found.requires_grad
    _, p = masked(data["q"], data["k"], data["v"], ids=ids)
    teacher = p.detach().reshape(*p.shape[:2], HKV, -1).mean(-1)
    logits = torch.einsum("igd,jd->ijg", *(leaf.double() for leaf in leaves)) / DIDX ** 0.5
    student = logits.masked_fill(~support(ids), -torch.inf).log_softmax(1)
    terms = torch.where(teacher > 0, teacher * (teacher.clamp_min(1e-300).log() - student), 0)
    expected = terms.sum(1).mean()
    dot(found, expected.float())
    for one, other in zip(gradients(3 * found, leaves), gradients(3 * expected, leaves)):
        dot(one, other)
    again = m.msa_index_kl(data["q"], data["k"], *leaves, ids, block_size=BK, cu_seqlens_q=CU)
    assert torch.autograd.grad(again, data["q"], allow_unused=True) == (None,)


@pytest.mark.parametrize("order", ["union", "kv_outer", "q_outer"])
def test_the_gradient_takes_a_loop_order_of_its_own(data, order, monkeypatch):
    """No backend has a gradient in every order of the forward pass (cuda has none over unions)."""
    ids = m.msa_index_select(data["index_q"], data["index_k"], K, block_size=BK)
    leaves, asked = [data[name] for name in "qkv"], []

    def watched(*arguments, **options):
        asked.append(options["order"])
        return gradient(*arguments, **options)

    gradient = msalab.operations.msa_sparse_attention_grad
    monkeypatch.setattr(m.operations, "sparse_attention_grad", watched)
    found = gradients(m.msa_sparse_attention(*leaves, ids, block_size=BK, order=order).sum(), leaves)
    expected = gradients(m.msa_sparse_attention(*leaves, ids, block_size=BK).sum(), leaves)
    assert asked == ["automatic", "automatic"]
    for one, other in zip(found, expected):
        dot(one, other)


@pytest.mark.parametrize("full", [False, True])
def test_kl_has_the_window_and_the_soft_cap_of_its_teacher(data, full):
    """The teacher's probabilities, as block_mass has them of blocks of one token each."""
    index, qk = [data["index_q"], data["index_k"]], [data[name].detach() for name in "qk"]
    ids = None if full else m.msa_index_select(*index, K, block_size=BK)
    at = {"window": 9, "softcap": 2.0}
    n = len(qk[0])
    groups = torch.arange(HQ) // (HQ // HKV)
    logits = torch.einsum("ihd,jhd->ijh", qk[0].double(), qk[1].double()[:, groups]) / DH ** 0.5
    place = torch.arange(n)
    seen = (place[:, None] >= place)[:, :, None].expand(n, n, HKV)
    if not full:
        seen = seen & (ids.long()[:, None] == (place // BK)[None, :, None, None]).any(-1)
    near = seen & (place[:, None] - place < at["window"])[:, :, None]
    capped = at["softcap"] * (logits / at["softcap"]).tanh()
    teacher = capped.masked_fill(~near[:, :, groups], -torch.inf).softmax(1).unflatten(2, (HKV, -1))
    teacher = teacher.mean(-1)
    student = torch.einsum("igd,jd->ijg", *(leaf.double() for leaf in index)) / DIDX ** 0.5
    student = student.masked_fill(~seen, -torch.inf).log_softmax(1)
    terms = torch.where(teacher > 0, teacher * (teacher.clamp_min(1e-300).log() - student), 0)
    expected = terms.sum(1).mean()
    found = m.msa_index_kl(*qk, *index, ids, block_size=BK, **at)
    dot(found, expected.float())
    for one, other in zip(gradients(found, index), gradients(expected, index)):
        dot(one, other)
    for name in at:  # each of them counts
        less = m.msa_index_kl(*qk, *index, ids, block_size=BK, **{name: at[name]})
        assert (less - found).abs() > 1e-3


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_kl_takes_what_the_forward_pass_knows(data, full, with_sinks):
    at = {"block_size": BK, "cu_seqlens_q": CU}
    index = [data["index_q"], data["index_k"]]
    qkv = [data[name].detach() for name in "qkv"]
    sinks = data["sinks"] if with_sinks else None
    ids, index_lse = m.msa_index_select(*index, K, return_index_lse=True, **at)
    assert not index_lse.requires_grad
    dot(index_lse.double(), logsumexp_on(support(ids), *index))
    if full:
        ids = index_lse = None
        _, main_lse = m.dense_attention(*qkv, sinks=sinks, return_softmax_lse=True, cu_seqlens_q=CU)
    else:
        _, main_lse = m.msa_sparse_attention(*qkv, ids, sinks=sinks, return_softmax_lse=True, **at)
    known = m.msa_index_kl(*qkv[:2], *index, ids, sinks=sinks, main_lse=main_lse,
                           index_lse=index_lse, **at)
    found = m.msa_index_kl(*qkv[:2], *index, ids, sinks=sinks, **at)
    dot(known, found)
    for one, other in zip(gradients(known, index), gradients(found, index)):
        dot(one, other)
    # It is looked at, so it is used.
    with pytest.raises(ValueError, match="main_lse"):
        m.msa_index_kl(*qkv[:2], *index, ids, sinks=sinks, main_lse=main_lse - 3, **at)


def logsumexp_on(mask, index_q, index_k):
    """[N, Hkv] in doubles, over the keys of `mask` [N, N, Hkv]."""
    logits = torch.einsum("igd,jd->ijg", index_q.double(), index_k.double()) / DIDX ** 0.5
    return logits.masked_fill(~mask, -torch.inf).logsumexp(1)


def test_numpy_and_torch_give_the_same_bits(data):
    tensors = [data[name].detach() for name in "qkv"]
    arrays = [tensor.numpy() for tensor in tensors]
    out = msalab.dense_attention(*arrays, cu_seqlens_q=CU)
    assert (msalab.dense_attention(*tensors, cu_seqlens_q=CU).numpy() == out).all()
    assert (m.dense_attention(*tensors, cu_seqlens_q=CU).numpy() == out).all()


def test_operators_pass_pytorchs_own_checks(data):
    q, k, v, sinks, index_q, index_k = data.values()
    ids, index_lse = m.msa_index_select(index_q, index_k, K, block_size=BK, cu_seqlens_q=CU,
                                        return_index_lse=True)
    _, main_lse = m.msa_sparse_attention(q, k, v, ids, block_size=BK, cu_seqlens_q=CU,
                                         return_softmax_lse=True)
    plain = (None, None, None)  # scale, window, soft cap
    no_scales = (None, None, None)  # of q, k, v
    for operator, arguments in (
            (m._dense, (q, k, v, None, *plain, CU, CU)),
            (m._dense, (q, k, v, sinks, *plain, CU, CU)),
            (m._sparse, (q, k, v, ids, None, *no_scales, *plain, BK, "automatic", CU, CU)),
            (m._sparse, (q, k, v, ids, sinks, *no_scales, *plain, BK, "kv_outer", CU, CU)),
            (m._kl, (index_q, index_k, q.detach(), k.detach(), ids, None, None, None, None, None,
                     "mean", 9, 5.0, BK, CU, CU)),
            (m._kl, (index_q, index_k, q.detach(), k.detach(), ids, None, main_lse, index_lse, None,
                     None, "mean", None, None, BK, CU, CU)),
            (m._select, (index_q.detach(), index_k.detach(), None, None, K, 0, 1, BK, None, False, CU, CU)),
            (m._scores, (index_q, index_k, None, None, BK, None, CU, CU)),
            (m._topk, (m.msa_proxy_score(index_q, index_k, block_size=BK).detach(), K, 1, 1, BK,
                       None, None)),
            (m._mass, (q, k, sinks, *plain, BK, True, CU, CU)),
            (m._mass, (q, k, None, *plain, BK, False, None, CU)),
            (m._select, (index_q.detach(), index_k.detach(), None, None, K, 0, 1, BK, None, True, CU, CU))):
        torch.library.opcheck(operator.operator, arguments)


def test_compiled_functions_keep_one_graph(data):
    ids = m.msa_index_select(data["index_q"], data["index_k"], K, block_size=BK, cu_seqlens_q=CU)

    def step(q, k, v, sinks):
        out = m.msa_sparse_attention(2 * q, k, v, ids, sinks=sinks, block_size=BK,
                                     cu_seqlens_q=CU)
        return (out * out).sum()

    leaves = [data[name] for name in ("q", "k", "v", "sinks")]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(compiled(*leaves), leaves), gradients(step(*leaves), leaves)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_lengths_in_a_tensor_are_no_constants_of_a_graph(data):
    def step(cu, *leaves):
        q, k, v, sinks, index_q, index_k = leaves
        packed = {"block_size": BK, "cu_seqlens_q": cu, "cu_seqlens_k": cu}
        ids, index_lse = m.index_select(index_q, index_k, K, return_index_lse=True, **packed)
        out, lse = m.sparse_attention(q, k, v, ids, sinks=sinks, return_softmax_lse=True, **packed)
        kl = m.index_kl(q, k, index_q, index_k, ids, sinks=sinks, main_lse=lse, index_lse=index_lse, **packed)
        dense = m.dense_attention(q, k, v, cu_seqlens_q=cu)
        return (out * dense).sum() + kl

    counter, leaves = CompileCounterWithBackend("aot_eager"), list(data.values())
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for cu in (CU, [0, 3, CU[-1]], [0, CU[-1] - 1, CU[-1]]):
        tensor = torch.tensor(cu)
        torch._dynamo.mark_dynamic(tensor, 0)
        for one, other in zip(gradients(compiled(tensor, *leaves), leaves), gradients(step(cu, *leaves), leaves)):
            assert torch.equal(one, other)
    assert counter.frame_count == 1
    q, k, v, sinks = leaves[:4]
    torch.library.opcheck(torch.ops.msalab.dense_attention.packed, (
        q, k, v, sinks, None, None, None, torch.tensor(CU), None))
    ids = m.index_select(*leaves[4:], K, block_size=BK, cu_seqlens_q=CU)
    torch.library.opcheck(torch.ops.msalab.sparse_attention.packed, (
        q, k, v, ids, sinks, *(None,) * 6, BK, "automatic", torch.tensor(CU), torch.tensor(CU)))


def test_compiled_steps_without_a_gradient_keep_one_graph(data):
    """Scores, blocks of them, mass, decoding: the values and the shapes of msalab's own."""
    q, k, v, _, index_q, index_k = (tensor.detach() for tensor in data.values())

    def choose(ops, index_q, index_k, q, k, v):
        scores = ops.msa_proxy_score(2 * index_q, index_k, block_size=BK, cu_seqlens_q=CU)
        ids = ops.msa_topk_select(scores, K, block_size=BK, forced_first=1, cu_seqlens_q=CU)
        mass, largest = ops.msa_block_mass(q, k, block_size=BK, return_max_logit=True,
                                           cu_seqlens_q=CU)
        last = ops.msa_sparse_decode_attention(q[-1:], k, v, ids[-1:], block_size=BK)
        return scores, ids, mass, largest, ops.msa_block_mass(q, k, block_size=BK), last

    tensors = index_q, index_k, q, k, v
    compiled = torch.compile(lambda *tensors: choose(m, *tensors), fullgraph=True,
                             backend="aot_eager")
    for one, other in zip(compiled(*tensors), choose(msalab, *tensors), strict=True):
        assert torch.equal(one, other)
    assert not m.msa_proxy_score(data["index_q"], data["index_k"], block_size=BK).requires_grad
    with pytest.raises(ValueError, match="q holds 2 queries: cu_seqlens_k must delimit the keys"):
        m.msa_sparse_decode_attention(q[-2:], k, v, torch.zeros(2, HKV, K, dtype=torch.int32))


def test_whoever_watches_operators_sees_them(data):
    """Else a call goes past PyTorch's dispatcher; the bits are the same."""
    q, k, v = (data[name].detach() for name in "qkv")
    out = m.dense_attention(q, k, v)
    with torch.profiler.profile() as profiler:
        assert torch.equal(m.dense_attention(q, k, v), out)
    assert "msalab::dense_attention" in {event.key for event in profiler.key_averages()}
    q.requires_grad_()
    shorter, = gradients(m.dense_attention(q, k, v).square().sum(), [q])
    with torch.profiler.profile() as profiler:
        longer, = gradients(m.dense_attention(q, k, v).square().sum(), [q])
    assert torch.equal(shorter, longer)
    assert "msalab::dense_attention_grad" in {event.key for event in profiler.key_averages()}
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (q, k, v)]
        assert m.dense_attention(*fakes).shape == q.shape


def test_parameters_and_inference_mode_are_taken(data):
    q, k, v = (data[name].detach() for name in "qkv")
    out = m.dense_attention(q, k, v)
    with torch.inference_mode():
        assert torch.equal(m.dense_attention(torch.nn.Parameter(q), k, v), out)


def test_a_second_gradient_is_refused(data):
    q, k, v = (data[name] for name in "qkv")
    d_q, = torch.autograd.grad(m.dense_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(ValueError, match="a gradient of attention has no gradient of its own"):
        d_q.sum().backward()


@pytest.mark.parametrize("name", ["dense_attention", "msa_sparse_attention", "msa_index_select",
                                  "msa_proxy_score", "msa_topk_select", "msa_block_mass",
                                  "msa_sparse_decode_attention",
                                  "msa_index_kl"])
def test_help_says_what_that_of_arrays_says(name):
    assert inspect.getdoc(getattr(msalab, name)) in getattr(m, name).__doc__
    assert "\n\n" in getattr(m, name).__doc__


def test_tensors_are_read_where_they_lie(data):
    q, k, v = (data[name] for name in "qkv")
    expected = m.dense_attention(*(tensor[20:].clone() for tensor in (q, k, v)))
    one = torch.nn.Parameter(q.detach().clone())[20:]
    odd = torch.as_strided(k.detach(), (1, 41, HKV, DH), (7, HKV * DH, DH, 1), 20 * HKV * DH)[0]
    assert torch.equal(m.dense_attention(one, odd, v[20:]), expected)
    last = torch.as_strided(q.detach(), (1, HQ, DH), (5, DH, 1), 60 * HQ * DH)  # a stride of no use
    assert torch.equal(m.dense_attention(last, k[20:], v[20:]), expected[40:])
    assert m.dense_attention(q[:0], k[20:], v[20:]).shape == (0, HQ, DH)
    with torch.inference_mode():
        assert torch.equal(m.dense_attention(q[20:], k[20:], v[20:]), expected)


def test_int8_operands_with_scales(data):
    index_q, index_k = data["index_q"].detach(), data["index_k"].detach()
    *stored, scales = msalab.store_int8(index_q, index_k, block_size=BK, cu_seqlens_q=CU)
    assert [tensor.dtype for tensor in stored] == [torch.int8] * 2
    options = dict(scales=scales, block_size=BK, cu_seqlens_q=CU)
    of_numpy = dict(options, scales=[tensor.numpy() for tensor in scales])
    arrays = [tensor.numpy() for tensor in stored]
    expected = torch.from_numpy(msalab.index_scores(*arrays, **of_numpy))
    assert torch.equal(m.index_scores(*stored, **options), expected)
    ids = torch.from_numpy(msalab.index_select(*arrays, K, **of_numpy))
    assert torch.equal(m.index_select(*stored, K, **options), ids)
    torch.library.opcheck(torch.ops.msalab.index_select.default, (
        *stored, *scales, K, 0, 1, BK, None, False, CU, None))


def test_bad_input_is_named(data):
    q, k, v = (data[name] for name in "qkv")
    with pytest.raises(ValueError, match="q is not contiguous"):
        m.dense_attention(q.transpose(0, 1).contiguous().transpose(0, 1), k, v)
    with pytest.raises(NotImplementedError, match="f64"):
        m.dense_attention(q.double(), k.double(), v.double())
    elsewhere = "k lies on a device that is neither a CPU nor CUDA's, must lie on the CPU"
    with pytest.raises(ValueError, match=elsewhere):
        m.dense_attention(q, k.to("meta"), v)
    with pytest.raises(ValueError, match="k is Tensor, dtype torch.float32, layout torch.sparse_coo, "
                                         "must be a dense array or tensor"):
        m.dense_attention(q, k.detach().to_sparse(), v)
    with pytest.raises(ValueError, match="q is float8_e5m2, which no operation takes"):
        m.dense_attention(q.detach().to(torch.float8_e5m2), k, v)
    with pytest.raises(ValueError, match="q is bool, which no operation takes"):
        m.dense_attention(q > 0, k, v)
    with pytest.raises(ValueError, match=r"q has shape \[1, 61, 4, 16\], must be \[Nq, Hq, dh\]"):
        m.dense_attention(q[None], k, v)
    with pytest.raises(RuntimeError, match="value of type 'Tensor' for argument 'k' but .*'ndarray'"):
        m.dense_attention(q, k.detach().numpy(), v)
    ids = torch.zeros(len(q), HKV, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="ids is int64, must be int32"):
        m.msa_sparse_attention(q, k, v, ids.long(), block_size=BK)
    m.msa_sparse_attention(q, k, v, ids, block_size=BK)
    with pytest.raises(ValueError, match="block_size is 8.0, must be an integer"):
        m.msa_sparse_attention(q, k, v, ids, block_size=float(BK))
    with pytest.raises(ValueError, match="softmax_scale is 'small', must be a number"):
        m.dense_attention(q, k, v, softmax_scale="small")
    with pytest.raises(ValueError, match="a window or a soft cap has no gradient"):
        m.dense_attention(q, k, v, window=4).sum().backward()


def test_converters_of_ids_return_tensors_of_tensors(data):
    ids = m.msa_index_select(data["index_q"], data["index_k"], K, block_size=BK)
    heads_first = msalab.ids_heads_first(ids)
    assert heads_first.shape == (HKV, len(ids), K)
    assert torch.equal(msalab.sort_ids(msalab.ids_heads_first(heads_first).flip(2)), ids)
    assert torch.equal(msalab.ids_from_packed(ids, [0, len(ids)], [0, len(ids)], BK), ids)
    blocks = -(-len(ids) // BK)
    for one, other in zip(msalab.build_k2q_csr(ids, blocks),
                          msalab.build_k2q_csr(ids.numpy(), blocks), strict=True):
        assert torch.equal(one, torch.from_numpy(other))
    with pytest.raises(ValueError, match=r"ids\[0, 0\] holds block 4 twice"):
        msalab.sort_ids(torch.tensor([[[4, 0, 4]]]))
