# SPDX-License-Identifier: MIT
"""MSA and other attentions of PyTorch on the same operands: those that are installed, each with the
time of its forward pass and of forward and backward pass. bench/time_torch.py writes them down,
notebooks/08_torch.ipynb shows them.

Five attend to the blocks that MSA selects: ours, FlexAttention by a block mask, parallel_nsa, the Triton
kernel of flash-linear-attention (fla), flash-msa, which selects itself, and the selection attention of cuDNN's
NSA, which has no gradient. The others attend to all keys before a query: scaled_dot_product_attention, and
FlashAttention 2, 3 and 4. Each output is compared with ours first; who computes something else gets no time.
flash-msa's backward pass includes the gradient of the KL loss, which ours has in one of three rows.
FlashInfer is not among them: its wheel 0.7.2 has MSA for compute capability 10.0, 10.3 and 12.x alone, none for
Hopper (9.0).
"""

import inspect
import math
import signal
import statistics
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from timer import device_ms

import msalab.torch as m

SELECTED, ALL_KEYS = "the selected blocks", "all keys"


@dataclass(frozen=True)
class Case:
    """A layer of one sequence. On a GPU the paper's sizes; small ones for a CPU."""

    tokens: int
    query_heads: int = 64
    kv_heads: int = 4
    head_dim: int = 128
    index_dim: int = 128
    block_size: int = 128
    top_k: int = 16
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16

    @staticmethod
    def small():
        return Case(2048, 16, 1, 64, 64, 64, 8, "cpu", torch.float32)

    def sizes(self):
        """The sizes as a record stores them."""
        return {**asdict(self), "dtype": str(self.dtype).removeprefix("torch.")}

    def operands(self):
        """q, k, v [N, H, dh], index_q [N, Hkv, didx], index_k [N, didx] and the ids selected."""
        torch.manual_seed(0)
        q, k, v, index_q, index_k = (
            torch.randn(self.tokens, *shape, dtype=self.dtype, device=self.device)
            for shape in ((self.query_heads, self.head_dim), (self.kv_heads, self.head_dim),
                          (self.kv_heads, self.head_dim), (self.kv_heads, self.index_dim),
                          (self.index_dim,)))
        ids = m.msa_index_select(index_q, index_k, self.top_k, block_size=self.block_size)
        return q, k, v, index_q, index_k, ids


