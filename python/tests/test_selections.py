# SPDX-License-Identifier: MIT
import numpy as np
import pytest

pytest.importorskip("msalab._msalab")

import msalab  # noqa: E402


def test_rows_in_any_order_are_sorted_and_padded_at_the_end():
    ids = np.array([[[4, -1, 0]], [[-7, -1, 2]]])
    assert msalab.sort_ids(ids).tolist() == [[[0, 4, -1]], [[2, -1, -1]]]
    with pytest.raises(msalab.InputError, match=r"ids\[0, 0\] holds block 4 twice"):
        msalab.sort_ids([[[4, 0, 4]]])


def test_ids_of_all_sequences_become_those_of_their_own():
    ids = np.array([[[0, 1]], [[2, -1]]])  # sequences of 2 and 1 blocks
    assert msalab.ids_from_packed(ids, [0, 1, 2], [0, 16, 20], 8).tolist() == [[[0, 1]], [[0, -1]]]
    with pytest.raises(msalab.InputError, match=r"ids\[1, 0, 0\] is 1, a block of another sequence: "
                                                "those of sequence 1 are 2 to 2"):
        msalab.ids_from_packed(np.array([[[0, 1]], [[1, -1]]]), [0, 1, 2], [0, 16, 20], 8)


def test_heads_first_and_back():
    ids = np.arange(12, dtype=np.int32).reshape(3, 2, 2)
    assert msalab.ids_heads_first(ids)[1, 2].tolist() == [10, 11]
    np.testing.assert_array_equal(msalab.ids_heads_first(msalab.ids_heads_first(ids)), ids)


def test_the_reverse_index_lists_the_queries_of_every_block():
    ids = np.array([[[0, -1], [0, -1]], [[0, 1], [1, -1]], [[1, 2], [0, 2]]], np.int32)
    starts, queries = msalab.build_k2q_csr(ids, 3)
    lists = [queries[starts[n]:starts[n + 1]].tolist() for n in range(6)]
    assert lists == [[0, 1], [1, 2], [2], [0, 2], [1], [2]]
    with pytest.raises(msalab.InputError, match="ids holds block 2, blocks is 2"):
        msalab.build_k2q_csr(ids, 2)
