#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Serves several requests at once with MSA over a cache in pages: continuous batching.

usage: serve_torch.py [--model FOLDER] [--requests 6] [--tokens 24] [--top-k 4] [--chunk 32]
                      [--running 4] [--device cuda] [--prompt 7] [--dense]

needs: pip install . of this repository, PyTorch and transformers. Without --model a tiny Llama of
random weights. All requests go through the model as one packed batch: prompts in chunks, decoded
tokens with drafts behind them that the same pass verifies. Requests with a common beginning share its
pages, and pages of finished requests are used again. At the end a reference without a cache judges
every new token (judge()): MSA on packed keys, or the model's own attention where all blocks fit into k.

On a GPU the model is in bfloat16, its layers are compiled, once for all of them and all lengths, and a
step in which all requests decode is a CUDA graph, captured once: lengths and pages are read there.
--dense serves the same requests once more by PyTorch's SDPA. SDPA takes no pages, so every call copies
the keys of its sequence first. It is compiled and replayed likewise. bench/time_example.py times both.

The Index Branch stands in for a fitted one: of a group's queries the sum, of all groups' keys the sum.
"""

import argparse
import contextlib
import functools
from collections import deque
from dataclasses import dataclass, field

import torch
import transformers
from torch import Tensor
from transformers.modeling_utils import AttentionInterface

import msalab.torch as msa

@dataclass(frozen=True)
class Place:
    """Where the model runs, and the tokens of its blocks and pages."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    block: int = 16
    page: int = 32
    head_dim: int = 16  # of the tiny model


GPU = Place("cuda", torch.bfloat16, 64, 64, 64)  # what the tuned kernels take


@dataclass
class Request:
    prompt: list
    most: int  # new tokens
    tokens: list = field(default_factory=list)  # the prompt's, then new ones
    cached: int = 0  # of the tokens, those whose keys are in the pages
    pages: list = field(default_factory=list)
    places: dict = field(default_factory=dict)  # token -> where it stood last, of the first `looked_up`
    looked_up: int = 0

    @property
    def done(self):
        return len(self.tokens) >= len(self.prompt) + self.most


class Pool:
    """Which pages are free, and how many requests use each of the others."""

    def __init__(self, pages):
        self.free, self.users = deque(range(pages)), [0] * pages

    def take(self):
        page = self.free.popleft()
        self.users[page] = 1
        return page

    def share(self, page):
        self.users[page] += 1
        return page

    def give_back(self, page):
        self.users[page] -= 1
        if self.users[page] == 0:
            self.free.append(page)


class PagedKeys:
    """The cache: of each layer K and V in one pool, and index keys in another, where its attention finds
    them. On a CPU unused rows are NaN here, to show that nobody reads them."""
    unused = torch.nan

    def __init__(self, model, pages, at):
        def pool(*shape):
            unused = self.unused if at.device == "cpu" else 0
            return torch.full((pages, *shape), unused, dtype=at.dtype, device=at.device)
        config = model.config
        for layer in model.model.layers:
            layer.self_attn.pools = (pool(2, at.page, config.num_key_value_heads, config.head_dim),
                                     pool(at.page, config.head_dim))

    @staticmethod
    def attend(q, k, v, index_q, index_k, kv, index, table, used, ends, top_k, block):
        where = lengths(table, used, ends, kv)
        for pool, rows in ((kv[:, 0], k), (kv[:, 1], v), (index, index_k)):
            msa.append(pool, rows, **where)
        ids = msa.msa_index_select(index_q, index, top_k, block_size=block, **where)
        return msa.msa_sparse_attention(q, kv[:, 0], kv[:, 1], ids, block_size=block, **where)


