# SPDX-License-Identifier: MIT
"""The operations on numpy arrays against the equations, written out here with numpy in doubles."""

import doctest

import numpy as np
import pytest

pytest.importorskip("msalab._msalab")

import msalab.operations  # noqa: E402

HQ, HKV, DH, DIDX, BK, K = 4, 2, 16, 16, 8, 3
CU_Q, CU_K = [0, 20, 20, 29], [0, 20, 25, 66]  # square, without queries, a chunk behind a prefix


def rows():
    """(query, first key, visible keys) of every query: the last query sits on the last key."""
    for s in range(len(CU_Q) - 1):
        queries, keys = CU_Q[s + 1] - CU_Q[s], CU_K[s + 1] - CU_K[s]
        for i in range(queries):
            yield CU_Q[s] + i, CU_K[s], keys - queries + i + 1


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    nq, nk = CU_Q[-1], CU_K[-1]
    shapes = {"q": (nq, HQ, DH), "k": (nk, HKV, DH), "v": (nk, HKV, DH), "sinks": (HQ,),
              "index_q": (nq, HKV, DIDX), "index_k": (nk, DIDX)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


PACKED = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}


def attend(data, keep=None, sinks=None):
    """out, lse in doubles; keep(query, group, position): is the key in the support?"""
    q, k, v = (data[name].astype(float) for name in "qkv")
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for i, first, count in rows():
        for h in range(HQ):
            g = h // (HQ // HKV)
            at = [j for j in range(count) if keep is None or keep(i, g, j)]
            logits = [q[i, h] @ k[first + j, g] / DH ** 0.5 for j in at]
            logits += [] if sinks is None else [float(sinks[h])]
            if not logits:
                continue
            lse[i, h] = np.log(np.sum(np.exp(logits)))
            for j, logit in zip(at, logits):
                out[i, h] += np.exp(logit - lse[i, h]) * v[first + j, g]
    return out, lse


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def kept_by(ids):
    return lambda i, g, j: j // BK in ids[i, g]