def device_name():
    """The name of the GPU, or of the CPU with the threads that PyTorch uses."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    threads = torch.get_num_threads()
    plural = "s" if threads > 1 else ""
    models = [line.split(":")[1].strip() for line in about.splitlines() if line.startswith("model n")]
    return f"{models[0] if models else 'CPU'}, {threads} thread{plural}"


# Each contender takes a case and its operands, and returns what it differentiates (q, k and v first), the
# function that attends with them, and how its output becomes [N, Hq, dh]. The function may return a loss
# behind the output. Who selects by another rule returns ids, too: those blocks are what ours attends to in
# the comparison.

def _ours(case, q, k, v, index_q, index_k, ids):
    def attend(q, k, v):
        chosen = m.msa_index_select(index_q, index_k, case.top_k, block_size=case.block_size)
        return m.msa_sparse_attention(q, k, v, chosen, block_size=case.block_size)
    return (q, k, v), attend, lambda out: out


def _ours_given_ids(case, q, k, v, index_q, index_k, ids):
    def attend(q, k, v):
        return m.msa_sparse_attention(q, k, v, ids, block_size=case.block_size)
    return (q, k, v), attend, lambda out: out


def _ours_training(case, q, k, v, index_q, index_k, ids):
    def attend(q, k, v, index_q, index_k):
        chosen, index_lse = m.msa_index_select(index_q, index_k, case.top_k, block_size=case.block_size,
                                               return_index_lse=True)
        out, main_lse = m.msa_sparse_attention(q, k, v, chosen, block_size=case.block_size,
                                               return_softmax_lse=True)
        return out, m.msa_index_kl(q, k, index_q, index_k, chosen, main_lse=main_lse, index_lse=index_lse,
                                   block_size=case.block_size)
    return (q, k, v, index_q, index_k), attend, lambda out: out


def _heads_first(*tensors):
    return tuple(tensor.transpose(0, 1)[None].contiguous() for tensor in tensors)


def _flex(case, q, k, v, index_q, index_k, ids):
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    group = case.query_heads // case.kv_heads
    blocks = -(-case.tokens // case.block_size)
    rows = ids.transpose(0, 1).long()
    kept = torch.zeros(case.kv_heads, case.tokens, blocks + 1, dtype=torch.bool, device=case.device)
    kept.scatter_(2, rows.where(rows >= 0, blocks), True)
    kept = kept[:, :, :blocks].contiguous()
    tiles = kept.view(case.kv_heads, blocks, case.block_size, blocks).any(2)
    tiles = tiles.repeat_interleave(group, 0)
    order = tiles.int().argsort(dim=-1, descending=True, stable=True).int()[None]

    def mask(_, head, row, column):
        return kept[head // group, row, column // case.block_size] & (row >= column)

    chosen = BlockMask.from_kv_blocks(tiles.sum(-1, dtype=torch.int32)[None], order,
                                      BLOCK_SIZE=case.block_size, mask_mod=mask)
    # Compiled as its users do; on a CPU that takes longer than all the rest.
    call = torch.compile(flex_attention) if case.device == "cuda" else flex_attention

    def attend(q, k, v):
        return call(q, k, v, block_mask=chosen, enable_gqa=True)
    return _heads_first(q, k, v), attend, lambda out: out[0].transpose(0, 1)


def _fla(case, q, k, v, index_q, index_k, ids):
    from fla.ops.nsa.parallel import parallel_nsa
    if case.device != "cuda":
        raise RuntimeError("Triton needs a GPU")
    chosen = ids[None].long()

    def attend(q, k, v):
        return parallel_nsa(q, k, v, block_indices=chosen, block_counts=case.top_k,
                            block_size=case.block_size)
    return (q[None], k[None], v[None]), attend, lambda out: out[0]


def _flash_msa(case, q, k, v, index_q, index_k, ids):
    """It rounds the blocks' scores to the operands' type before it compares them: near ties it selects others."""
    from flash_msa import flash_msa_func
    from flash_msa.msa_select_cutedsl import select_blocks
    q, k, v, index_q, index_k = _heads_first(q, k, v, index_q, index_k[:, None])
    scale, blocks = case.head_dim ** -0.5, case.tokens // case.block_size
    own = select_blocks(index_q, index_k, scale=scale, num_blocks=blocks, top_k_blocks=case.top_k)
    own = own[0].transpose(0, 1).int()
    own = own.where((own >= 0) & (own < blocks), blocks).sort(dim=-1).values
    own = own.where(own < blocks, -1).contiguous()

    def attend(q, k, v, index_q, index_k):
        return flash_msa_func(index_q, index_k, q, k, v, case.top_k * case.block_size, scale)
    heads = (case.query_heads, case.head_dim)
    return (q, k, v, index_q, index_k), attend, lambda out: out[0].unflatten(-1, heads), own


def _cudnn_nsa(case, q, k, v, index_q, index_k, ids):
    from cudnn import NSA
    counts = (ids >= 0).sum(-1, dtype=torch.int32)
    ends = torch.tensor([0, case.tokens], dtype=torch.int32, device=case.device)
    options = {"block_size": case.block_size, "scale_softmax": case.head_dim ** -0.5}
    if "is_causal" in inspect.signature(NSA.selection_attention_wrapper).parameters:
        options["is_causal"] = True

    def attend(q, k, v):
        return NSA.selection_attention_wrapper(q, k, v, ids, counts, ends, ends, **options)[0]
    return (q, k, v), attend, lambda out: out


def _sdpa(case, q, k, v, index_q, index_k, ids):
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                enable_gqa=True)
    return _heads_first(q, k, v), attend, lambda out: out[0].transpose(0, 1)


def _flash(module):
    def prepare(case, q, k, v, index_q, index_k, ids):
        flash = getattr(import_module(module), "flash_attn_func", None)
        if flash is None:  # another package's folder of that name
            raise ImportError(f"{module} has no flash_attn_func")

        def attend(q, k, v):
            out = flash(q, k, v, causal=True)
            return out[0] if isinstance(out, tuple) else out
        return (q[None], k[None], v[None]), attend, lambda out: out[0]
    return prepare


CONTENDERS = (("msalab, selection and KL loss", SELECTED, _ours_training),
              ("msalab, with the selection", SELECTED, _ours),
              ("msalab", SELECTED, _ours_given_ids),
              ("FlexAttention", SELECTED, _flex),
              ("fla parallel_nsa (Triton)", SELECTED, _fla),
              ("flash-msa", SELECTED, _flash_msa),
              ("cuDNN NSA selection", SELECTED, _cudnn_nsa),
              ("SDPA", ALL_KEYS, _sdpa),
              ("FlashAttention 4", ALL_KEYS, _flash("flash_attn.cute")),
              ("FlashAttention 3", ALL_KEYS, _flash("flash_attn_interface")),
              ("FlashAttention 2", ALL_KEYS, _flash("flash_attn")))


@contextmanager
def at_most(seconds):
    """TimeoutError in the main thread after that many seconds."""
    def stop(*_):
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def farthest(case, q, k, v, attends_to):
    """The most that two right outputs are apart: twice attention_bound of core/tolerance.h, whose letters
    these are."""
    def gamma(terms):
        return terms * 2 ** -24 / (1 - terms * 2 ** -24)

    def norm(rows):
        return rows.float().norm(dim=-1).max().item()

    keys = case.tokens if attends_to == ALL_KEYS else min(case.tokens, case.top_k * case.block_size)
    logit = gamma(case.head_dim + 3) * case.head_dim ** -0.5 * norm(q) * norm(k)
    weights = math.expm1(2 * logit) + gamma(8 + 2 * keys + 4)
    stored = torch.finfo(case.dtype).eps / 2
    taken = 0 if case.dtype == torch.float32 else stored  # of the weights, in the operands' type
    return 2 * (weights + taken + gamma(keys + 2) + stored) * v.float().abs().max().item()


def other_ids(ids, theirs) -> float:
    """The share of ids [N, Hkv, k] that theirs, of the same shape and in any order, lack. -1 is no id."""
    some = ids >= 0
    found = (ids[..., :, None] == theirs[..., None, :]).any(-1)
    return (some & ~found).sum().item() / some.sum().item()


def _outputs(found):
    return found if isinstance(found, tuple) else (found,)


def _time(case, prepare, operands, row):
    """Fills the row: off (the largest difference to our output), forward_ms and step_ms. For a rival that selects by
    another rule also other_ids, the share of its ids that ours do not have. ValueError if the output differs."""
    inputs, attend, to_rows, *own = prepare(case, *operands)
    ids = own[0] if own else operands[-1]
    if own:
        row["other_ids"] = other_ids(ids, operands[-1])
    with torch.no_grad():
        outs = _outputs(attend(*inputs))
        want = (m.msa_sparse_attention(*operands[:3], ids, block_size=case.block_size)
                if row["attends_to"] == SELECTED else m.dense_attention(*operands[:3]))
        row["off"] = (to_rows(outs[0]) - want).abs().max().item()
        if not row["off"] <= farthest(case, *operands[:3], row["attends_to"]):
            raise ValueError(f"its output is off ours by {row['off']:.2g}")
        d_outs = [torch.randn_like(out) for out in outs]
        row["forward_ms"] = statistics.median(device_ms(lambda: attend(*inputs), case.device))
    del outs
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    if not _outputs(attend(*leaves))[0].requires_grad:
        raise RuntimeError("it has no gradient")
    row["step_ms"] = statistics.median(device_ms(
        lambda: torch.autograd.grad(_outputs(attend(*leaves)), leaves, d_outs), case.device))


def measure(case, seconds=80):
    """A row for each contender: its name, attends_to, forward_ms, step_ms, off; or with `skipped`, why what
    is missing is missing. In all `seconds`, of which one contender may take the half of what is left."""
    end = time.monotonic() + seconds
    operands = case.operands()
    rows = []
    for name, attends_to, prepare in CONTENDERS:
        row = {"contender": name, "attends_to": attends_to}
        try:
            with at_most((end - time.monotonic()) / 2):
                _time(case, prepare, operands, row)
        except ImportError as error:
            row["skipped"] = f"not installed: {error}"
        except Exception as error:  # whatever it is, the others remain
            row["skipped"] = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
        rows.append(row)
        if case.device == "cuda":
            torch.cuda.empty_cache()
    return rows
