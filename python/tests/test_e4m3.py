# SPDX-License-Identifier: MIT
"""sparse_attention of e4m3 operands and their scales, on arrays of numpy and tensors of PyTorch, and its gradient straight
through the rounding: beside the reference in doubles on the numbers that they stand for, within the bounds of
msalab.conform.bounds."""

import numpy as np
import pytest

pytest.importorskip("msalab._msalab")

import msalab  # noqa: E402
from msalab.conform import bounds  # noqa: E402
from msalab.conform.bounds import attention_bounds  # noqa: E402
from msalab.conform.reference import Reference, e4m3  # noqa: E402

HQ, HKV, DH, BK = 4, 2, 16, 8
# Square, without queries, without queries and keys, a chunk behind a prefix; blocks of 1 to 8 keys.
CU_Q, CU_K = [0, 20, 20, 20, 29], [0, 20, 25, 25, 66]
BLOCKS = [0, 3, 4, 4, 10]
PACKED = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
CALL = {"block_size": BK, **PACKED}
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference"])


@pytest.fixture(scope="module")
def floats():
    """Operands whose blocks and rows differ in size, so that each scale matters."""
    rng = np.random.default_rng(11)
    sizes = 2.0 ** rng.integers(-6, 4, 66)[:, None, None]
    q, k, v = (rng.standard_normal((n, heads, DH)) for n, heads in ((29, HQ), (66, HKV), (66, HKV)))
    return tuple(one.astype(np.float32) for one in (q * 2.0 ** rng.integers(-3, 2, (29, HQ, 1)), k * sizes, v / sizes))


@pytest.fixture(scope="module")
def stored(floats):
    return msalab.store_e4m3(*floats, block_size=BK, **PACKED)


@pytest.fixture(scope="module")
def ids(floats):
    rng = np.random.default_rng(12)
    found = msalab.index_select(rng.standard_normal((29, HKV, DH), np.float32),
                                rng.standard_normal((66, DH), np.float32), 3, block_size=BK, **PACKED)
    found[[3, 24], 1] = -1  # rows without a block
    found[17] = -1
    return found