@pytest.fixture(scope="module")
def ids(data):
    return msalab.msa_index_select(data["index_q"], data["index_k"], K, block_size=BK, **PACKED)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_int8_operands_are_exact(data, backend):
    index_q, index_k, scales = msalab.store_int8(data["index_q"], data["index_k"], block_size=BK,
                                                 **PACKED)
    assert index_q.dtype == index_k.dtype == np.int8
    one, blocks = np.float32(DIDX ** -0.5), np.full((CU_Q[-1], HKV, 6), -np.inf, np.float32)
    first_block = np.cumsum([0] + [-(-(b - a) // BK) for a, b in zip(CU_K, CU_K[1:])])
    assert scales[1].shape == (first_block[-1], 1)
    np.testing.assert_array_equal(scales[0], np.abs(data["index_q"]).max(-1) / np.float32(127))
    for i, first, count in rows():
        of_blocks = scales[1][first_block[CU_K.index(first)]:, 0]
        for g in range(HKV):
            products = index_k[first:first + count].astype(int) @ index_q[i, g].astype(int)
            for b in range(-(-count // BK)):
                largest = np.float32(products[b * BK:(b + 1) * BK].max())
                blocks[i, g, b] = one * scales[0][i, g] * (of_blocks[b] * largest)
    options = dict(scales=scales, block_size=BK, backend=backend, **PACKED)
    found = msalab.index_scores(index_q, index_k, **options)
    np.testing.assert_array_equal(found, blocks)
    near(found, msalab.index_scores(index_q * scales[0][..., None], index_k.astype(np.float32) * (
        np.concatenate([scales[1][first_block[s]:first_block[s + 1]].repeat(BK, 0)[:b - a]
                        for s, (a, b) in enumerate(zip(CU_K, CU_K[1:]))])), block_size=BK, **PACKED))
    np.testing.assert_array_equal(
        msalab.index_select(index_q, index_k, K, **options),
        msalab.select_blocks(found, K, block_size=BK, backend=backend, **PACKED))
    with pytest.raises(msalab.InputError, match="scales must be a pair"):
        msalab.index_scores(index_q, index_k, **{**options, "scales": scales[0]})


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_dense_attention_is_the_equation(data, backend, with_sinks):
    sinks = data["sinks"] if with_sinks else None
    out, lse = msalab.dense_attention(data["q"], data["k"], data["v"], sinks=sinks, **PACKED,
                                      return_softmax_lse=True, backend=backend)
    expected, expected_lse = attend(data, sinks=sinks)
    assert out.dtype == np.float32 and lse.shape == (CU_Q[-1], HQ)
    near(out, expected)
    near(lse, expected_lse)


def test_sparse_attention_is_the_equation(data, ids):
    out, lse = msalab.msa_sparse_attention(data["q"], data["k"], data["v"], ids, block_size=BK,
                                           return_softmax_lse=True, **PACKED)
    expected, expected_lse = attend(data, kept_by(ids))
    near(out, expected)
    near(lse, expected_lse)


def test_scores_and_selection_are_the_equations(data, ids):
    scores = msalab.msa_proxy_score(data["index_q"], data["index_k"], block_size=BK, **PACKED)
    index_q, index_k = data["index_q"].astype(float), data["index_k"].astype(float)
    for i, first, count in rows():
        for g in range(HKV):
            products = index_k[first:first + count] @ index_q[i, g] / DIDX ** 0.5
            blocks = -(-count // BK)
            expected = [products[b * BK:(b + 1) * BK].max() for b in range(blocks)]
            near(scores[i, g, :blocks], expected)
            assert np.all(np.isneginf(scores[i, g, blocks:]))
            best = sorted(range(blocks - 1), key=lambda b: -expected[b])[:K - 1]
            row = sorted([*best, blocks - 1])
            assert ids[i, g].tolist() == row + [-1] * (K - len(row))
    again = msalab.msa_topk_select(scores, K, block_size=BK, **PACKED)
    np.testing.assert_array_equal(again, ids)


def test_forced_blocks_are_kept(data):
    ids = msalab.msa_index_select(data["index_q"], data["index_k"], K, forced_first=1,
                                  forced_local=2, block_size=BK, **PACKED)
    for i, _, count in rows():
        last = (count - 1) // BK
        assert {0, max(last - 1, 0), last} <= set(ids[i, 0].tolist())


def test_block_mass_is_the_probability_of_blocks(data):
    mass, top = msalab.msa_block_mass(data["q"], data["k"], block_size=BK, return_max_logit=True,
                                      **PACKED)
    q, k = data["q"].astype(float), data["k"].astype(float)
    for i, first, count in rows():
        for g in range(HKV):
            logits = np.stack([k[first:first + count, g] @ q[i, h] / DH ** 0.5
                               for h in (2 * g, 2 * g + 1)])
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            for b in range(-(-count // BK)):
                near(mass[i, g, b], p[:, b * BK:(b + 1) * BK].sum(1).mean())
                near(top[i, g, b], logits[:, b * BK:(b + 1) * BK].max())


def test_gradients_are_slopes(data, ids):
    rng = np.random.default_rng(4)
    d_out = rng.standard_normal(data["q"].shape).astype(np.float32)
    out, lse = msalab.msa_sparse_attention(data["q"], data["k"], data["v"], ids, block_size=BK,
                                           sinks=data["sinks"], return_softmax_lse=True, **PACKED)
    found = msalab.msa_sparse_attention_grad(data["q"], data["k"], data["v"], ids, out, lse, d_out,
                                             sinks=data["sinks"], block_size=BK, **PACKED)

    def loss(values):
        return np.sum(attend(values, kept_by(ids), values["sinks"])[0] * d_out)

    for name, gradient in zip(("q", "k", "v", "sinks"), found):
        direction = rng.standard_normal(data[name].shape)
        step = 1e-5
        ends = [loss({**data, name: data[name].astype(float) + sign * step * direction})
                for sign in (1, -1)]
        assert np.sum(gradient * direction) == pytest.approx((ends[0] - ends[1]) / (2 * step),
                                                             rel=1e-4)


def test_kl_falls_along_its_gradient(data, ids):
    kl, d_index_q, d_index_k = msalab.msa_index_kl(data["q"], data["k"], data["index_q"],
                                                   data["index_k"], ids, block_size=BK, **PACKED)
    assert kl.dtype == np.float64 and np.all(kl >= -1e-6)
    moved = [data["index_q"] - d_index_q, data["index_k"] - d_index_k]
    lower = msalab.msa_index_kl(data["q"], data["k"], *moved, ids, block_size=BK,
                                return_gradient=False, **PACKED)
    assert lower.mean() < kl.mean()


def test_kl_takes_what_the_forward_pass_knows(data, ids):
    at = {"block_size": BK, **PACKED}
    index = data["index_q"], data["index_k"]
    again, index_lse = msalab.msa_index_select(*index, K, return_index_lse=True, **at)
    np.testing.assert_array_equal(again, ids)
    for i, first, count in rows():
        for g in range(HKV):
            kept = [j for j in range(count) if j // BK in ids[i, g]]
            logits = data["index_k"][[first + j for j in kept]] @ data["index_q"][i, g].astype(float)
            near(index_lse[i, g], np.log(np.sum(np.exp(logits / DIDX ** 0.5))))
    _, main_lse = msalab.msa_sparse_attention(data["q"], data["k"], data["v"], ids,
                                              return_softmax_lse=True, **at)
    found = msalab.msa_index_kl(data["q"], data["k"], *index, ids, **at)
    known = msalab.msa_index_kl(data["q"], data["k"], *index, ids, main_lse=main_lse,
                                index_lse=index_lse, **at)
    for one, other in zip(known, found):
        near(one, other)
    for name, given in (("main_lse", main_lse), ("index_lse", index_lse)):
        with pytest.raises(msalab.InputError, match=rf"{name}\[\d+, \d+\] is .*, must be .* within"):
            msalab.msa_index_kl(data["q"], data["k"], *index, ids, **{name: given - 3}, **at)


def test_a_decode_step_is_the_last_row_of_its_sequence(data):
    whole = [0, 41]
    q, k, v = data["q"][-1:], data["k"][25:], data["v"][25:]
    ids = np.array([[[0, 2, 5], [1, 5, -1]]], np.int32)
    out = msalab.msa_sparse_decode_attention(q, k, v, ids, block_size=BK, cu_seqlens_k=whole)
    near(out, attend(data, lambda i, g, j: j // BK in ids[0, g])[0][-1:])
    with pytest.raises(msalab.InputError, match="q holds 2 queries: cu_seqlens_k must delimit"):
        msalab.msa_sparse_decode_attention(data["q"][:2], k, v, ids)


def test_a_layout_is_kept_across_calls(data):
    kept = msalab.layout(CU_Q, CU_K)
    assert (kept.sequences, kept.queries, kept.keys) == (3, 29, 66)
    near(msalab.dense_attention(data["q"], data["k"], data["v"], layout=kept), attend(data)[0])
    with pytest.raises(msalab.InputError, match="layout excludes cu_seqlens_q"):
        msalab.dense_attention(data["q"], data["k"], data["v"], layout=kept, cu_seqlens_q=CU_Q)


def test_bad_input_is_named_with_value_and_rule(data, ids):
    q, k, v = data["q"], data["k"], data["v"]

    def refused(message, call, *arguments, kind=msalab.InputError, **options):
        with pytest.raises(kind, match=message):
            call(*arguments, **options)

    dense, sparse = msalab.dense_attention, msalab.msa_sparse_attention
    refused(r"q has shape \[29, 64\], must be \[Nq, Hq, dh\]", dense, q.reshape(29, -1), k, v)
    refused("q is list, must be a dense array or tensor", dense, [1], k, v)
    refused("q is not contiguous", dense, np.asfortranarray(q), k, v, **PACKED)
    refused("ids is int64, must be int32", sparse, q, k, v, ids.astype(np.int64),
            block_size=BK, **PACKED)
    refused("q is int16, which no operation takes", dense, q.astype(np.int16), k, v, **PACKED)
    refused(r"cu_seqlens_q\[1\]|cu_seqlens_q", dense, q, k, v, cu_seqlens_q=[0, 40, 29],
            cu_seqlens_k=[0, 20, 66])
    refused("cu_seqlens_q holds .*, must be integers", dense, q, k, v, cu_seqlens_q=[0, 2.5])
    refused("top_k is 0, must be at least 1", msalab.msa_index_select, data["index_q"],
            data["index_k"], 0)
    bad = ids.copy()
    bad[3, 1] = [1, 0, -1]
    refused(r"^ids\[3, 1", sparse, q, k, v, bad, block_size=BK, **PACKED)
    refused("order is 'zigzag', must be automatic, union, kv_outer or q_outer", sparse, q, k, v,
            ids, order="zigzag", block_size=BK, **PACKED)
    refused("no backend is called 'abacus'", dense, q, k, v, backend="abacus", **PACKED)
    refused("backend is 'cuda', but q and the other arrays lie on the CPU", dense, q, k, v,
            backend="cuda", **PACKED)
    double = [data[name].astype(float) for name in "qkv"]
    refused("f64", dense, *double, kind=msalab.UnsupportedError, **PACKED)
    assert issubclass(msalab.InputError, ValueError)


@pytest.mark.parametrize("message, options", [
    ("softmax_scale is nan, must be finite and positive", {"softmax_scale": float("nan")}),
    ("softmax_scale is -1, must be finite and positive", {"softmax_scale": -1}),
    ("window is 0, must be at least 1", {"window": 0}),
    ("softcap is 0, must be finite and positive", {"softcap": 0.0}),
    (r"sinks has shape \[3\], must be \[Hq\] = \[4\]", {"sinks": np.zeros(3, np.float32)}),
    ("backend is 3, must be a word", {"backend": 3}),
    (r"layout is \[0, 29\], must be what msalab.layout returns", {"layout": [0, 29]}),
    ("cu_seqlens_q holds '029', must be integers", {"cu_seqlens_q": "029"}),
    ("must be integers of 64 bits", {"cu_seqlens_q": [0, 2 ** 63]}),
    ("v is NoneType, must be a dense array or tensor", {"v": None}),
    ("v is str, must be a dense array or tensor", {"v": "v"}),
    ("v is ndarray, dtype object, must be a dense array", {"v": np.zeros((29, HKV, DH), object)}),
    ("v is ndarray, dtype >f4, must be a dense array", {"v": np.zeros((29, HKV, DH), ">f4")}),
    ("v has 5 dimensions, must have 3", {"v": np.zeros((1, 1, 29, HKV, DH), np.float32)}),
    ("q is NoneType, must be a dense array or tensor", {"q": None})])
def test_each_argument_is_refused_by_name(data, message, options):
    arrays = {name: data[name][:29] for name in "qkv"}
    with pytest.raises(msalab.InputError, match=message):
        msalab.dense_attention(**{**arrays, **options})


@pytest.mark.parametrize("message, options", [
    ("top_k is 2.5, must be an integer", {"top_k": 2.5}),
    ("top_k is None, must be an integer", {"top_k": None}),
    (f"top_k is {2 ** 70}, must be an integer of 64 bits", {"top_k": 2 ** 70}),
    (f"block_size is {2 ** 70}, must be an integer of 64 bits", {"block_size": 2 ** 70}),
    ("block_size is 0, must be from 8 to 256", {"block_size": 0}),
    ("block_size is None, must be an integer", {"block_size": None}),
    ("forced_first is 'a', must be an integer", {"forced_first": "a"}),
    ("forced_local is 1.5, must be an integer", {"forced_local": 1.5}),
    ("forced_local is 0, must be at least 1", {"forced_local": 0}),
    ("forced_first is -1, must not be negative", {"forced_first": -1}),
    (r"forced_local \+ forced_first is 4, must not exceed top_k = 3",
     {"forced_first": 2, "forced_local": 2}),
    ("index_scale is -1, must be finite and positive", {"index_scale": -1})])
def test_each_number_of_a_selection_is_refused_by_name(data, message, options):
    arrays = {"index_q": data["index_q"], "index_k": data["index_k"][:29]}
    with pytest.raises(msalab.InputError, match=message):
        msalab.msa_index_select(**{**arrays, "top_k": K, **options})


@pytest.mark.parametrize("value, message", [(0, "must be from 1 to 256"),
                                            (-8, "must be from 1 to 256"),
                                            (8.0, "must be an integer")])
def test_the_block_size_is_refused_before_blocks_are_counted(data, value, message):
    with pytest.raises(msalab.InputError, match=f"block_size is {value}, {message}"):
        msalab.msa_block_mass(data["q"][:29], data["k"][:29], block_size=value)
    with pytest.raises(msalab.InputError, match=f"block_size is {value}, {message}"):
        msalab.msa_proxy_score(data["index_q"], data["index_k"][:29], block_size=value)


def test_a_call_finds_the_problem_of_its_own_arguments(data):
    """Of what was called before, and not of what merely looks like it."""
    q, k, v = (data[name][:29] for name in "qkv")
    lengths = [0, 9, 29]
    first = msalab.dense_attention(q, k, v, cu_seqlens_q=lengths)
    lengths[1] = 20
    second = msalab.dense_attention(q, k, v, cu_seqlens_q=lengths)
    assert not np.array_equal(first, second)
    for alike in ((0, 20, 29), np.array(lengths), [np.int64(0), 20, 29],
                  {"layout": msalab.layout(lengths)}, {"cu_seqlens_k": lengths}):
        options = alike if isinstance(alike, dict) else {"cu_seqlens_q": alike}
        np.testing.assert_array_equal(msalab.dense_attention(q, k, v, **options), second)
    for wrong in ([0.0, 20, 29], [0, 20.0, 29], "029"):
        with pytest.raises(msalab.InputError, match="must be integers"):
            msalab.dense_attention(q, k, v, cu_seqlens_q=wrong)
    scaled = [msalab.dense_attention(q, k, v, softmax_scale=scale)
              for scale in (1, 1.0, None, 0.25)]
    np.testing.assert_array_equal(scaled[0], scaled[1])
    np.testing.assert_array_equal(scaled[2], scaled[3])  # 1 / sqrt(16)
    assert not np.array_equal(scaled[1], scaled[2])
    windows = [msalab.dense_attention(q, k, v, window=window) for window in (2, 3, None, True)]
    assert len({window.tobytes() for window in windows}) == 4
    for many in range(40):  # more than are kept
        cu = [0, many % 29, 29]
        np.testing.assert_array_equal(
            msalab.dense_attention(q, k, v, cu_seqlens_q=cu),
            msalab.dense_attention(q, k, v, layout=msalab.layout(cu)))


@pytest.mark.parametrize("value, rule", [(7, "sees 1 blocks"), (-2, "sees 1 blocks"),
                                         (2 ** 31 - 1, "sees 1 blocks")])
def test_ids_out_of_range_are_refused(data, value, rule):
    arrays = [data[name][:29] for name in "qkv"]
    ids = np.full((29, HKV, 1), value, np.int32)
    with pytest.raises(msalab.InputError, match=rf"^ids\[0, 0, 0\] is {value}, .*{rule}"):
        msalab.msa_sparse_attention(*arrays, ids, block_size=BK)
    index = data["index_q"][:29], data["index_k"][:29]
    with pytest.raises(msalab.InputError, match=rf"^ids\[0, 0, 0\] is {value}, .*{rule}"):
        msalab.msa_index_kl(*arrays[:2], *index, ids, block_size=BK)
    with pytest.raises(msalab.InputError, match="^ids has k = 0, must be at least 1"):
        msalab.msa_sparse_attention(*arrays, ids[:, :, :0], block_size=BK)
    with pytest.raises(msalab.InputError, match="^ids has shape"):
        msalab.msa_sparse_attention(*arrays, ids[1:], block_size=BK)
    with pytest.raises(msalab.InputError, match="order is None, must be a word"):
        msalab.msa_sparse_attention(*arrays, ids, block_size=BK, order=None)
    with pytest.raises(msalab.InputError, match="ids is NoneType, must be a dense array"):
        msalab.msa_sparse_attention(*arrays, None, block_size=BK)


def test_backends_say_why_they_cannot_start():
    found = msalab.backends()
    assert found["cpu"] == "" and found["reference"] == ""
    assert "cuda" in found


def test_the_authors_names_are_those_of_the_same_functions():
    table = [line.split() for line in msalab.__doc__.splitlines() if " msa_" in line]
    assert len(table) == 8
    for ours, theirs in table:
        assert getattr(msalab, ours) is getattr(msalab, theirs)
        assert ours in msalab.__all__ and theirs in msalab.__all__


READ_ONLY = ("flag", "bytes", "memmap")


def read_only(kind, shape, dtype, tmp_path):
    """Zeros that nobody may change."""
    if kind == "bytes":
        return np.frombuffer(bytes(int(np.prod(shape)) * 4), dtype).reshape(shape)
    if kind == "memmap":
        path = tmp_path / "zeros"
        np.zeros(shape, dtype).tofile(path)
        return np.memmap(path, dtype, "r", shape=shape)
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("kind", READ_ONLY)
def test_what_is_read_only_is_no_output(data, kind, tmp_path):
    of = {name: data[name] for name in ("q", "k", "v")}
    ids = msalab.index_select(data["index_q"], data["index_k"], K, block_size=BK, **PACKED)

    def refused(name, shape, dtype, call):
        array = read_only(kind, shape, dtype, tmp_path)
        with pytest.raises(msalab.InputError, match=f"^{name} is read-only, must be writable$"):
            call(array)
        assert not array.any()

    refused("ids", ids.shape, np.int32, lambda array: msalab.index_select(
        data["index_q"], data["index_k"], K, block_size=BK, out=array, **PACKED))
    sparse = {**of, "ids": ids, "block_size": BK, **PACKED}
    refused("out", data["q"].shape, np.float32, lambda array: msalab.sparse_attention(**sparse, out=array))
    refused("lse", data["q"].shape[:2], np.float32, lambda array: msalab.sparse_attention(**sparse, lse=array))
    refused("pool", (2, 8, DIDX), np.float32, lambda array: msalab.append(
        array, np.ones((1, DIDX), np.float32), np.zeros((1, 2), np.int32), [1]))
    # As an input it is as good as any other.
    for name in of:
        of[name] = data[name].copy()
        of[name].flags.writeable = False
    same = msalab.sparse_attention(**{**sparse, **of})
    assert (same == msalab.sparse_attention(**sparse)).all()


def test_a_mask_of_numpy_is_not_lost(data):
    masked = np.ma.masked_array(data["index_q"], np.zeros(data["index_q"].shape, bool))
    with pytest.raises(msalab.InputError, match="^index_q is a masked array, whose mask no operation reads"):
        msalab.index_select(masked, data["index_k"], K, block_size=BK, **PACKED)
    with pytest.raises(msalab.InputError, match="^rows is a masked array"):
        msalab.append(np.zeros((2, 8, DIDX), np.float32), masked[:1, 0], np.zeros((1, 2), np.int32), [1])


@pytest.mark.parametrize("change, words", [
    ({"pool": np.zeros((2, 8, DIDX), object)}, "is no pool: it must be of numbers"),
    ({"pool": np.zeros((2, 8, 2 * DIDX), np.float32)[..., ::2]}, "is no pool: .* contiguous on its last axis"),
    ({"rows": np.full((1, DIDX), "a")}, "rows cannot be stored as float32"),
    ({"max_seqlen_k": "70"}, "max_seqlen_k is '70', must be an integer")])
def test_append_refuses_by_name(change, words):
    given = {"pool": np.zeros((2, 8, DIDX), np.float32), "rows": np.ones((1, DIDX), np.float32),
             "page_table": np.zeros((1, 2), np.int32), "seqused_k": [1]} | change
    with pytest.raises(msalab.InputError, match=words):
        msalab.append(**given)


@pytest.mark.parametrize("top_k", [1 << 45, 1 << 62])
def test_more_blocks_than_memory(data, top_k):
    with pytest.raises(msalab.OutOfMemoryError, match=f"29 x 2 x {top_k} int32 cannot be had"):
        msalab.index_select(data["index_q"], data["index_k"], top_k, block_size=BK, **PACKED)


def test_the_examples_of_the_help_are_right():
    ran = doctest.testmod(msalab.operations)
    assert ran.attempted >= 10 and ran.failed == 0
