# SPDX-License-Identifier: MIT
"""MiniMax Sparse Attention (MSA) on arrays of numpy and tensors of PyTorch.

Letters in shapes, as in the paper:
  Nq, Nk  query and key tokens, all sequences packed on the token axis
  Hq      query heads            Hkv  key-value heads = GQA groups
  dh      head dim               didx index dim
  Bk      block size             B    blocks of the longest sequence = ceil(Nk / Bk)
  k       selected blocks per (query, group), the query's own block among them

Arrays are row-major and contiguous; nothing is converted without a word: an operation that does
not take a type says which it takes. Results are of the kind of the inputs, numpy arrays or tensors.
Sequences are packed (THD layout): cu_seqlens_q and cu_seqlens_k say where each begins, and the
last query of a sequence sits on its last key. Without them all tokens are one sequence.

`msalab.torch` holds the same operations with gradients.
"""

from ._processor import require_processor

require_processor()

from ._msalab import InputError, Layout, OutOfMemoryError, SystemError, UnsupportedError  # noqa: E402
from .operations import (backends, dense_attention, dense_attention_grad, layout,  # noqa: E402
                         msa_block_mass, msa_index_kl, msa_index_select, msa_proxy_score,
                         msa_sparse_attention, msa_sparse_attention_grad,
                         msa_sparse_decode_attention, msa_topk_select)
from .selections import build_k2q_csr, ids_from_packed, ids_heads_first, sort_ids  # noqa: E402

__all__ = [
    "InputError", "Layout", "OutOfMemoryError", "SystemError", "UnsupportedError", "backends",
    "build_k2q_csr", "dense_attention", "dense_attention_grad", "ids_from_packed",
    "ids_heads_first", "layout", "msa_block_mass", "msa_index_kl", "msa_index_select",
    "msa_proxy_score", "msa_sparse_attention", "msa_sparse_attention_grad",
    "msa_sparse_decode_attention", "msa_topk_select", "sort_ids",
]
