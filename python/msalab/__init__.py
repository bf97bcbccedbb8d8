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
last query of a sequence sits on its last key. Without them all tokens are one sequence. Keys may lie
in the pages of a cache (page_table, seqused_k: help(msalab.sparse_attention)), which append fills.

Operations have the names of core/backend.h. The names of the paper's authors are other names of the
same functions:

  index_scores              msa_proxy_score
  select_blocks             msa_topk_select
  index_select              msa_index_select
  sparse_attention          msa_sparse_attention
  sparse_attention_grad     msa_sparse_attention_grad
  sparse_decode_attention   msa_sparse_decode_attention
  block_mass                msa_block_mass
  index_kl                  msa_index_kl

msalab.analysis     what a selection keeps and loses: the measures of msa-analyze
msalab.torch        the same operations as operators of PyTorch, with gradients
msalab.nn           MSAttention, Algorithm 1 as a module for training scripts
msalab.transformers MSA in place of the attention of a transformers model
msalab.selectors    selectors that need no training, on tensors of PyTorch
msalab.indexer      Index Branches that msa-fit-indexer has fitted
msalab.evaluation   loss and retrieval of a model with MSA: `msalab evaluate`
msalab.conform      cases with exact answers for any kernel or engine: `msalab conform`, of numpy alone
msalab.capture      activations of PyTorch models, and of files of other formats
msalab.results      the answers of the programs, as tables
msalab.plots        pictures and reports of what the programs write
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what __getattr__ loads, for editors and type checkers
    from . import analysis, results
    from .operations import *  # noqa: F403
    from .selections import *  # noqa: F403

_MODULES = {
    "operations": ("InputError", "Layout", "OutOfMemoryError", "SystemError", "UnsupportedError",
                   "append", "backends", "block_mass", "check_pages", "dense_attention",
                   "dense_attention_grad", "index_kl", "index_scores", "index_select", "layout",
                   "select_blocks", "sparse_attention", "sparse_attention_grad", "sparse_decode_attention",
                   "store_e4m3", "store_int8", "msa_block_mass", "msa_index_kl", "msa_index_select", "msa_proxy_score",
                   "msa_sparse_attention", "msa_sparse_attention_grad",
                   "msa_sparse_decode_attention", "msa_topk_select"),
    "selections": ("build_k2q_csr", "ids_from_packed", "ids_heads_first", "sort_ids"),
}
_LAZY = ("analysis", "results")
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str):
    """The operations are loaded at first use: capture and plots do without the compiled part."""
    if name in _LAZY:
        return import_module(f"{__name__}.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_LAZY})
