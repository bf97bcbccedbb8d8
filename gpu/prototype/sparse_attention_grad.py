# SPDX-License-Identifier: MIT
"""Checks and times sparse_attention_grad alone: python3 sparse_attention_grad.py LIBRARY [check|few|once|time]...

check: small cases against autograd in double, poisoned outputs, bitwise reruns. time: structured
and random selections, sampled rows and blocks checked in double first."""
import ctypes
import statistics
import sys

import torch

torch.backends.cuda.matmul.allow_tf32 = True
device = 'cuda'
library = ctypes.CDLL(sys.argv[1])
library.grad_plan.restype = ctypes.c_void_p


class Plan:
    def __init__(self, cu_q, cu_k, heads, groups, dim, block, top_k, chunk=8192, item=256):
        self.sizes = (cu_q[-1], cu_k[-1], heads, groups, dim)
        as_array = lambda x: (ctypes.c_int64 * len(x))(*x)
        self.plan = ctypes.c_void_p(library.grad_plan(
            as_array(cu_q), as_array(cu_k), len(cu_q) - 1, heads, groups, dim, block, top_k, chunk,
            item))

    def bind(self, q, k, v, ids, out, lse, d_out):
        nq, nk, heads, groups, dim = self.sizes
        make = lambda *shape: torch.full(shape, float('nan'), device=device, dtype=torch.bfloat16)
        self.d = make(nq, heads, dim), make(nk, groups, dim), make(nk, groups, dim)
        self.kept = (q, k, v, ids, out, lse, d_out)
        assert all(x.is_contiguous() for x in self.kept)
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*self.kept, *self.d)]
        library.grad_bind(self.plan, *pointers, ctypes.c_double(dim ** -0.5))

    def run(self):
        library.grad_run(self.plan)

    def stages(self):
        ms = (ctypes.c_float * 5)()
        library.grad_stages(self.plan, ms)
        return list(ms)

    def free(self):
        library.grad_free(self.plan)


