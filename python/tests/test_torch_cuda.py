# SPDX-License-Identifier: MIT
"""The operators on CUDA: values and gradients against those of the CPU, PyTorch's stream, memory and
device, compiled functions, and CUDA graphs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msalab._msalab")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)

import msalab  # noqa: E402
import msalab.torch as m  # noqa: E402
from msalab.nn import MSAttention, select_and_attend  # noqa: E402
from msalab.rule import Rule  # noqa: E402

CU = [0, 200, 201, 1000]
N, HQ, HKV, DH, DIDX, BK, K = CU[-1], 8, 2, 64, 64, 64, 4
PACKED = {"cu_seqlens_q": CU, "cu_seqlens_k": CU}
WHOLE = {"block_size": BK, **PACKED}
LAYERS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module", autouse=True)
def answers():
    assert msalab.backends()["cuda"] == ""


def make(dtype=torch.float32, n=N):
    """Operands on the CPU, of values that bfloat16 holds."""
    torch.manual_seed(5)
    shapes = {"q": (n, HQ, DH), "k": (n, HKV, DH), "v": (n, HKV, DH),
              "index_q": (n, HKV, DIDX), "index_k": (n, DIDX)}
    data = {name: torch.randn(shape).bfloat16().to(dtype) for name, shape in shapes.items()}
    return {**data, "sinks": torch.randn(HQ)}


def on_gpu(data, dtype):
    return {name: tensor.cuda() if name == "sinks" else tensor.to("cuda", dtype)
            for name, tensor in data.items()}


def near(found, expected, dtype):
    """Sums of N float products in another order; in bfloat16, which rounds to 2^-9 of a value,
    and in float16, which rounds to less, some 16 roundings of probabilities, outputs and their
    products."""
    bound = (N * 2 ** -24 if dtype == torch.float32 else 2 ** -5) * expected.abs().max().item()
    torch.testing.assert_close(found.float().cpu(), expected.float(), rtol=0, atol=bound)


def with_gradients(call, operands, weights):
    leaves = [tensor.detach().requires_grad_() for tensor in operands]
    out = call(*leaves)
    return out, torch.autograd.grad((out * weights).sum(), leaves)


def select(data):
    return m.msa_index_select(data["index_q"], data["index_k"], K, **WHOLE)


def test_measures_take_tensors_of_a_gpu():
    data = make()
    gpu = on_gpu(data, torch.float32)
    ids, mass = select(gpu), msalab.msa_block_mass(gpu["q"], gpu["k"], **WHOLE)
    found = msalab.analysis.recall(ids, mass, **WHOLE)
    for name, values in msalab.analysis.recall(ids.cpu(), mass.cpu(), **WHOLE).items():
        assert found[name].device.type == "cpu" and torch.equal(found[name], values)
    for measure in (msalab.analysis.entropy, msalab.analysis.sink_mass):
        for chosen in (None, ids):
            here = None if chosen is None else chosen.cpu()
            torch.testing.assert_close(measure(gpu["q"], gpu["k"], chosen, **WHOLE),
                                       measure(data["q"], data["k"], here, **WHOLE),
                                       rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", LAYERS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_and_its_gradient_are_those_of_the_cpu(dtype, sparse, with_sinks):
    host = make()
    device = on_gpu(host, dtype)
    ids = select(host)
    weights = torch.randn(N, HQ, DH).bfloat16().float()
    names = ["q", "k", "v"] + ["sinks"] * with_sinks

    def call(q, k, v, sinks=None):
        if sparse:
            return m.msa_sparse_attention(q, k, v, ids.to(q.device), sinks=sinks, **WHOLE)
        return m.dense_attention(q, k, v, sinks=sinks, **PACKED)

    expected, slopes = with_gradients(call, [host[name] for name in names], weights)
    found, got = with_gradients(call, [device[name] for name in names], weights.to("cuda", dtype))
    assert found.is_cuda and found.dtype == dtype
    near(found, expected, dtype)
    for name, one, other in zip(names, got, slopes):
        assert one.dtype == device[name].dtype
        near(one, other, dtype)


@pytest.mark.parametrize("dtype", LAYERS)
@pytest.mark.parametrize("order", ["union", "kv_outer", "q_outer"])
def test_every_loop_order_has_a_gradient(dtype, order):
    data = on_gpu(make(), dtype)
    ids = select(data)
    weights = torch.randn_like(data["q"])

    def step(**options):
        return with_gradients(lambda *qkv: m.msa_sparse_attention(*qkv, ids, **WHOLE, **options),
                              [data[name] for name in "qkv"], weights)

    try:
        _, found = step(order=order)
    except msalab.UnsupportedError as error:
        assert "sparse_attention_grad" not in str(error)
        pytest.skip(str(error))
    for one, other in zip(found, step()[1]):
        near(one, other.float().cpu(), dtype)


@pytest.mark.parametrize("dtype", LAYERS)
def test_the_index_branch_is_that_of_the_cpu(dtype):
    host = make()
    device = on_gpu(host, dtype)
    scores = msalab.msa_proxy_score(device["index_q"], device["index_k"], **WHOLE)
    near(scores.masked_fill(scores.isneginf(), 0),
         msalab.msa_proxy_score(host["index_q"], host["index_k"], **WHOLE).nan_to_num(neginf=0),
         dtype)
    ids = select(device)
    assert ids.dtype == torch.int32
    best = msalab.msa_topk_select(scores, K, **WHOLE)
    kept, most = (scores.gather(2, some.clamp(min=0).long()).where(some >= 0, 0).sum(2)
                  for some in (ids, best))
    near(kept, most.cpu(), dtype)
    for support in (ids, None):
        def call(index_q, index_k, on):
            return m.msa_index_kl(on["q"], on["k"], index_q, index_k,
                                  None if support is None else support.to(index_q.device), **WHOLE)
        expected, slopes = with_gradients(lambda *both: call(*both, host),
                                          [host["index_q"], host["index_k"]], 2)
        found, got = with_gradients(lambda *both: call(*both, device),
                                    [device["index_q"], device["index_k"]], 2)
        near(found, expected, dtype)
        for one, other in zip(got, slopes):
            assert one.dtype == dtype
            near(one, other, dtype)


@pytest.mark.parametrize("dtype", LAYERS)
def test_kl_with_the_lse_of_the_forward_pass_is_that_without(dtype):
    data = on_gpu(make(), dtype)
    leaves = [data[name].requires_grad_() for name in ("index_q", "index_k")]
    _, known = layer(data)
    answered = msalab.operations.backend_of(data["q"]).answered_by
    if dtype != torch.float32 and torch.cuda.get_device_capability() >= (9, 0):
        assert answered == "index_kl_sm90" or answered.startswith("index_kl_mma; sm90: ")
    found = m.msa_index_kl(data["q"], data["k"], *leaves, select(data), **WHOLE)
    near(known, found.cpu(), dtype)
    for one, other in zip(torch.autograd.grad(known, leaves), torch.autograd.grad(found, leaves)):
        near(one, other.cpu(), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kl_over_all_keys_behind_the_warmup_is_that_of_the_warmup(dtype):
    """By a kernel that asks for the lse of dense attention."""
    data = on_gpu(make(), dtype)
    leaves = [data[name].requires_grad_() for name in ("index_q", "index_k")]

    def kl_of(**how):
        kl = select_and_attend(*(data[name] for name in ("q", "k", "v", "index_q", "index_k")), Rule(BK, K), CU, **how)[2]
        answered = msalab.operations.backend_of(data["q"]).answered_by
        if torch.cuda.get_device_capability() >= (9, 0):
            assert answered == "index_kl_sm90" or answered.startswith("index_kl_mma; sm90: ")
        return kl.detach(), *torch.autograd.grad(kl, leaves)
    warmup, found, other = kl_of(sparse=False), kl_of(sparse=True, kl_full_support=True), kl_of(sparse=True)
    for one, expected in zip(found, warmup):
        near(one, expected.cpu(), dtype)
    with pytest.raises(AssertionError):
        near(other[1], warmup[1].cpu(), dtype)


def test_block_mass_is_that_of_the_cpu():
    host = make()
    device = on_gpu(host, torch.float32)
    near(msalab.msa_block_mass(device["q"], device["k"], **WHOLE),
         msalab.msa_block_mass(host["q"], host["k"], **WHOLE), torch.float32)


@pytest.mark.parametrize("dtype", LAYERS)
def test_operators_pass_pytorchs_own_checks(dtype):
    data = {name: tensor.requires_grad_() for name, tensor in on_gpu(make(), dtype).items()}
    q, k, v, index_q, index_k, sinks = data.values()
    ids = select(data)
    plain = (None, None, None)  # scale, window, soft cap
    no_scales = (None, None, None)  # of q, k, v
    for operator, arguments in (
            (m._dense, (q, k, v, sinks, *plain, CU, CU)),
            (m._sparse, (q, k, v, ids, None, *no_scales, *plain, BK, "automatic", CU, CU)),
            (m._sparse, (q, k, v, ids, sinks, *no_scales, *plain, BK, "automatic", CU, CU)),
            (m._kl, (index_q, index_k, q.detach(), k.detach(), ids, None, None, None, None, None,
                     "mean", None, None, BK, CU, CU)),
            (m._select, (index_q.detach(), index_k.detach(), None, None, K, 0, 1, BK, None, True, CU,
                         CU))):
        torch.library.opcheck(operator.operator, arguments)


def layer(data):
    ids, index_lse = m.msa_index_select(data["index_q"], data["index_k"], K, return_index_lse=True,
                                        **WHOLE)
    out, main_lse = m.msa_sparse_attention(data["q"], data["k"], data["v"], ids,
                                           return_softmax_lse=True, **WHOLE)
    kl = m.msa_index_kl(data["q"], data["k"], data["index_q"], data["index_k"], ids,
                        main_lse=main_lse, index_lse=index_lse, **WHOLE)
    return out, kl


@pytest.mark.parametrize("mode", ["aot_eager", "inductor", "reduce-overhead"])
def test_a_compiled_layer_is_one_graph_with_the_same_bits(mode):
    how = {"mode": mode} if mode == "reduce-overhead" else {"backend": mode}
    data = on_gpu(make(), torch.bfloat16)

    def gradients(call):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in data.items()}
        out, kl = call(leaves)
        names = ["q", "k", "v", "index_q", "index_k"]
        grads = torch.autograd.grad(out.float().square().sum() + kl, [leaves[n] for n in names])
        return [tensor.detach().clone() for tensor in (out, kl, *grads)]

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, **how)
    expected = gradients(layer)
    for _ in range(4):  # the first are warm-up and recording
        for one, other in zip(gradients(compiled), expected):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def dense_gradients():
    data = on_gpu(make(), torch.bfloat16)
    operands = [data[name] for name in "qkv"]
    weights = torch.ones_like(operands[0])
    return with_gradients(lambda q, k, v: m.dense_attention(q, k, v, **PACKED), operands, weights)[1]


def test_the_gradient_of_dense_attention_has_the_same_bits_where_pytorch_asks(deterministic):
    made = m.operations._tensors().on_gpu
    made.clear()
    for one, other in zip(dense_gradients(), dense_gradients()):
        assert torch.equal(one, other)
    assert {name for name, *_ in made} == {"cuda"}


def test_the_gradient_of_dense_attention_is_else_summed_in_any_order(deterministic):
    expected = dense_gradients()
    torch.use_deterministic_algorithms(False)
    made = m.operations._tensors().on_gpu
    made.clear()
    for one, other in zip(dense_gradients(), expected):
        near(one, other.cpu(), torch.bfloat16)
    assert {name for name, *_ in made} == {"cuda", "cuda-unordered"}


def test_calls_wait_for_nothing():
    data = on_gpu(make(), torch.bfloat16)
    leaves = {name: tensor.requires_grad_() for name, tensor in data.items()}

    def step():
        out, kl = layer(leaves)
        dense = m.dense_attention(leaves["q"], leaves["k"], leaves["v"], **PACKED)
        ((out + dense).float().square().sum() + kl).backward()

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda._sleep(int(1e9))  # about half a second
    step()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_calls_take_their_turn_in_the_current_stream():
    data = on_gpu(make(), torch.bfloat16)
    ids = select(data)
    expected = m.msa_sparse_attention(data["q"], data["k"], data["v"], ids, **WHOLE)
    stream = torch.cuda.Stream()
    q = torch.zeros_like(data["q"])
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(2e8))
        q.copy_(data["q"])  # later: a call on another stream would read zeros
        out = m.msa_sparse_attention(q, data["k"], data["v"], ids, **WHOLE)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, expected)


def test_workspace_is_pytorchs_memory(monkeypatch):
    """A float for each row of q is more than a backend keeps from call to call, 16 MiB."""
    rows, heads, block_size = 70000, 64, 16
    asked, allocate = [], torch.cuda.caching_allocator_alloc

    def counted(size, *where):
        asked.append(size)
        return allocate(size, *where)

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", counted)
    q = torch.randn(rows, heads, 16, device="cuda")
    k, v = torch.randn(2, rows, 1, 16, device="cuda")
    ids = (torch.arange(rows, dtype=torch.int32, device="cuda") // block_size).view(rows, 1, 1)
    out, lse = msalab.msa_sparse_attention(q, k, v, ids, block_size=block_size,
                                           return_softmax_lse=True)
    before = torch.cuda.memory_allocated()
    gradients = msalab.msa_sparse_attention_grad(q, k, v, ids, out, lse, out,
                                                 block_size=block_size)
    assert max(asked, default=0) >= 4 * rows * heads
    del gradients
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("dtype", LAYERS)
def test_keys_in_pages_give_what_packed_keys_give(dtype):
    """Small integers, whose scores are exact in any order, so that ids are the same."""
    torch.manual_seed(6)
    data = on_gpu({name: torch.randint(-2, 3, tensor.shape).float()
                   for name, tensor in make().items()}, dtype)
    used = [end - begin for begin, end in zip(CU, CU[1:])]
    table = torch.randperm(3 * 13).to("cuda", torch.int32).view(3, 13)
    where = {"page_table": table, "seqused_k": used, "cu_seqlens_q": CU}
    pools = {}
    for name in ("k", "v", "index_k"):
        pools[name] = torch.full((3 * 13, BK, *data[name].shape[1:]), torch.nan, device="cuda",
                                 dtype=dtype)
        m.append(pools[name], data[name], table, used, cu_seqlens_q=CU)
    ids = m.msa_index_select(data["index_q"], pools["index_k"], K, block_size=BK, **where)
    assert torch.equal(ids, select(data))
    q, k, v = (data[name] for name in ("q", "k", "v"))
    out = m.msa_sparse_attention(q, pools["k"], pools["v"], ids, block_size=BK, **where)
    near(out, m.msa_sparse_attention(q, k, v, ids, **WHOLE).cpu(), dtype)


@pytest.mark.parametrize("warm", [False, True])
def test_a_decode_step_is_captured_in_a_graph(warm):
    """Selection and attention of the newest token of each of four sequences, in bfloat16: the
    plain kernels, which float32 has, copy from the host as they go."""
    sequences, keys = 4, 640
    at = {"cu_seqlens_q": list(range(sequences + 1)),
          "cu_seqlens_k": [keys * s for s in range(sequences + 1)], "block_size": BK}
    data = on_gpu(make(n=sequences * keys), torch.bfloat16)
    newest = torch.arange(1, sequences + 1, device="cuda") * keys - 1
    q, index_q = data["q"][newest], data["index_q"][newest]

    def step():
        ids = m.msa_index_select(index_q, data["index_k"], K, **at)
        return m.msa_sparse_attention(q, data["k"], data["v"], ids, **at)

    with torch.inference_mode():
        expected = [step()]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        if warm:  # on the stream that is captured
            with torch.cuda.stream(stream):
                step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            out = step()
        saved = q.clone(), index_q.clone()
        q.copy_(saved[0].flip(0)), index_q.copy_(saved[1].flip(0))
        expected.append(step())
        for _ in range(3):
            with torch.cuda.stream(stream):  # nothing that the graph needs is taken away
                for n in range(12):
                    few = torch.zeros(1, HKV, 1, dtype=torch.int32, device="cuda")
                    msalab.msa_sparse_decode_attention(q[:1], data["k"][:50 + n],
                                                       data["v"][:50 + n], few, block_size=BK)
            torch.cuda.synchronize()
            for want, sources in ((expected[0], saved), (expected[1], [s.flip(0) for s in saved])):
                q.copy_(sources[0]), index_q.copy_(sources[1])
                graph.replay()
                assert torch.equal(out, want)


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_graph_of_pages_is_right_for_all_lengths(tokens):
    """Append, selection and attention of the newest tokens, captured once: sequences grow, end and
    change their pages."""
    torch.manual_seed(7)
    size, most, sequences, pages = 128, 1000, 5, 48
    queries = sequences * tokens
    pools = {name: torch.randn(pages, size, *shape, device="cuda").bfloat16()
             for name, shape in (("k", (HKV, DH)), ("v", (HKV, DH)), ("index_k", (DIDX,)))}
    new = {name: torch.randn(queries, *pool.shape[2:], device="cuda").bfloat16()
           for name, pool in pools.items()}
    q = torch.randn(queries, HQ, DH, device="cuda").bfloat16()
    index_q = torch.randn(queries, HKV, DIDX, device="cuda").bfloat16()
    table = torch.zeros(sequences, -(-most // size), dtype=torch.int32, device="cuda")
    used = torch.zeros(sequences, dtype=torch.int32, device="cuda")
    where = {"page_table": table, "cu_seqlens_q": list(range(0, queries + 1, tokens))}

    def step(pools, **lengths):
        for name, rows in new.items():
            m.append(pools[name], rows, **where, **lengths)
        ids = m.msa_index_select(index_q, pools["index_k"], K, block_size=BK, **where, **lengths)
        return ids, m.msa_sparse_attention(q, pools["k"], pools["v"], ids, block_size=BK, **where,
                                           **lengths)

    with torch.inference_mode():
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step(pools, seqused_k=used, max_seqlen_k=most)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            ids, out = step(pools, seqused_k=used, max_seqlen_k=most)
        for replay in range(60):
            if replay % 15 == 0:
                table.copy_(torch.randperm(pages)[:table.numel()].view_as(table))
                lengths = torch.tensor([tokens, 127, 128, 500 + replay, most - 20])
            lengths = (lengths + 1).clamp(max=most)
            used.copy_(lengths)
            apart = {name: pool.clone() for name, pool in pools.items()}
            want = step(apart, seqused_k=lengths.tolist())
            graph.replay()
            for one, other in zip((ids, out, *pools.values()), (*want, *apart.values())):
                torch.testing.assert_close(one, other, rtol=0, atol=0)
        with pytest.raises(m.InputError, match="sequence 2 is 1001, must be at most max_seqlen_k"):
            used[2] = most + 1
            step(pools, seqused_k=used, max_seqlen_k=most, validate=True)
        used[2], table[1, 0] = 300, pages
        with pytest.raises(m.InputError, match=r"page_table\[1, 0\] of pool is 48, must be a page"):
            m.check_pages(pools["k"], table, used, max_seqlen_k=most)


def test_what_a_graph_cannot_have_is_refused():
    pool = torch.zeros(4, 64, DIDX, device="cuda", dtype=torch.bfloat16)
    where = {"page_table": torch.zeros(1, 2, dtype=torch.int32, device="cuda"),
             "seqused_k": torch.ones(1, dtype=torch.int32, device="cuda"), "block_size": BK}
    index_q = torch.zeros(1, HKV, DIDX, device="cuda", dtype=torch.bfloat16)
    for options, message in (({}, "max_seqlen_k says up to which value"),
                             ({"max_seqlen_k": 100, "validate": True}, "call check_pages before")):
        with pytest.raises(m.InputError, match=message):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                m.index_select(index_q, pool, K, **where, **options)


def test_mixed_devices_are_named():
    host, device = make(), on_gpu(make(), torch.float32)
    message = "k lies on the CPU, must lie on cuda:0 like the other arrays"
    with pytest.raises(ValueError, match=message):
        m.dense_attention(device["q"], host["k"], device["v"])
    with pytest.raises(ValueError, match="v lies on cuda:0, must lie on the CPU"):
        m.dense_attention(host["q"], host["k"], device["v"])
    with pytest.raises(ValueError, match="backend is 'cpu', but q and the other arrays lie on a G"):
        msalab.dense_attention(device["q"], device["k"], device["v"], backend="cpu")
    with pytest.raises(NotImplementedError, match="f64"):
        m.dense_attention(*(device[name].double() for name in "qkv"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_is_served_and_the_current_one_stays():
    data = make()
    there = [data[name].to("cuda:1") for name in "qkv"]
    here = [data[name].to("cuda:0") for name in "qkv"]
    assert torch.equal(m.dense_attention(*there).cpu(), m.dense_attention(*here).cpu())
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="k lies on cuda:0, must lie on cuda:1"):
        m.dense_attention(there[0], here[1], there[2])


@pytest.mark.parametrize("sparse", [False, True])
def test_the_module_takes_the_same_step_as_on_the_cpu(sparse):
    torch.manual_seed(3)
    module = MSAttention(96, HQ, HKV, DH, index_dim=DIDX, block_size=BK, top_k=K, sink=True)
    x = torch.randn(N, 96)

    def step(module, x):
        module.zero_grad()
        y, kl = module(x, CU, sparse=sparse)
        (y.float().square().mean() + kl).backward()
        return y, kl, *(p.grad for p in module.parameters() if p.grad is not None)

    expected = [tensor.detach().clone() for tensor in step(module, x)]
    module, x = module.cuda(), x.cuda()
    for one, other in zip(step(module, x), expected, strict=True):
        # Norms and projections add their own roundings to those of attention.
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0,
                                   atol=2e-4 * max(other.abs().max().item(), 1e-30))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, _, *slopes = step(module, x)
    assert y.dtype == torch.bfloat16 and all(slope.isfinite().all() for slope in slopes)
    assert all(tensor.isfinite().all() for tensor in step(module.bfloat16(), x.bfloat16()))