def of_each_key(scales):
    """[blocks of all sequences, Hkv] as [Nk, Hkv, 1]."""
    return np.concatenate([scales[first + np.arange(end - begin) // BK]
                           for first, begin, end in zip(BLOCKS, CU_K, CU_K[1:])])[..., None]


def read(q, k, v, scales):
    """The floats nearest to what the bytes and scales stand for."""
    return (np.float32(e4m3(q) * scales[0][..., None].astype(float)),
            *(np.float32(e4m3(one) * of_each_key(of).astype(float)) for one, of in zip((k, v), scales[1:])))


def right(stored, ids):
    """out, lse of the reference in doubles, and how far a right answer may be off: [2] each."""
    q, k, v = read(*stored)
    found = msalab.sparse_attention(q, k, v, ids, return_softmax_lse=True, backend="reference", **CALL)
    given = {"q": q, "k": k, "v": v, "ids": ids, "block_size": BK, "softmax_scale": DH ** -0.5,
             "cu_seqlens_q": np.array(CU_Q), "cu_seqlens_k": np.array(CU_K)}
    return found, attention_bounds(given, range(len(q)), "float32", False)


def farthest(found, expected):
    """The largest difference in units of the bound; infinities must be the same."""
    most = 0.0
    for one, other, bound in zip(found, *expected):
        differs = one != other
        most = max(most, np.max(np.abs(np.float64(one[differs]) - other[differs]) / bound[differs], initial=0))
    return most


def attend(stored, ids, **options):
    q, k, v, scales = stored
    return msalab.sparse_attention(q, k, v, ids, **{"scales": scales, **CALL, "return_softmax_lse": True, **options})


def test_what_is_stored_is_the_nearest(floats, stored):
    *values, scales = stored
    assert [one.dtype for one in values] == [np.uint8] * 3
    assert [one.shape for one in scales] == [(29, HQ), (10, HKV), (10, HKV)]
    np.testing.assert_array_equal(scales[0], np.abs(floats[0]).max(-1) / np.float32(448))
    numbers = e4m3(np.arange(256))
    numbers = np.unique(numbers[~np.isnan(numbers)])
    for one, code, scale in zip(floats, values, (scales[0][..., None], *map(of_each_key, scales[1:]))):
        wanted = one / scale
        assert np.abs(wanted).max() <= 448 * (1 + 2.0 ** -22)  # the scale is rounded
        nearest = np.abs(wanted[..., None].astype(float) - numbers).min(-1)
        np.testing.assert_array_equal(np.abs(wanted - e4m3(code)), nearest)


def test_the_ends_of_scales_and_values():
    q, k = np.zeros((2, 1, 16), np.float32), np.zeros((2, 1, 16), np.float32)
    q[0, 0, :5] = np.nan, np.inf, -np.inf, 448, 1.0625  # a tie: 1 is even
    k[1, 0, 0] = 2.0 ** 60
    q8, k8, _, scales = msalab.store_e4m3(q, k, k, block_size=1)
    np.testing.assert_array_equal(scales[0], [[1], [2.0 ** -40]])
    np.testing.assert_array_equal(scales[1], [[2.0 ** -40], [2.0 ** 40]])
    np.testing.assert_array_equal(e4m3(q8[0, 0, :5]), [np.nan, 448, -448, 448, 1])
    assert e4m3(k8[1, 0, 0]) == 448
    empty = msalab.store_e4m3(q[:0], k[:0], k[:0])
    assert empty[0].shape == (0, 1, 16) and [one.shape for one in empty[3]] == [(0, 1)] * 3


@BACKENDS
def test_attention_is_that_of_what_the_operands_stand_for(stored, ids, backend):
    found, expected = attend(stored, ids, backend=backend), right(stored, ids)
    assert [one.dtype for one in found] == [np.float32] * 2
    assert farthest(found, expected) <= 1
    assert not found[0][17].any() and (found[1][17] == -np.inf).all()
    again = attend(stored, ids, backend=backend, out=np.empty((29, HQ, DH), np.float32))
    assert all(np.array_equal(one, other) for one, other in zip(found, again))


@BACKENDS
@pytest.mark.parametrize("fault", ["scales of k by sequence", "scales of v one block on", "k's scales for v",
                                   "heads of q exchanged", "one byte of v"])
def test_a_fault_is_caught(stored, ids, backend, fault):
    q, k, v, (of_q, of_k, of_v) = stored
    if fault == "scales of k by sequence":  # blocks counted from the start of all
        of_k = of_k.copy()
        of_k[3:] = np.roll(of_k[3:], 1, 0)
    elif fault == "scales of v one block on":
        of_v = np.roll(of_v, 1, 0)
    elif fault == "k's scales for v":
        of_v = of_k
    elif fault == "heads of q exchanged":
        of_q = np.ascontiguousarray(of_q[:, ::-1])
    else:
        v = v.copy()
        v[0, 0, np.argmax(e4m3(v[0, 0]))] -= 1
    assert farthest(attend((q, k, v, (of_q, of_k, of_v)), ids, backend=backend), right(stored, ids)) > 1


@BACKENDS
def test_absent_scales_are_one_and_one_may_be_of_all(stored, ids, backend):
    q, k, v, _ = stored
    ones = [np.ones(shape, np.float32) for shape in ((29, HQ), (10, HKV), (10, HKV))]
    whole = [np.full((1, 1), 0.5, np.float32)] * 3
    for scales, same in ((None, ones), ((None, None, None), ones), ((None, ones[1], None), ones),
                         (whole, [one / 2 for one in ones])):
        for one, other in zip(attend((q, k, v, scales), ids, backend=backend),
                              attend((q, k, v, same), ids, backend=backend)):
            np.testing.assert_array_equal(one, other)


@BACKENDS
def test_nan_counts_where_it_is_seen(stored, ids, backend):
    q, k, v, scales = stored
    k, kept = k.copy(), attend(stored, ids, backend=backend)[0]
    k[19, 0, 3] = 0x7F  # of the first sequence's last query alone
    found = attend((q, k, v, scales), ids, backend=backend)[0]
    assert np.isnan(found[19, :2]).all()
    found[19, :2] = kept[19, :2]
    np.testing.assert_array_equal(found, kept)


@BACKENDS
def test_pages_have_scales_of_their_own(stored, ids, backend):
    q, k, v, scales = stored
    table, pools = np.full((4, 6), -1, np.int32), [np.full((13, BK, HKV, DH), 0x7F, np.uint8) for _ in range(2)]
    of_pages = [np.ones((13, HKV), np.float32) for _ in range(2)]
    pages = iter(np.random.default_rng(13).permutation(13))
    for s, (begin, end) in enumerate(zip(CU_K, CU_K[1:])):
        for b in range(-(-(end - begin) // BK)):
            page = table[s, b] = next(pages)
            rows = slice(begin + b * BK, min(begin + (b + 1) * BK, end))
            for pool, keys, to, of in zip(pools, (k, v), of_pages, scales[1:]):
                pool[page, :rows.stop - rows.start], to[page] = keys[rows], of[BLOCKS[s] + b]
    options = {"block_size": BK, "return_softmax_lse": True, "page_table": table, "seqused_k": np.diff(CU_K),
               "cu_seqlens_q": CU_Q, "backend": backend}
    found = msalab.sparse_attention(q, *pools, ids, scales=(scales[0], *of_pages), **options)
    for one, other in zip(found, attend(stored, ids, backend=backend)):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(msalab.InputError, match=r"scales of k has shape \[10, 2\], must be \[1, 1\] or \[pages, Hkv\]"):
        msalab.sparse_attention(q, *pools, ids, scales=scales, **options)


def test_sinks_windows_and_soft_caps_are_those_of_floats(stored, ids):
    options = {"sinks": np.linspace(-2, 2, HQ).astype(np.float32), "window": 9, "softcap": 3.0}
    expected = msalab.sparse_attention(*read(*stored), ids, return_softmax_lse=True, **options, **CALL)
    for one, other in zip(attend(stored, ids, **options), expected):
        np.testing.assert_array_equal(one, other)


@BACKENDS
def test_bad_scales_are_refused_by_name(stored, ids, backend):
    q, k, v, scales = stored

    def refused(said, at, change, error=msalab.InputError):
        wrong = [one.copy() for one in scales]
        wrong[at] = change(wrong[at])
        with pytest.raises(error, match=said):
            attend((q, k, v, wrong), ids, backend=backend)

    def holding(value):
        def change(one):
            one[2, 1] = value
            return one
        return change
    for value, said in ((0, "0"), (-1, "-1"), (np.nan, "nan"), (np.inf, "inf"), (2.0 ** 41, "2.*e.12")):
        refused(f"scales of k has {said} at 5, must be from 2\\^-40 to 2\\^40", 1, holding(value))
    refused("scales of q has 0 at 9,", 0, holding(0))
    refused("scales of v has -nan at 5,|scales of v has nan at 5,", 2, holding(np.nan))
    refused(r"scales of q has shape \[10, 2\], must be \[1, 1\] or \[Nq, Hq\] = \[29, 4\]", 0, lambda _: scales[1])
    refused(r"scales of v has shape \[9, 2\], must be \[1, 1\] or \[blocks of all sequences, Hkv\] = \[10, 2\]",
            2, lambda one: one[:9])
    refused("scales of k is float64, must be float32", 1, lambda one: one.astype(float))
    refused("scales of k has 1 dimensions, must have 2", 1, lambda one: one[:, 0].copy())
    for wrong in (scales[:2], 1.0):
        with pytest.raises(msalab.InputError, match="scales must be three, of q, of k and of v"):
            attend((q, k, v, wrong), ids, backend=backend)


def test_other_uses_are_refused_by_name(floats, stored, ids):
    q, k, v, scales = stored
    with pytest.raises(msalab.InputError, match="scales are given, but q is f32, must be e4m3"):
        attend((*floats, scales), ids)
    for mixed, said in (((floats[0], k, v), "k is e4m3, must be.* f32"), ((q, floats[1], v), "k is f32, must be.* e4m3"),
                        ((q, k, floats[2]), "v is f32, must be.* e4m3")):
        with pytest.raises(msalab.InputError, match=said):
            attend((*mixed, None), ids)
    with pytest.raises(msalab.InputError, match="out is uint8, which sparse_attention alone takes"):
        attend(stored, ids, out=np.empty_like(q))
    with pytest.raises(msalab.InputError, match="q is uint8, which sparse_attention alone takes, as bytes of e4m3"):
        msalab.dense_attention(q, k, v, **PACKED)
    out, lse = attend(stored, ids)
    with pytest.raises(msalab.InputError, match="q is uint8, which sparse_attention alone takes"):
        msalab.sparse_attention_grad(q, k, v, ids, out, lse, out, **CALL)
    with pytest.raises(msalab.InputError, match="k is int8|k is float64"):
        msalab.store_e4m3(floats[0], floats[1].astype(float), floats[2], block_size=BK, **PACKED)
    with pytest.raises(msalab.InputError, match=r"v has shape \[65, 2, 16\], must be that of k = \[66, 2, 16\]"):
        msalab.store_e4m3(*floats[:2], floats[2][:65], block_size=BK, **PACKED)
    with pytest.raises(msalab.InputError, match="q has 29 tokens, must have 20"):
        msalab.store_e4m3(*floats, block_size=BK, cu_seqlens_q=[0, 20], cu_seqlens_k=[0, 66])


@pytest.fixture(scope="module")
def tensors(floats):
    torch = pytest.importorskip("torch")
    return msalab.store_e4m3(*map(torch.from_numpy, floats), block_size=BK, **PACKED)


def test_tensors_give_what_arrays_give(tensors, stored, ids):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    *values, scales = tensors
    for one, other in zip((*values, *scales), (*stored[:3], *stored[3])):
        np.testing.assert_array_equal(one.view(torch.uint8) if other.dtype == np.uint8 else one, other)
    assert all(one.dtype is torch.float8_e4m3fn for one in values)
    rows = torch.from_numpy(ids)
    for call in (m, msalab):
        found = call.sparse_attention(*values, rows, scales=scales, return_softmax_lse=True, **CALL)
        assert [one.dtype for one in found] == [torch.float32] * 2
        for one, other in zip(found, attend(stored, ids)):
            np.testing.assert_array_equal(one, other)
    torch.library.opcheck(torch.ops.msalab.sparse_attention.default, (
        *values, rows, None, *scales, None, None, None, BK, "automatic", CU_Q, CU_K),
        test_utils=("test_autograd_registration", "test_faketensor"))  # others compare operands, which e4m3 cannot
    served = m.sparse_attention(*values, rows, scales=scales, out=torch.empty(29, HQ, DH), **CALL)
    assert torch.equal(served, found[0])
    compiled = torch.compile(lambda *of: m.sparse_attention(*of, rows, scales=scales, **CALL), fullgraph=True,
                             backend="aot_eager")
    assert torch.equal(compiled(*values), found[0])


def test_a_decode_step(tensors):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    q, k, v, scales = tensors
    rows = torch.tensor([[[0, 2]] * HKV, [[1, 5]] * HKV], dtype=torch.int32)
    at = [19, 28]  # the last queries of the first sequence and of the last
    keys = {"block_size": BK, "cu_seqlens_k": [0, 20, 61]}
    held = [torch.cat([one.view(torch.uint8)[:20], one.view(torch.uint8)[25:]]).view(one.dtype) for one in (k, v)]
    of = [torch.cat([one[:3], one[4:]]) for one in scales[1:]]
    found = m.sparse_decode_attention(q.view(torch.uint8)[at].view(q.dtype), *held, rows, scales=(scales[0][at], *of),
                                      **keys)
    whole = torch.full((29, HKV, 2), -1, dtype=torch.int32)
    whole[at] = rows
    assert torch.equal(found, m.sparse_attention(q, k, v, whole, scales=scales, **CALL)[at])


def test_tensors_that_are_not_supported_are_refused_by_name(tensors, ids):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    *values, scales = tensors
    rows, sinks = torch.from_numpy(ids), torch.zeros(HQ, requires_grad=True)
    leaf = scales[1].clone().requires_grad_()
    for call in (lambda: m.sparse_attention(*values, rows, scales=scales, sinks=sinks, **CALL),
                 lambda: m.sparse_attention(*values, rows, scales=(scales[0], leaf, None), **CALL)):
        with pytest.raises(msalab.InputError, match="sparse_attention of e4m3 operands has no gradient"):
            call().sum().backward()
    with torch.no_grad():
        assert m.sparse_attention(*values, rows, scales=scales, sinks=sinks, **CALL).dtype is torch.float32
    with pytest.raises(msalab.InputError, match="q is uint8, which no operation takes"):
        m.sparse_attention(*(one.view(torch.uint8) for one in values), rows, scales=scales, **CALL)
    with pytest.raises(msalab.InputError, match="k is bf16|k is bfloat16"):
        m.sparse_attention(values[0], values[1].bfloat16(), values[2], rows, scales=scales, **CALL)
    with pytest.raises(NotImplementedError, match="e4m3"):
        m.dense_attention(*values, **PACKED)
    with pytest.raises(NotImplementedError, match="e4m3"):
        msalab.sparse_attention_grad(*values, rows, torch.zeros(29, HQ, DH), torch.zeros(29, HQ),
                                     torch.zeros(29, HQ, DH), **CALL)


ELEMENTS = pytest.mark.parametrize("element", ["e4m3", "e4m3:unscaled"])
NAMES = ("q", "k", "v", "sinks")


def leaves_of(floats, torch, device="cpu", dtype=None):
    sinks = np.linspace(-2, 2, HQ).astype(np.float32)
    made = {name: torch.from_numpy(one).to(device) for name, one in zip(NAMES, (*floats, sinks))}
    return {name: (one if name == "sinks" else one.to(dtype)).requires_grad_() for name, one in made.items()}


def values_of(leaves, element):
    """q, k and v in doubles, as e4m3 and scales stand for them."""
    torch = pytest.importorskip("torch")
    floats = [leaves[name].detach().float().cpu() for name in "qkv"]
    *stored, scales = msalab.store_e4m3(*(one.numpy() for one in floats), block_size=BK, **PACKED)
    if element == "e4m3":
        return [np.float64(one) for one in read(*stored, scales)]
    near = [one.clamp(-448, 448).to(torch.float8_e4m3fn).double().numpy() for one in floats]
    return [np.float64(read(*stored, scales)[0]), *near[1:]]


def exact_gradient(leaves, values, ids, d_out):
    """name -> (gradient, the size that its error is in units of) of sum(out d_out) at these values."""
    given = {**dict(zip("qkv", values)), "sinks": np.linspace(-2, 2, HQ), "ids": ids, "block_size": BK, "top_k": 3,
             "softmax_scale": DH ** -0.5, "cu_seqlens_q": np.array(CU_Q), "cu_seqlens_k": np.array(CU_K), "d_out": d_out}
    found = Reference().attend(given)
    mean = {**given, "v": np.abs(given["v"])}
    seen = np.isfinite(found["lse"])
    weight = np.where(seen, np.exp(given["sinks"] - np.where(seen, found["lse"], 0)), 0)
    size = weight * np.einsum("ihd,ihd->ih", np.abs(d_out), Reference().attend(mean)["out"])
    gradient = {name: (found[f"d_{name}"], found[f"d_{name}_size"][..., None]) for name in "qkv"}
    gradient["sinks"] = -(weight * (found["out"] * d_out).sum(-1)).sum(0), 2 * size.sum(0)
    return gradient, given


def are_near(found, expected, share, precision="float32"):
    return all((np.abs(one.detach().double().cpu().numpy() - gradient)
                <= share * size + bounds.stored(precision, np.abs(gradient))).all()
               for one, (gradient, size) in zip(found, expected.values()))


def gradients_of(leaves, ids, d_out, element, **changes):
    import msalab.torch as m
    torch = pytest.importorskip("torch")
    options = {"sinks": leaves["sinks"], "element": element, **CALL, **changes}
    out = m.sparse_attention(*(leaves[name] for name in "qkv"), ids, **options)
    return out, torch.autograd.grad(out, list(leaves.values()), torch.from_numpy(d_out).to(out))


@pytest.fixture(scope="module")
def d_out():
    return np.random.default_rng(14).standard_normal((29, HQ, DH)).astype(np.float32)


@ELEMENTS
def test_with_an_element_attention_is_that_of_stored_operands(floats, stored, ids, element):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    leaves, rows = leaves_of(floats, torch), torch.from_numpy(ids)
    q, k, v = (leaves[name] for name in "qkv")
    found = m.sparse_attention(q, k, v, rows, element=element, return_softmax_lse=True, **CALL)
    q8, k8, v8 = (torch.from_numpy(one).view(torch.float8_e4m3fn) for one in stored[:3])
    scales = tuple(map(torch.from_numpy, stored[3]))
    if element == "e4m3:unscaled":
        k8, v8 = (one.detach().clamp(-448, 448).to(torch.float8_e4m3fn) for one in (k, v))
        scales = scales[0], None, None
    for one, other in zip(found, m.sparse_attention(q8, k8, v8, rows, scales=scales, return_softmax_lse=True, **CALL)):
        assert torch.equal(one, other)
    assert found[0].requires_grad and not found[1].requires_grad


@ELEMENTS
def test_the_gradient_is_that_at_the_rounded_numbers(floats, ids, d_out, element):
    torch = pytest.importorskip("torch")
    leaves, rows = leaves_of(floats, torch), torch.from_numpy(ids)
    expected, given = exact_gradient(leaves, values_of(leaves, element), ids, d_out)
    share = bounds.gradient_share(given, "float32", False)
    out, found = gradients_of(leaves, rows, d_out, element)
    assert out.dtype is torch.float32 and are_near(found, expected, share)
    # That at other numbers is further away: unrounded, and rounded otherwise.
    for wrong in ({"element": None}, {"element": {"e4m3": "e4m3:unscaled", "e4m3:unscaled": "e4m3"}[element]}):
        assert not are_near(gradients_of(leaves, rows, d_out, **{"element": element} | wrong)[1], expected, share)


@pytest.mark.parametrize("at, fault", [(0, lambda one: one.flip(1)), (1, lambda one: one.roll(1, 0)),
                                       (2, lambda one: one.roll(1, 0))],
                         ids=["q's of other heads", "k's one block on", "v's one block on"])
def test_other_scales_of_the_gradient_are_caught(floats, ids, d_out, at, fault, monkeypatch):
    """The CPU compares out and lse of the forward pass with what it is given."""
    torch = pytest.importorskip("torch")
    from msalab import rounding
    right = rounding.read

    def wrong(of, *how):
        return right(of._replace(scales=tuple(fault(one) if n == at else one for n, one in enumerate(of.scales))), *how)
    monkeypatch.setattr(rounding, "read", wrong)
    with pytest.raises(msalab.InputError, match="it is not of this input"):
        gradients_of(leaves_of(floats, torch), torch.from_numpy(ids), d_out, "e4m3")


@ELEMENTS
def test_finite_differences_at_the_rounded_numbers(floats, ids, d_out, element):
    """Of the loss in doubles, along the gradient of q, of k and of v; the bound of its curvature is
    attention_difference_bound of core/gradient_tolerance.h, of all rows."""
    torch = pytest.importorskip("torch")
    leaves, step = leaves_of(floats, torch), 2.0 ** -20
    values = values_of(leaves, element)
    expected, given = exact_gradient(leaves, values, ids, d_out)
    _, found = gradients_of(leaves, torch.from_numpy(ids), d_out, element)
    share = bounds.gradient_share(given, "float32", False)

    def loss(at, values):
        return (Reference().attend({**given, **{"qkv"[at]: values}, "d_out": d_out})["out"] * d_out).sum()
    largest = [np.linalg.norm(one, axis=2).max() for one in values]
    for at, one in enumerate(values):
        gradient, size = expected["qkv"[at]]
        direction = gradient / np.abs(gradient).max()
        difference = (loss(at, one + step * direction) - loss(at, one - step * direction)) / (2 * step)
        other = largest[1 - at] if at < 2 else 0
        slope = DH ** -0.5 * other * np.linalg.norm(direction, axis=2).max()
        most = largest[2] * np.linalg.norm(d_out, axis=2).max()
        logit = DH ** -0.5 * largest[0] * largest[1]
        curved = 29 * HQ * (step ** 2 / 6 * 64 * most * slope ** 3 + 2.0 ** -52 * most * (logit + 100) / step)
        off = (share * size * np.abs(direction)).sum() + 2.0 ** -24 * (gradient * direction).sum()
        along = (found[at].double().numpy() * direction).sum()
        assert abs(along - difference) <= curved + off < 0.1 * abs(difference)


def test_the_gradient_passes_what_became_448_and_stops_at_no_nan(floats, ids):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    q, k, v = (torch.from_numpy(one.copy()) for one in floats)
    k[0, 0, 0], k[1, 0, 0], v[2, 1, 1], k[19, 0, 3] = 1e4, -torch.inf, torch.inf, torch.nan
    leaves, rows = [one.requires_grad_() for one in (q, k, v)], torch.from_numpy(ids)
    ended = [one.detach().clamp(-448, 448).requires_grad_() for one in leaves]
    for some in (leaves, ended):
        m.sparse_attention(*some, rows, element="e4m3:unscaled", **CALL).square().sum().backward()
    for one, other in zip(leaves, ended):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, equal_nan=True)
    assert leaves[1].grad[0, 0, 0] != 0 and leaves[2].grad[2, 1, 1] != 0
    assert leaves[0].grad[19, :2].isnan().all()  # which alone sees the NaN
    assert leaves[0].grad[:19].isfinite().all() and leaves[0].grad[20:].isfinite().all()


def test_types_transforms_and_compilers_of_the_gradient(floats, ids, d_out):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    leaves, rows = leaves_of(floats, torch, dtype=torch.bfloat16), torch.from_numpy(ids)
    out, found = gradients_of(leaves, rows, d_out, "e4m3")
    assert out.dtype is torch.bfloat16 and [one.dtype for one in found] == [torch.bfloat16] * 3 + [torch.float32]
    wide = {name: one.detach().float().requires_grad_() for name, one in leaves.items()}
    exact = gradients_of(wide, rows, torch.from_numpy(d_out).bfloat16().float().numpy(), "e4m3")
    for one, other in zip((out, *found), (exact[0], *exact[1])):
        assert torch.equal(one, other.to(one.dtype))

    def loss(q, k=wide["k"], v=wide["v"], cu=PACKED):
        return (m.sparse_attention(q, k, v, rows, element="e4m3", block_size=BK, sinks=wide["sinks"], **cu)
                * torch.from_numpy(d_out)).sum()
    own = torch.autograd.grad(loss(wide["q"]), [wide[name] for name in NAMES])
    assert torch.equal(torch.func.grad(loss)(wide["q"].detach()), own[0])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for some in (loss(wide["q"], cu={name: torch.tensor(one) for name, one in PACKED.items()}), compiled(wide["q"])):
        for one, other in zip(torch.autograd.grad(some, [wide[name] for name in NAMES]), own):
            assert torch.equal(one, other)
    with pytest.raises(msalab.InputError, match="sparse_attention_rounded has no derivative in forward mode"):
        torch.func.jvp(loss, (wide["q"].detach(),), (wide["q"].detach(),))
    first = torch.autograd.grad(loss(wide["q"]), wide["q"], create_graph=True)[0]
    with pytest.raises(msalab.InputError, match="a gradient of attention has no gradient of its own"):
        first.sum().backward()
    with torch.no_grad():
        stored = m.round_operands(*(wide[name] for name in "qkv"), "e4m3", block_size=BK, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K)
    torch.library.opcheck(torch.ops.msalab.sparse_attention_rounded.default, (
        *stored[:3], rows, wide["sinks"], *stored.scales, *(wide[name] for name in "qkv"), None, None, None, BK, "automatic",
        CU_Q, CU_K), test_utils=("test_autograd_registration", "test_faketensor"))


def test_what_an_element_does_not_go_with_is_refused_by_name(floats, stored, ids):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    q, k, v = map(torch.from_numpy, floats)
    rows = torch.from_numpy(ids)

    def refused(said, *operands, **options):
        with pytest.raises(msalab.InputError, match=said):
            m.sparse_attention(*operands, rows, **{"element": "e4m3", **CALL, **options})
    refused(r"element is e4m2 \(did you mean 'e4m3'\?\)", q, k, v, element="e4m2")
    for options in ({"scales": (None, None, None)}, {"out": torch.empty(29, HQ, DH)}, {"validate": True}):
        refused("scales, out, lse, validate and keys in pages are not taken beside it", q, k, v, **options)
    q8 = torch.from_numpy(stored[0]).view(torch.float8_e4m3fn)
    refused("q is torch.float8_e4m3fn, must be float32, bfloat16 or float16 to be rounded to e4m3", q8, k, v)
    refused(r"v has shape \[65, 2, 16\], must be that of k = \[66, 2, 16\]", q, k, v[:65])
    refused(r"q has shape \[29, 64\], must be \[Nq, Hq, dh\]", q.flatten(1), k, v)
    refused("k has 65 tokens, must have the 66 of cu_seqlens_k", q, k[:65], v[:65])
    refused(r"q has shape \[28, 4, 16\], must be \[Nq, Hq, dh\] = \[29, 4, 16\]", q[:28], k, v)
    q.requires_grad_()
    with pytest.raises(msalab.InputError, match="sparse_attention with a window or a soft cap has no gradient"):
        m.sparse_attention(q, k, v, rows, element="e4m3", window=9, **CALL).sum().backward()


@ELEMENTS
@pytest.mark.parametrize("width, block_size", [(128, 128), (64, 64)])
def test_on_a_gpu_the_gradient_is_sparse_attentions_in_bfloat16(element, width, block_size):
    """To the bit, of what kernels of e4m3 gave; and near that in doubles at the rounded numbers."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    import msalab.torch as m
    tokens, groups, heads = 1000, 2, 8
    draw = torch.Generator().manual_seed(16)
    q, k, v, d_out = (torch.randn(tokens, count, width, generator=draw).to("cuda", torch.bfloat16).requires_grad_()
                      for count in (heads, groups, groups, heads))
    index_q, index_k = torch.randn(tokens, groups, 64, generator=draw), torch.randn(tokens, 64, generator=draw)
    cu = {"cu_seqlens_q": [0, 300, tokens], "cu_seqlens_k": [0, 300, tokens]}
    call = {"block_size": block_size, **cu}
    rows = m.index_select(index_q, index_k, 4, **call).cuda()
    out = m.sparse_attention(q, k, v, rows, element=element, **call)
    assert m.operations.backend_of(q).answered_by.startswith("sparse_attention")
    found = torch.autograd.grad(out, (q, k, v), d_out)
    stored = m.round_operands(q, k, v, element, block_size=block_size, **cu)
    own, lse = m.sparse_attention(*stored[:3], rows, scales=stored.scales, return_softmax_lse=True, **call)
    assert torch.equal(own, out)
    blocks = torch.cat([torch.arange(300) // block_size, torch.arange(tokens - 300) // block_size
                        + -(-300 // block_size)]).cuda()
    of_q, of_k, of_v = stored.scales
    numbers = [stored.q.float() * of_q[..., None], *(
        one.float() * (1 if of is None else of[blocks][..., None]) for one, of in ((stored.k, of_k), (stored.v, of_v)))]
    with torch.no_grad():
        own = msalab.sparse_attention_grad(*(one.bfloat16() for one in numbers), rows, out, lse, d_out, **call)
    for one, other in zip(found, own):
        assert one.dtype is torch.bfloat16 and torch.equal(one, other)
    given = {**{name: one.double().cpu().numpy() for name, one in zip("qkv", numbers)}, "ids": rows.cpu().numpy(),
             "block_size": block_size, "top_k": 4, "softmax_scale": width ** -0.5,
             **{name: np.array(one) for name, one in cu.items()}, "d_out": d_out.detach().double().cpu().numpy()}
    right, half, keys = Reference().attend(given), bounds.STORED["bfloat16"], 4 * block_size
    largest = [np.linalg.norm(given[name], axis=2).max() for name in "qk"]
    # A logit: of products in e4m3, and of numbers that are rounded once more. Outputs: of weights in e4m3.
    logit = bounds.e4m3_product_bound(np.array([largest[0]]), np.array([[largest[1]]]), width ** -0.5) * -(-width // 32)
    logit += (2 * half + half ** 2) * width ** -0.5 * largest[0] * largest[1]
    mean, most = bounds.e4m3_weights_bound(keys, block_size)
    spread = np.abs(given["v"]).max() / np.abs(given["v"]).mean()
    share = bounds.gradient_share(given, "bfloat16", False) + 2 * bounds.weight_bound(logit, keys) + mean + most * spread
    expected = {name: (right[f"d_{name}"], right[f"d_{name}_size"][..., None]) for name in "qkv"}
    assert are_near(found, expected, share, "bfloat16")
    assert not are_near([one.roll(1, 0) for one in found], expected, share, "bfloat16")