def random_ids(cu_q, cu_k, groups, block, top_k, generator):
    """Local block and random visible ones, ascending, -1 at the end."""
    rows = []
    for s in range(len(cu_q) - 1):
        nq, nk = cu_q[s + 1] - cu_q[s], cu_k[s + 1] - cu_k[s]
        seen = torch.arange(nk - nq + 1, nk + 1, device=device)
        count = (seen.clamp(min=0) + block - 1) // block
        most = max(1, -(-nk // block))
        width = max(most, top_k)
        for begin in range(0, nq, 8192):
            c = count[begin:begin + 8192]
            noise = torch.rand(len(c), groups, width, device=device, generator=generator)
            number = torch.arange(width, device=device)
            noise = noise.masked_fill(number == (c - 1)[:, None, None], 2)
            noise = noise.masked_fill(number >= c[:, None, None], -1)
            best, ids = noise.topk(top_k, dim=-1)
            ids = ids.masked_fill(best < 0, 1 << 30).sort(dim=-1).values
            rows.append(ids.masked_fill(ids == 1 << 30, -1).int())
    return torch.cat(rows).contiguous()


def structured_ids(n, groups, block, top_k, seed, width=128):
    """The planted index operands of msa-bench (synth/pattern.h): sink, diagonal, top_k - 2 stripes."""
    generator = torch.Generator(device).manual_seed(seed)
    pairs, first = 12, 4
    step = torch.arange(pairs, device=device, dtype=torch.float64) / (pairs - 1)
    frequency = 2 * torch.pi / (48 * (65536 / 48) ** step)
    unit = width ** 0.25
    noise = 0.5 ** 0.5 * (width / (width - first - 2 * pairs)) ** 0.25
    position = torch.arange(n, device=device, dtype=torch.float64)

    def waves(targets):
        angle = targets[..., None] * frequency
        return torch.stack([angle.cos(), angle.sin()], -1).flatten(-2)

    normal = lambda *shape: noise * torch.randn(*shape, device=device, generator=generator)
    index_k = normal(n, width)
    index_k[:, :first] = 0
    index_k[0, 0] = unit
    index_k[:, first:first + 2 * pairs] = (unit * waves(position)).float()
    index_k = index_k.bfloat16().float()
    all_ids = []
    blocks = -(-n // block)
    for g in range(groups):
        ratio = 0.1 + 0.8 * torch.rand(top_k - 2, device=device, generator=generator,
                                       dtype=torch.float64)
        index_q = normal(n, width)
        index_q[:, :first] = 0
        index_q[:, 0] = unit * 14
        look = 8 * waves(position)
        for r in ratio:
            look = look + 8 * waves((r * position).floor())
        index_q[:, first:first + 2 * pairs] = (unit / pairs * look).float()
        index_q = index_q.bfloat16().float()
        rows = []
        for begin in range(0, n, 4096):
            end = min(begin + 4096, n)
            score = index_q[begin:end] @ index_k[:end].T
            where = torch.arange(begin, end, device=device)
            score[:, begin:end].masked_fill_(where[None] > where[:, None], float('-inf'))
            score = torch.nn.functional.pad(score, (0, blocks * block - end), value=float('-inf'))
            score = score.view(end - begin, blocks, block).amax(-1)
            score[torch.arange(end - begin, device=device), where // block] = 1e30
            best, ids = score.topk(min(top_k, blocks), dim=-1)
            ids = ids.masked_fill(best == float('-inf'), 1 << 30).sort(dim=-1).values
            ids = torch.nn.functional.pad(ids, (0, top_k - ids.shape[1]), value=1 << 30)
            rows.append(ids.masked_fill(ids == 1 << 30, -1).int())
        all_ids.append(torch.cat(rows))
    return torch.stack(all_ids, 1).contiguous()


def union_of_8(ids):
    n = ids.shape[0] // 8 * 8
    rows = ids[n // 2:n][:8192].view(-1, 8, *ids.shape[1:]).transpose(1, 2).flatten(2).sort(-1).values
    return ((rows[..., 1:] != rows[..., :-1]).sum(-1) + 1).float().mean().item()


def operands(nq, nk, heads, groups, dim, seed):
    generator = torch.Generator(device).manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, device=device, generator=generator).bfloat16()
    return make(nq, heads, dim), make(nk, groups, dim), make(nk, groups, dim), make(nq, heads, dim)


def allowed(ids, cu_q, cu_k, s, block):
    """[groups, nq, nk] of a sequence."""
    nq, nk = cu_q[s + 1] - cu_q[s], cu_k[s + 1] - cu_k[s]
    mine = ids[cu_q[s]:cu_q[s + 1]].long()
    number = torch.arange(nk, device=device) // block
    chosen = (mine[..., None] == number).any(2).transpose(0, 1)
    position = torch.arange(nk - nq, nk, device=device)
    return chosen & (torch.arange(nk, device=device) <= position[:, None])


def reference(q, k, v, d_out, ids, cu_q, cu_k, block):
    """out, lse and gradients in double."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    group_size = q.shape[1] // k.shape[1]
    outs, lses = [], []
    for s in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        mask = allowed(ids, cu_q, cu_k, s, block).repeat_interleave(group_size, 0)
        score = torch.einsum('qhd,khd->hqk', q[rows], k[keys].repeat_interleave(group_size, 1))
        score = (score * q.shape[2] ** -0.5).masked_fill(~mask, float('-inf'))
        lse = score.detach().logsumexp(-1)
        best = score.detach().amax(-1, keepdim=True).clamp(min=-1e300)
        p = (score - best).exp()
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
        outs.append(torch.einsum('hqk,khd->qhd', p, v[keys].repeat_interleave(group_size, 1)))
        lses.append(lse.T)
    out, lse = torch.cat(outs), torch.cat(lses)
    grads = torch.autograd.grad(out, (q, k, v), d_out.double())
    return out.detach(), lse, grads


def error(got, want):
    got, want = got.double(), want.double()
    if not torch.isfinite(got).all():
        return float('nan')
    return ((got - want).norm() / want.norm().clamp(min=1e-30)).item()


def check(chosen=None):
    one = lambda n: ([0, n], [0, n])
    packed = ([0, 100, 101, 138, 438], [0, 228, 358, 395, 895])
    cases = [  # (cu_q, cu_k), Hq, Hkv, dh, Bk, k, chunk, item
        (one(512), 32, 2, 128, 128, 3, 16384, 384),
        (one(1000), 32, 2, 128, 128, 4, 16384, 384),
        (one(1000), 32, 2, 128, 128, 4, 256, 24),
        (packed, 32, 2, 128, 128, 4, 16384, 384),
        (packed, 32, 2, 128, 128, 2, 64, 8),
        (([0, 40, 300], [0, 20, 280]), 32, 2, 128, 128, 2, 16384, 384),
        (one(700), 16, 4, 64, 64, 5, 16384, 384),
        (packed, 16, 4, 64, 64, 5, 128, 32),
        (one(600), 24, 8, 64, 128, 3, 16384, 64),
        (one(600), 24, 2, 128, 64, 6, 16384, 64),
        (one(600), 8, 8, 128, 128, 3, 16384, 64),
        (one(600), 64, 1, 128, 128, 3, 16384, 64),
        (one(600), 40, 8, 128, 128, 3, 16384, 64),
        (one(2500), 16, 2, 64, 64, 32, 1024, 128),
    ]
    print('case: error of d_q, d_k, d_v; bitwise rerun')
    for i, ((cu_q, cu_k), heads, groups, dim, block, top_k, chunk, item) in enumerate(cases):
        if chosen and i not in chosen:
            continue
        generator = torch.Generator(device).manual_seed(i)
        q, k, v, d_out = operands(cu_q[-1], cu_k[-1], heads, groups, dim, i)
        ids = random_ids(cu_q, cu_k, groups, block, top_k, generator)
        out, lse, want = reference(q, k, v, d_out, ids, cu_q, cu_k, block)
        plan = Plan(cu_q, cu_k, heads, groups, dim, block, top_k, chunk, item)
        results = []
        for _ in range(2):
            plan.bind(q, k, v, ids, out.bfloat16().contiguous(), lse.float().contiguous(), d_out)
            plan.run()
            torch.cuda.synchronize()
            results.append(plan.d)
        plan.free()
        same = all(torch.equal(a, b) for a, b in zip(*results))
        errors = [error(a, b) for a, b in zip(results[0], want)]
        good = same and all(e < 6e-3 for e in errors)
        print(f'{i:2} q {cu_q[-1]:5} k {cu_k[-1]:5} H {heads}/{groups} dh {dim} Bk {block} k {top_k:2} '
              f'chunk {chunk} item {item}: ' + ' '.join(f'{e:.2e}' for e in errors),
              'same' if same else 'DIFFERS', 'ok' if good else 'WRONG', flush=True)


def forward(q, k, v, ids, block, step=256):
    """out and lse of one sequence of n queries, in pieces."""
    n, heads, dim = q.shape
    groups, top_k = ids.shape[1:]
    size = heads // groups
    blocks = -(-n // block)
    pad = lambda x: torch.nn.functional.pad(x, (0, 0, 0, 0, 0, blocks * block - n)).view(
        blocks, block, groups, dim)
    kb, vb = pad(k), pad(v)
    out, lse = torch.empty_like(q), torch.empty(n, heads, device=device)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        for g in range(groups):
            mine = ids[begin:end, g].long()
            keys = kb[mine.clamp(min=0), :, g].flatten(1, 2)
            values = vb[mine.clamp(min=0), :, g].flatten(1, 2)
            where = mine[..., None] * block + torch.arange(block, device=device)
            seen = (mine[..., None] >= 0) & (where <= torch.arange(begin, end, device=device)[:, None, None])
            score = (q[begin:end, g * size:(g + 1) * size] @ keys.transpose(1, 2)).float() * dim ** -0.5
            score = score.masked_fill(~seen.flatten(1)[:, None], float('-inf'))
            total = score.logsumexp(-1)
            lse[begin:end, g * size:(g + 1) * size] = total
            out[begin:end, g * size:(g + 1) * size] = (score - total[..., None]).exp().bfloat16() @ values
    return out, lse


def sampled_errors(plan, block):
    """d_q of some (query, group), d_k and d_v of some (block, group), from the same lse and out."""
    q, k, v, ids, out, lse, d_out = plan.kept
    d_q, d_k, d_v = plan.d
    n, heads, dim = q.shape
    groups = ids.shape[1]
    size = heads // groups
    scale = dim ** -0.5
    generator = torch.Generator().manual_seed(1)

    def d_scores(rows, g, keys):  # [rows, size, keys]: P and dS
        mine = slice(g * size, (g + 1) * size)
        dtype = torch.float64 if len(rows) < 20000 else torch.float32
        qq, oo, dd = (x[rows][:, mine].to(dtype) for x in (q, out, d_out))
        p = (qq @ k[keys, g].to(dtype).T * scale - lse[rows][:, mine, None].to(dtype)).exp()
        p = p * (keys <= rows[:, None])[:, None]
        delta = (oo * dd).sum(-1, keepdim=True)
        return p, p * (dd @ v[keys, g].to(dtype).T - delta), qq, dd

    worst = [0, 0, 0]
    for _ in range(24):
        i, g = (int(torch.randint(x, (1,), generator=generator)) for x in (n, groups))
        mine = ids[i, g][ids[i, g] >= 0].long()
        keys = (mine[:, None] * block + torch.arange(block, device=device)).flatten()
        keys = keys[keys < n]
        _, ds, _, _ = d_scores(torch.tensor([i], device=device), g, keys)
        want = ds[0] @ k[keys, g].double() * scale
        worst[0] = max(worst[0], error(d_q[i, g * size:(g + 1) * size], want))
    blocks = -(-n // block)
    for b in [0, blocks - 1] + torch.randint(blocks, (6,), generator=generator).tolist():
        g = int(torch.randint(groups, (1,), generator=generator))
        rows = (ids[:, g] == b).any(-1).nonzero()[:, 0]
        keys = torch.arange(b * block, min(n, (b + 1) * block), device=device)
        want_k = torch.zeros(len(keys), dim, device=device, dtype=torch.float64)
        want_v = torch.zeros_like(want_k)
        for part in rows.split(16384):
            p, ds, qq, dd = d_scores(part, g, keys)
            want_k += (ds.flatten(0, 1).T @ qq.flatten(0, 1)).double() * scale
            want_v += (p.flatten(0, 1).T @ dd.flatten(0, 1)).double()
        worst[1] = max(worst[1], error(d_k[keys, g], want_k))
        worst[2] = max(worst[2], error(d_v[keys, g], want_v))
    return worst


def time(sizes, repeats=10):
    flush = torch.empty(1 << 28, device=device, dtype=torch.int8)
    print('case: errors d_q d_k d_v; ms, useful TFLOP/s; ms of prepare, schedule, products, slots, finish')
    for n, heads, groups, dim, block, top_k, kind, settings in sizes:
        generator = torch.Generator(device).manual_seed(3)
        ids = (structured_ids(n, groups, block, top_k, 3) if kind == 'structured' else
               random_ids([0, n], [0, n], groups, block, top_k, generator))
        q, k, v, d_out = operands(n, n, heads, groups, dim, 5)
        out, lse = forward(q, k, v, ids, block)
        where = torch.arange(n, device=device)[:, None, None]
        seen = (where + 1 - ids.long() * block).clamp(max=block) * (ids >= 0)
        flops = 2.5 * 4 * heads * dim * seen.sum().item() / groups
        torch.cuda.empty_cache()
        for chunk, item in settings:
            plan = Plan([0, n], [0, n], heads, groups, dim, block, top_k, chunk, item)
            plan.bind(q, k, v, ids, out, lse, d_out)
            plan.run()
            torch.cuda.synchronize()
            errors = sampled_errors(plan, block)
            times = []
            for _ in range(repeats):
                flush.zero_()
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                torch.cuda.synchronize()
                events[0].record(torch.cuda.default_stream())
                plan.run()
                events[1].record(torch.cuda.default_stream())
                torch.cuda.synchronize()
                times.append(events[0].elapsed_time(events[1]))
            stages = [sorted(x)[1] for x in zip(*(plan.stages() for _ in range(3)))]
            ms = statistics.median(times)
            print(f'{n:7} {heads}/{groups} dh {dim} Bk {block} k {top_k} {kind:10} union {union_of_8(ids):5.1f} '
                  f'chunk {chunk:6} item {item:4}: ' + ' '.join(f'{e:.1e}' for e in errors) +
                  f' | {ms:8.3f} ms {flops / ms / 1e9:6.1f} TFLOP/s ({min(times):.3f}-{max(times):.3f}) | ' +
                  ' '.join(f'{x:.3f}' for x in stages), flush=True)
            plan.free()
            del plan
        del q, k, v, d_out, out, lse, ids, seen
        torch.cuda.empty_cache()


if __name__ == '__main__':
    print(torch.cuda.get_device_name())
    for what in sys.argv[2:]:
        if what == 'check':
            check()
        elif what == 'few':  # for compute-sanitizer
            check([2, 4, 7])
        elif what == 'once':  # for a profiler
            n = 32768
            ids = structured_ids(n, 4, 128, 16, 3)
            q, k, v, d_out = operands(n, n, 64, 4, 128, 5)
            plan = Plan([0, n], [0, n], 64, 4, 128, 128, 16)
            plan.bind(q, k, v, ids, *forward(q, k, v, ids, 128), d_out)
            plan.run()
            torch.cuda.synchronize()
        elif what == 'time':
            paper, pilot = (64, 4, 128, 128, 16), (16, 4, 64, 64, 16)
            kinds = ('structured', 'random')
            time([(131072, *paper, kind, [(16384, 256), (8192, 256)]) for kind in kinds] +
                 [(32768, *paper, kind, [(8192, 256)]) for kind in kinds] +
                 [(8192, *paper, kind, [(8192, 256), (4096, 256), (2048, 256)]) for kind in kinds] +
                 [(n, *pilot, kind, [(8192, 256), (4096, 256)]) for n in (8192, 32768)
                  for kind in kinds])