class DensePages(PagedKeys):
    """The same pages. SDPA reads a copy of all keys that the row of the table has room for."""
    unused = 0  # which a weight of 0 does not hide

    @staticmethod
    def attend(q, k, v, index_q, index_k, kv, index, table, used, ends, top_k, block):
        where, cu, out = lengths(table, used, ends, kv), ends.tolist(), []
        for pool, rows in zip(kv.unbind(1), (k, v)):
            msa.append(pool, rows, **where)
        for row, tokens, begin, end in zip(table, used, cu, cu[1:]):
            keys, values = (pool[row.clamp(min=0)].flatten(0, 1).transpose(0, 1) for pool in kv.unbind(1))
            at = tokens - end + torch.arange(begin, end, device=q.device)[:, None]
            seen = torch.arange(keys.shape[1], device=q.device) <= at
            out.append(torch.nn.functional.scaled_dot_product_attention(
                q[None, begin:end].transpose(1, 2), keys[None], values[None], attn_mask=seen,
                enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(out)


def lengths(table, used, ends, kv):
    """Of pages, as operations take them: on a GPU `used` is read there, on the CPU here."""
    where = {"page_table": table, "cu_seqlens_q": ends.tolist()}
    if used.is_cuda:
        return where | {"seqused_k": used, "max_seqlen_k": table.shape[1] * kv.shape[2]}
    return where | {"seqused_k": used.tolist()}


def operator(cache):
    """cache.attend as an operator, which compilers do not look into."""
    def attend(q: Tensor, k: Tensor, v: Tensor, index_q: Tensor, index_k: Tensor, kv: Tensor, index: Tensor,
               table: Tensor, used: Tensor, ends: Tensor, top_k: int, block: int) -> Tensor:
        return cache.attend(q, k, v, index_q, index_k, kv, index, table, used, ends, top_k, block)
    made = torch.library.custom_op(f"serve::{cache.__name__}", attend, mutates_args=("kv", "index"))
    made.register_fake(lambda q, *_: q.new_empty(q.shape))
    return made


OPERATORS = {cache: operator(cache) for cache in (PagedKeys, DensePages)}


def packed(q, k, v, index_q, index_k, kv, index, top_k, block):
    """Without a cache: all tokens of one sequence at once. MSA takes no float64."""
    dtype = q.dtype
    if dtype == torch.float64:
        q, k, v, index_q, index_k = (each.float() for each in (q, k, v, index_q, index_k))
    ids = msa.msa_index_select(index_q, index_k, top_k, block_size=block)
    return msa.msa_sparse_attention(q, k, v, ids, block_size=block).to(dtype)


def attention(module, query, key, value, _mask, msalab_step=None, **_options):
    """What transformers calls in every layer: [1, heads, tokens, dh], all requests on one axis."""
    attend, *where = msalab_step
    q, k, v = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
    index_q = q.unflatten(1, (k.shape[1], -1)).sum(2)
    return attend(q, k, v, index_q, k.sum(1), *getattr(module, "pools", (None, None)), *where)[None], None


AttentionInterface.register("msalab_paged", attention)  # without a mask of its own


@contextlib.contextmanager
def paged(model, compiler=None):
    """The model attends by attention() within this context, its layers compiled by compiler(forward)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("msalab_paged")
    for layer in model.model.layers if compiler else ():
        layer.forward = compiler(layer.forward)
    try:
        yield
    finally:
        for layer in model.model.layers if compiler else ():
            del layer.forward  # the class's own again
        model.set_attn_implementation(before)


def compiler_of(device):
    """All layers share what is compiled, for any number of tokens and pages."""
    return functools.partial(torch.compile, dynamic=True) if device == "cuda" else None


@torch.no_grad()
def next_logits(model, tokens, positions, step):
    """The logits of the token behind each of these [1, tokens]."""
    return model(input_ids=tokens, position_ids=positions, use_cache=False, msalab_step=step).logits[0]


def next_tokens(model, tokens, positions, step):
    """The most probable token behind each of these [1, tokens]."""
    return next_logits(model, tokens, positions, step).argmax(-1)


class Decode:
    """A step of `places` requests, each with its newest token and as many drafts as any, under one CUDA
    graph. A place that nobody has is a sequence of length 0. What a step is told goes to the GPU in one
    copy."""

    def __init__(self, model, step, places, drafts, pages):
        each = 1 + drafts
        sizes = (places * each, places * each, places, places * pages)
        self.host = torch.zeros(sum(sizes), dtype=torch.int64).pin_memory()
        self.there = self.host.to(model.device)
        self.tokens, self.positions, self.used, table = self.host.split(sizes)
        self.table = table.view(places, pages)
        tokens, positions, used, table = self.there.split(sizes)
        ends = torch.arange(0, places * each + 1, each)

        def run():
            return next_tokens(model, tokens[None], positions[None], step(
                table.view(places, pages).int(), used.int(), ends))
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # which may still make what is read here
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()  # compiles and loads kernels
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=stream):
            self.best = run()

    def __call__(self, tokens, positions, tables, used):
        self.host.zero_()
        for to, values in ((self.tokens, tokens), (self.positions, positions), (self.used, used)):
            to[:len(values)] = torch.tensor(values)
        for row, pages in zip(self.table, tables):
            row[:len(pages)] = torch.tensor(pages)
        self.there.copy_(self.host, non_blocking=True)
        self.graph.replay()
        return self.best[:len(tokens)].tolist()


class Engine:
    """`longest`: tokens of the longest request, for which a graph has room. By default the pool's."""

    def __init__(self, model, pages, top_k, chunk, at=Place(), cache=PagedKeys, longest=None, drafts=4,
                 most_running=4):
        self.model, self.chunk, self.drafts = model, chunk, drafts
        self.cache, self.pool, self.page = cache(model, pages, at), Pool(pages), at.page

        def step(table, used, ends):
            return OPERATORS[cache], table, used, ends, top_k, at.block
        self.describe = step
        self.most_running, self.waiting, self.running = most_running, deque(), []
        self.steps = self.accepted = self.shared = self.replayed = 0
        self.decode = None
        if at.device == "cuda":
            each = pages if longest is None else min(pages, -(-(longest + drafts) // at.page))
            self.decode = Decode(model, step, most_running, drafts, each)

    def add(self, request):
        request.tokens = list(request.prompt)
        self.waiting.append(request)

    def start(self):
        """Takes in a request, with the pages that another one holds of the same beginning."""
        request = self.waiting.popleft()
        for other in self.running:
            full = min(other.cached, len(request.prompt) - 1) // self.page
            while full and other.tokens[:full * self.page] != request.tokens[:full * self.page]:
                full -= 1
            if full * self.page > request.cached:
                for page in request.pages:
                    self.pool.give_back(page)
                request.pages = [self.pool.share(page) for page in other.pages[:full]]
                request.cached = full * self.page
        self.shared += len(request.pages)
        self.running.append(request)

    def draft(self, request):
        """What came after the last earlier place of the last token (prompt lookup)."""
        tokens = request.tokens
        for at in range(request.looked_up, len(tokens) - 1):  # each token once in a request's life
            request.places[tokens[at]] = at
        request.looked_up = len(tokens) - 1
        at = request.places.get(tokens[-1])
        return [] if at is None else tokens[at + 1:at + 1 + self.drafts]

    def fits(self, request):
        """Whether there are pages for all tokens that it and the running requests may reach."""
        lacking = (-(-(len(each.prompt) + each.most + self.drafts) // self.page) - len(each.pages)
                   for each in (*self.running, request))
        return sum(lacking) <= len(self.pool.free)

    def step(self):
        while self.waiting and len(self.running) < self.most_running and self.fits(self.waiting[0]):
            self.start()
        if not self.running:
            raise SystemExit("serve_torch.py: the pool has too few pages for a request; see --pages")
        batch, tokens, positions, cu, used = [], [], [], [0], []
        replays = self.decode is not None and all(each.cached == len(each.tokens) - 1
                                                  for each in self.running)
        for request in self.running:
            new = request.tokens[request.cached:request.cached + self.chunk]
            decodes = request.cached + len(new) == len(request.tokens)
            drafts = self.draft(request) if decodes else []
            if replays:  # as many drafts of each: the last token once more is as good as any
                drafts = drafts + request.tokens[-1:] * (self.drafts - len(drafts))
            end = request.cached + len(new) + len(drafts)
            while len(request.pages) * self.page < end:
                request.pages.append(self.pool.take())
            batch.append((request, len(new), drafts, decodes))
            tokens += new + drafts
            positions += range(request.cached, end)
            cu.append(len(tokens))
            used.append(end)
        tables = [request.pages for request in self.running]
        if replays:
            best = self.decode(tokens, positions, tables, used)
        else:
            most = max(map(len, tables))
            table, *given = (torch.tensor(each, dtype=dtype).to(self.model.device) for each, dtype in (
                ([pages + [-1] * (most - len(pages)) for pages in tables], torch.int32),
                ([tokens], torch.int64), ([positions], torch.int64)))
            step = self.describe(table, torch.tensor(used, dtype=torch.int32), torch.tensor(cu))
            best = next_tokens(self.model, *given, step).tolist()
        self.replayed += replays
        for (request, new, drafts, decodes), begin in zip(batch, cu):
            request.cached += new
            if decodes:
                self.accept(request, drafts, best[begin + new - 1:begin + new + len(drafts)])
        self.steps += 1

    def accept(self, request, drafts, best):
        """Drafts as far as they are the model's own choice, and its choice behind them. The keys of
        refused drafts stay in the pages: they lie behind the last token."""
        right = 0
        while right < len(drafts) and drafts[right] == best[right]:
            right += 1
        request.tokens += best[:right + 1]
        request.cached += right
        self.accepted += right
        if request.done:
            del request.tokens[len(request.prompt) + request.most:]
            self.running.remove(request)
            for page in request.pages:
                self.pool.give_back(page)

    def serve(self, requests):
        """Until they are done."""
        for request in requests:
            self.add(request)
        while self.waiting or self.running:
            self.step()


@dataclass
class Verdict:
    new: int
    best: int  # of the new tokens, those that the reference takes, too
    best_rounded: int  # of the reference's own choices in the model's dtype
    fewer: float  # so many fewer may be the engine's
    short: float  # at most so much below the reference's best logit is that of a new token
    tolerance: float

    @property
    def right(self):  # of a NaN false
        return self.short <= self.tolerance and self.best_rounded - self.best <= self.fewer


def judge(model, requests, step):
    """What a reference says of the new tokens: one pass over all tokens of a request, with weights and
    products in float64 and MSA in float32.

    A second such pass, in the model's dtype, shows what rounding alone does. Let e be the most by which
    it moves any logit. The engine takes the token that is best by its own logits. Where these are within
    e of the reference's, no token is more than 2 e above it. But rounding exchanges blocks, too, which
    makes e large in bfloat16. So numbers are judged as well: a token that only one of engine and second
    pass has from the reference is either's with the same chance. Three standard deviations are allowed,
    which can tell something only from ten such tokens on."""
    def passes():
        for request in requests:
            tokens = torch.tensor([request.tokens], device=model.device)
            places = torch.arange(tokens.shape[1], device=model.device)[None]
            yield next_logits(model, tokens, places, step).cpu()

    def lacks(logits, tokens):
        return logits.amax(-1) - logits.gather(-1, tokens[:, None])[:, 0]
    dtype, rounded = model.dtype, list(passes())
    apart, short, short_rounded = [], [], []
    model.double()
    for request, exact, other in zip(requests, passes(), rounded):
        apart.append((exact - other).abs().max())
        new = torch.tensor(request.tokens[len(request.prompt):])
        exact, other = (logits[len(request.prompt) - 1:-1] for logits in (exact, other))
        short.append(lacks(exact, new))
        short_rounded.append(lacks(exact, other.argmax(-1)))
    model.to(dtype)  # the same weights as before
    short, short_rounded = torch.cat(short), torch.cat(short_rounded)
    best, best_rounded = short == 0, short_rounded == 0
    return Verdict(len(best), int(best.sum()), int(best_rounded.sum()),
                   3 * int((best != best_rounded).sum()) ** 0.5, short.max().item(),
                   2 * torch.stack(apart).max().item())


def tiny_model(head_dim):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim, initializer_range=0.2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return transformers.LlamaForCausalLM(config).eval()


def make_requests(model, count, tokens, shortest):
    """Prompts of different lengths; every other one begins like the first."""
    draw = torch.Generator().manual_seed(1)

    def some(n):
        return torch.randint(model.config.vocab_size, (n,), generator=draw).tolist()
    beginning = some(70)
    return [Request((beginning if number % 2 == 0 else []) + some(shortest + 29 * number), tokens)
            for number in range(count)]


def main(arguments=None, seconds_of=None):
    """seconds_of: calls a function and gives its seconds. With it, rates are printed of a second pass: the first
    one compiles and loads kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder, of a model of the Llama family; default: a tiny one")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of each request")
    parser.add_argument("--prompt", type=int, default=7, help="least tokens of a prompt of its own")
    parser.add_argument("--dense", action="store_true", help="PyTorch's dense attention, too")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--top-k", type=int, default=4,
                        help=f"blocks of {Place.block} tokens, on a GPU {GPU.block}, for each query")
    parser.add_argument("--chunk", type=int, default=32, help="tokens of a prompt in one step")
    parser.add_argument("--running", type=int, default=4, help="requests in a step, at most")
    parser.add_argument("--drafts", type=int, default=4, help="tokens that a request drafts in a step; 0: none, so that "
                        "rates do not depend on how many a model accepts")
    parser.add_argument("--pages", type=int, default=24,
                        help=f"of {Place.page} tokens, on a GPU {GPU.page}, in the pool")
    o = parser.parse_args(arguments)
    at = GPU if o.device == "cuda" else Place()
    model = (tiny_model(at.head_dim) if o.model is None else
             transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype="float32").eval())
    model.to(at.device, at.dtype)
    caches = {"MSA": PagedKeys}
    if o.dense:
        caches["PyTorch's SDPA on copies of the pages"] = DensePages
    engines, right = [], True
    for name, cache in caches.items():
        for _ in range(1 if seconds_of is None else 2):
            engine = None  # frees its pool
            requests = make_requests(model, o.requests, o.tokens, o.prompt)
            longest = max(len(request.prompt) + request.most for request in requests)
            with paged(model, compiler_of(at.device)):
                engine = Engine(model, o.pages, o.top_k, o.chunk, at, cache, longest, o.drafts, o.running)
                serve, rate = functools.partial(engine.serve, requests), ""
                if seconds_of is None:
                    serve()
                else:
                    rate = f"{o.requests * o.tokens / seconds_of(serve):.0f} new tokens a second, "
        engine.decode = None  # a graph reads weights where they lie now
        engines.append(engine)
        used = sum(-(-len(request.tokens) // at.page) for request in requests)
        everything = cache is DensePages or o.top_k * at.block >= longest
        with contextlib.nullcontext() if everything else paged(model):
            verdict = judge(model, requests, (packed, o.top_k, at.block))
        right = right and verdict.right
        print(f"{name}: {rate}{o.requests} requests of up to {longest} tokens")
        print(f"  {engine.steps} steps, {engine.replayed} of them replays of a graph; "
              f"{engine.accepted} drafted tokens accepted")
        print(f"  {used} pages of tokens in a pool of {o.pages}, {engine.shared} of them shared, "
              f"{len(engine.pool.free)} free at the end")
        print(f"  {verdict.best} of {verdict.new} new tokens are the best of "
              f"{'dense attention' if everything else 'MSA'} on packed keys, by rounding alone "
              f"{verdict.best_rounded} (at most {int(verdict.fewer)} fewer are allowed)")
        print(f"  the others' logits are at most {verdict.short:.2g} below the best (allowed: "
              f"{verdict.tolerance:.2g})")
    return engines[0], right


if __name__ == "__main__":
    raise SystemExit(not main()[1])
