# SPDX-License-Identifier: MIT
"""More index heads than groups (4 on 2 of keys): each of them selects, but nothing attends, learns, captures or compares
by them: every such operation names the size."""

import re

import numpy as np
import pytest

msalab = pytest.importorskip("msalab")

from msalab import InputError, diff  # noqa: E402

BLOCK, GROUPS, HEADS, TOKENS, DIM, TOP_K = 32, 2, 4, 160, 32, 3
RNG = np.random.default_rng(0)
Q, K, V, INDEX_Q, INDEX_K = (np.float32(RNG.normal(size=(TOKENS, *heads, DIM)))
                             for heads in ((8,), (GROUPS,), (GROUPS,), (HEADS,), ()))
WHERE = {"block_size": BLOCK}


def ids_of(heads=HEADS):
    return msalab.index_select(INDEX_Q[:, :heads].copy(), INDEX_K, TOP_K, **WHERE)


def in_pages():
    pools = (values.reshape(-1, BLOCK, *values.shape[1:]) for values in (K, V))
    return msalab.sparse_attention(Q[-4:].copy(), *pools, ids_of()[-4:].copy(), cu_seqlens_q=[0, 4],
                                   page_table=np.arange(TOKENS // BLOCK, dtype=np.int32)[None],
                                   seqused_k=np.array([TOKENS], np.int32), **WHERE)


def gradient():
    out, lse = msalab.sparse_attention(Q, K, V, ids_of(GROUPS), return_softmax_lse=True, **WHERE)
    return msalab.sparse_attention_grad(Q, K, V, ids_of(), out, lse, out, **WHERE)


def by_torch(name):
    torch = pytest.importorskip("torch")
    from msalab import torch as operators
    q, k, v, index_q, index_k, ids = map(torch.tensor, (Q, K, V, INDEX_Q, INDEX_K, ids_of()))
    if name == "sparse_attention":
        return operators.sparse_attention(q, k, v, ids, **WHERE)
    return operators.index_kl(q, k, index_q, index_k, None, **WHERE)


IDS = rf"ids has shape \[\d+, {HEADS}, {TOP_K}\], must be \[Nq, Hkv, k\] = \[\d+, {GROUPS}, {TOP_K}\]"
QUERIES = rf"index_q has shape \[{TOKENS}, {HEADS}, {DIM}\], must be \[Nq, Hkv, didx\] = \[{TOKENS}, {GROUPS}, {DIM}\]"


def test_each_index_head_selects_as_it_does_alone():
    together = ids_of()
    for head in range(HEADS):
        alone = msalab.index_select(INDEX_Q[:, head:head + 1].copy(), INDEX_K, TOP_K, **WHERE)
        assert (together[:, head] == alone[:, 0]).all()
    assert (msalab.select_blocks(msalab.index_scores(INDEX_Q, INDEX_K, **WHERE), TOP_K, **WHERE) == together).all()


@pytest.mark.parametrize("call, said", [
    (lambda: msalab.sparse_attention(Q, K, V, ids_of(), **WHERE), IDS), (gradient, IDS), (in_pages, IDS),
    (lambda: msalab.index_kl(Q, K, INDEX_Q, INDEX_K, ids_of(), **WHERE), QUERIES),
    (lambda: msalab.index_kl(Q, K, INDEX_Q, INDEX_K, ids_of(GROUPS), **WHERE), QUERIES),
    (lambda: msalab.index_kl(Q, K, INDEX_Q, INDEX_K, None, **WHERE), QUERIES),
    (lambda: by_torch("sparse_attention"), IDS), (lambda: by_torch("index_kl"), QUERIES)])
def test_operations_that_pair_heads_with_groups_name_both(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_files_are_refused(tmp_path, capsys):
    from msalab.capture.__main__ import main as capture
    for name, values in (("q", Q), ("k", K), ("v", V), ("index_q", INDEX_Q), ("index_k", INDEX_K)):
        np.save(tmp_path / f"layers.0.{name}.npy", values)
    files = sorted(map(str, tmp_path.glob("*.npy")))
    out = tmp_path / "out.h5"
    options = ["--state", "post_rope", "--out", str(out)]
    assert capture(["convert", *files, *options]) == 2
    assert f"there is one index head for each of the {GROUPS} groups" in capsys.readouterr().err
    assert not out.exists()
    np.savez(tmp_path / "four.npz", ids=ids_of())
    np.savez(tmp_path / "two.npz", ids=ids_of(GROUPS))
    assert diff.main([str(tmp_path / "four.npz"), str(tmp_path / "two.npz")]) == 2
    assert f"A has {HEADS} groups, B {GROUPS}" in capsys.readouterr().err


def test_the_kit_takes_no_answer_of_more_heads():
    from msalab.conform.__main__ import run
    from msalab.conform.archive import Archive

    class Engine:
        rules = {}

        def __call__(self, case, given):
            ids = msalab.index_select(np.repeat(np.float32(given["index_q"]), 2, 1), np.float32(given["index_k"]),
                                      given["top_k"], block_size=given["block_size"])
            return {"ids": ids}

    (_, outcome, remark), *_ = run(Archive(), Engine(), "select.prefill")
    assert outcome == "fail" and re.search(rf"ids are int32 \[\d+, {HEADS}, \d+\], must be integers \[\d+, {GROUPS}, ", remark)
