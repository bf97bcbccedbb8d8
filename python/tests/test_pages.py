# SPDX-License-Identifier: MIT
"""Keys in the pages of a cache: the same bits as packed keys, on arrays and on tensors."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("msalab._msalab")

import msalab  # noqa: E402

HQ, HKV, DH, DIDX, BK, K, SIZE, POOL = 4, 2, 16, 16, 8, 3, 16, 24
USED = [40, 0, 129, 7]
CU_Q, CU_K = [0, 5, 5, 6, 13], list(np.cumsum([0, *USED]))
PACKED = {"block_size": BK, "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}


def table():
    """Pages in no order; -1 where a sequence has none."""
    pages = np.random.default_rng(1).permutation(POOL).astype(np.int32)
    made = np.full((len(USED), 10), -1, np.int32)
    for row, tokens in zip(made, USED):
        count = -(-tokens // SIZE)
        row[:count], pages = pages[:count], pages[count:]
    return made


def paged(**options):
    return {"block_size": BK, "cu_seqlens_q": CU_Q, "page_table": table(), "seqused_k": USED, **options}


def pool(keys):
    """NaN in every row that is no token's."""
    made = np.full((POOL, SIZE, *keys.shape[1:]), np.nan, np.float32)
    for s, pages in enumerate(table()):
        for j in range(USED[s]):
            made[pages[j // SIZE], j % SIZE] = keys[CU_K[s] + j]
    return made


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    nq, nk = CU_Q[-1], CU_K[-1]
    shapes = {"q": (nq, HQ, DH), "k": (nk, HKV, DH), "v": (nk, HKV, DH), "index_q": (nq, HKV, DIDX),
              "index_k": (nk, DIDX)}
    return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


def same(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.fixture(scope="module")
def expected(data):
    q, k, v, index_q, index_k = data.values()
    ids, index_lse = msalab.index_select(index_q, index_k, K, return_index_lse=True, **PACKED)
    out, lse = msalab.sparse_attention(q, k, v, ids, return_softmax_lse=True, **PACKED)
    return {"scores": msalab.index_scores(index_q, index_k, **PACKED), "ids": ids,
            "index_lse": index_lse, "out": out, "lse": lse, "mass": msalab.block_mass(q, k, **PACKED)}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_pages_give_what_packed_keys_give(data, backend, expected):
    q, k, v, index_q, index_k = data.values()
    if backend == "reference":
        ids = msalab.index_select(index_q, index_k, K, backend=backend, **PACKED)
        expected = {**expected, "ids": ids,
                    "out": msalab.sparse_attention(q, k, v, ids, backend=backend, **PACKED)}
    options = paged(backend=backend)
    ids = msalab.msa_index_select(index_q, pool(index_k), K, **options)
    out = msalab.msa_sparse_attention(q, pool(k), pool(v), ids, **options)
    same((ids, out), (expected["ids"], expected["out"]))
    if backend == "cpu":
        same((msalab.index_scores(index_q, pool(index_k), **options),
              msalab.block_mass(q, pool(k), **options)), (expected["scores"], expected["mass"]))


def test_k_and_v_may_share_a_page(data, expected):
    """As vLLM lays them out: one behind the other in a page, or beside each other in a row."""
    q, k, v = data["q"], pool(data["k"]), pool(data["v"])
    for both, axis in ((np.stack([k, v], 1), 1), (np.concatenate([k, v], 3), 3)):
        parts = (both[:, 0], both[:, 1]) if axis == 1 else (both[..., :DH], both[..., DH:])
        assert not parts[0].flags.c_contiguous
        same([msalab.sparse_attention(q, *parts, expected["ids"], **paged())], [expected["out"]])


def test_results_go_where_the_caller_says(data, expected):
    q, k, v, index_q, index_k = data.values()
    ids = np.full_like(expected["ids"], -7)
    assert msalab.index_select(index_q, pool(index_k), K, out=ids, **paged()) is ids
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:2], np.nan, np.float32)
    assert msalab.sparse_attention(q, pool(k), pool(v), ids, out=out, lse=lse, **paged()) is out
    same((ids, out, lse), (expected["ids"], expected["out"], expected["lse"]))
    packed = np.full_like(q, np.nan)
    msalab.sparse_attention(q, k, v, ids, out=packed, **PACKED)
    same([packed], [out])


def test_a_decode_step_needs_no_lengths_of_queries(data):
    q, k, v, index_q, index_k = data.values()
    rows, options = [0, 1, 2, 3], paged(cu_seqlens_q=None)
    packed = {**PACKED, "cu_seqlens_q": [0, 1, 2, 3, 4]}
    ids = msalab.index_select(index_q[rows], pool(index_k), K, **options)
    same([ids], [msalab.index_select(index_q[rows], index_k, K, **packed)])
    same([msalab.sparse_attention(q[rows], pool(k), pool(v), ids, **options)],
         [msalab.sparse_attention(q[rows], k, v, ids, **packed)])


def test_appended_tokens_are_those_of_the_pool(data):
    for name in ("k", "index_k"):
        keys, expected = data[name], pool(data[name])
        made = np.full_like(expected, np.nan)
        for step in range(0, max(USED), 50):  # 50 tokens of each at a time
            used = [min(tokens, step + 50) for tokens in USED]
            new = [max(0, tokens - step) for tokens in used]
            rows = np.concatenate([keys[CU_K[s] + step:CU_K[s] + step + new[s]]
                                   for s in range(len(USED))])
            msalab.append(made, rows, table(), used, cu_seqlens_q=list(np.cumsum([0, *new])))
        same([made], [expected])


@pytest.mark.parametrize("change, message", [
    ({"seqused_k": None}, "with a page_table seqused_k says the keys of each sequence; layout and "
                          "cu_seqlens_k must be absent"),
    ({"page_table": None}, "seqused_k belongs to a page_table, which is absent"),
    ({"seqused_k": [40, 0, -1, 7]}, "seqused_k of sequence 2 is -1, must be at least 0"),
    ({"seqused_k": [40, 0, 129, 170]}, "seqused_k of sequence 3 is 170, but its row of index_k's "
                                       "page_table has 10 pages of 16 tokens"),
    ({"seqused_k": [40, 0, 129]}, "page_table of index_k has 4 rows, must have one for each sequence "
                                  "= 3"),
    ({"page_table": table().astype(np.int64)}, "page_table is int64, must be int32"),
    ({"page_table": np.where(table() < 0, table(), 24).astype(np.int32)},
     "page_table[0, 0] of index_k is 24, must be a page of the pool's 24"),
    ({"block_size": 24}, "index_k has pages of 16 tokens, but blocks have 24; one must be a multiple "
                         "of the other"),
])
def test_bad_pages_are_named(data, change, message):
    options = paged(**change)
    if change.get("seqused_k") == [40, 0, 129]:
        options["cu_seqlens_q"] = [0, 5, 5, 13]
    with pytest.raises(msalab.InputError) as error:
        msalab.index_select(data["index_q"], pool(data["index_k"]), K, **options)
    assert str(error.value) == message


def test_a_bad_append_writes_nothing(data):
    made = pool(data["k"])
    before = made.copy()
    for used, rows, message in (
            ([40, 0, 129, 7], 4, "rows has 4 rows, must have one for each query = 13"),
            ([40, 0, 129, 6], 13, "sequence 3 is 6, but it has 7 new tokens"),
            ([40, 0, 161, 7], 13, "sequence 2 is 161, but its row of pool's page_table has 10 pages"),
            ([50, 0, 129, 7], 13, r"page_table\[0, 3\] of pool is -1, must be a page of the pool's 24")):
        with pytest.raises(msalab.InputError, match=message):
            msalab.append(made, data["k"][:rows], table(), used, cu_seqlens_q=CU_Q)
    same([made], [before])


def test_rows_take_the_dtype_of_the_pool_and_keep_their_shape(data):
    made = np.zeros((POOL, SIZE, HKV, 2 * DH), np.float16)  # V beside K: a pool with gaps
    msalab.append(made[..., :DH], data["k"], table(), USED, cu_seqlens_q=CU_K)
    expected = np.nan_to_num(pool(data["k"])).astype(np.float16)
    same([made[..., :DH], made[..., DH:]], [expected, np.zeros_like(expected)])
    with pytest.raises(msalab.InputError, match=r"rows has shape \[176, 2, 8\], must be \[176, 2, 16\]"):
        msalab.append(made[..., :DH], data["k"][..., :8], table(), USED, cu_seqlens_q=CU_K)


def test_lengths_have_a_bound_and_tables_are_checked(data):
    options = paged(max_seqlen_k=129, validate=True)
    same([msalab.index_select(data["index_q"], pool(data["index_k"]), K, **options)],
         [msalab.index_select(data["index_q"], data["index_k"], K, **PACKED)])
    check = partial(msalab.check_pages, pool(data["k"]))
    check(table(), USED)
    with pytest.raises(msalab.InputError, match="sequence 2 is 129, must be at most max_seqlen_k = 128"):
        check(table(), USED, max_seqlen_k=128)
    twice = table()
    twice[2, 8] = twice[2, 1]
    with pytest.raises(msalab.InputError, match=rf"page_table\[2, 8\] of pool is {twice[2, 1]}, which "
                                                "sequence 2 has already"):
        check(twice, USED)
    with pytest.raises(msalab.InputError, match="page_table has 4 rows, must have one for each sequence"):
        check(table(), USED[:3])
    with pytest.raises(msalab.InputError, match="max_seqlen_k belongs to a page_table, which is absent"):
        msalab.index_select(data["index_q"], data["index_k"], K, max_seqlen_k=9, **PACKED)


def test_tensors_give_the_same_bits_without_a_gradient(data, expected):
    torch = pytest.importorskip("torch")
    import msalab.torch as m
    q, k, v, index_q, index_k = (torch.from_numpy(each) for each in data.values())
    pages = {name: torch.from_numpy(pool(data[name])) for name in ("k", "v", "index_k")}
    options = paged(page_table=torch.from_numpy(table()))
    made = torch.full_like(pages["k"], torch.nan)
    m.append(made, k, options["page_table"], USED, cu_seqlens_q=CU_K)
    same([made], [pages["k"]])
    ids = m.msa_index_select(index_q, pages["index_k"], K, **options)
    both = torch.stack([pages["k"], pages["v"]], 1)
    out, lse = m.msa_sparse_attention(q.requires_grad_(), both[:, 0], both[:, 1], ids,
                                      return_softmax_lse=True, **options)
    assert not out.requires_grad
    same((ids, out, lse), (expected["ids"], expected["out"], expected["lse"]))
    given = torch.full_like(q, torch.nan)
    assert m.sparse_attention(q, k, v, ids, out=given, **PACKED) is given
    same([given.detach()], [expected["out"]])
