# SPDX-License-Identifier: MIT
"""The inputs of every case, by formulas of integers alone: no generator of random numbers whose stream may change.

A case is a name, a sentence, what is asked (`wants`) and the inputs. docs/conformance.md says what each is for. Values
of operands are integers, or integers times a power of two, that bfloat16 and float16 hold exactly.
"""

import numpy as np

from .reference import Reference, queries

ENGINE = {"block_size": 128, "forced_first": 0, "forced_local": 1}  # what kernels of MiniMax-M3 take
DIM = 128


class Case:
    def __init__(self, name, about, wants, given, rows=(), exact=True):
        self.name, self.about, self.wants = name, about, wants
        self.given = {**given, "wants": wants}
        self.rows = list(rows)  # whose out, lse and gradients the archive keeps; empty: all
        self.exact = exact  # sums of products are exact in float32: ids bit for bit, tighter bounds


def noise(shape, seed):
    """uint64 by splitmix64 of the element's number."""
    with np.errstate(over="ignore"):
        x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2 ** 64)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).reshape(shape)


def integers(shape, seed, most):
    """Whole numbers from -most to most."""
    return (noise(shape, seed) % np.uint64(2 * most + 1)).astype(np.int64).astype(np.float32) - most


def pooled(shape, seed, most, size=24):
    """The same, of which rows (last axis) repeat those of a pool: that is what keeps the archive small."""
    pool = integers((size, shape[-1]), seed, most)
    return pool[(noise(shape[:-1], seed + 1) % np.uint64(size)).astype(np.int64)]


def lengths(*counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def sizes(dim=DIM, index_dim=DIM, top_k=3, **others):
    return {**ENGINE, "top_k": top_k, "softmax_scale": float(dim) ** -0.5, "index_scale": float(index_dim) ** -0.5,
            **others}


def clear_queries(given, groups, seed, gap=1.0, most=2, size=40):
    """index_q [Nq, Hkv, didx] whose last chosen block scores better than the first that is not chosen by `gap` at
    least, in units of the products, so that no tie decides."""
    keys, size_ = given["index_k"].astype(np.float64), given["block_size"]
    pool = integers((size, keys.shape[1]), seed, most)
    products = pool.astype(np.float64) @ keys.T
    rows = [(i, first, count) for i, first, count, _ in queries(given)]
    found = np.zeros((len(rows), groups, keys.shape[1]), np.float32)
    order = noise((len(rows), groups), seed + 1)
    free = given["top_k"] - given["forced_first"] - given["forced_local"]
    for i, first, count in rows:
        blocks = -(-count // size_)
        middle = range(given["forced_first"], blocks - given["forced_local"])
        best = np.array([products[:, first + b * size_:first + min((b + 1) * size_, count)].max(1) for b in middle])
        for r in range(groups):
            turns = (int(order[i, r] % np.uint64(size)) + np.arange(size)) % size
            if len(best) > free:
                ranked = -np.sort(-best[:, turns], axis=0)
                turns = turns[ranked[free - 1] - ranked[free] >= gap]
            found[i, r] = pool[turns[0]]
    return found


def of_scores():
    """Selection from scores [Nq, Hkv, B] float32, which are inputs: nothing is rounded."""
    blocks, rows, groups = 24, 6, 2
    base = sizes(top_k=6, cu_seqlens_q=lengths(rows), cu_seqlens_k=lengths(blocks * 128 - 5))
    plain = integers((rows, groups, blocks), 1, 1000)

    def case(name, about, scores, **others):
        return Case(f"scores.{name}", about, ("ids",), {**base, "scores": scores.astype(np.float32), **others})

    zeros = np.where(noise(plain.shape, 2) % np.uint64(2) == 0, 0.0, -0.0)
    signed = np.where(noise(plain.shape, 3) % np.uint64(3) == 0, zeros, -np.abs(plain) - 1)
    nan = np.where(noise(plain.shape, 4) % np.uint64(3) == 0, np.nan, plain)
    few = np.where(noise(plain.shape, 5) % np.uint64(8) == 0, plain, -np.inf)
    yield case("plain", "different scores", plain + np.arange(blocks) / 64)
    yield case("ties", "three values: ties to the lower id", integers(plain.shape, 6, 1))
    yield case("signed-zeros", "+0 and -0 are one value: ties to the lower id", signed)
    yield case("all-equal", "one value: the lowest ids and the local block", np.full(plain.shape, 3.5))
    yield case("nan", "NaN counts as -inf and is never chosen", nan)
    yield case("all-nan", "where all are NaN the local block stays alone", np.full(plain.shape, np.nan))
    yield case("minus-infinity", "-inf is never chosen: rows may be short", few)
    yield case("far-below", "all below -1e30, where a sentinel of that size would win", plain * 1e34 - 3e38)
    yield case("far-above", "some above 1e30: the local block is still in",
               np.where(plain > 0, 3e38 - 1e35 * np.abs(plain), plain))
    yield case("forced-first", "two first blocks are forced, too", plain + np.arange(blocks) / 64, forced_first=2)
    yield case("forced-local", "the three newest blocks are forced", plain + np.arange(blocks) / 64, forced_local=3)
    yield case("forced-overlap", "first and newest blocks are the same ones", plain[:, :, :3] + np.arange(3) / 64,
               forced_first=2, forced_local=3, cu_seqlens_k=lengths(3 * 128 - 40))
    yield case("k-above", "more slots than visible blocks: padded with -1", plain + np.arange(blocks) / 64, top_k=32)
    yield case("all-of-one", "k = 1: the local block alone", plain, top_k=1)


def of_operands():
    """Selection from index_q and index_k."""
    def case(name, about, given, **options):
        return Case(f"select.{name}", about, ("ids",), given, **options)

    def made(seed, queries_, keys, groups=2, dim=DIM, gap=1.0, **others):
        given = sizes(index_dim=dim, cu_seqlens_q=lengths(*queries_), cu_seqlens_k=lengths(*keys), **others)
        given["index_k"] = integers((sum(keys), dim), 10, 2)  # the same keys in many cases: the archive has them once
        given["index_q"] = clear_queries(given, groups, seed + 2, gap)
        return given

    yield case("prefill", "a prompt whose last block is partial", made(10, [697], [697]))
    yield case("packed", "three sequences, packed: ids count from the start of each", made(12, [300, 1, 150],
                                                                                        [300, 520, 530]))
    yield case("chunk", "queries behind a prefix that ends within a block", made(14, [90], [690]))
    yield case("drafts", "four drafts of three sequences", made(16, [4, 4, 4], [640, 517, 900], top_k=4))
    yield case("decode", "one query of each sequence", made(18, [1, 1, 1, 1], [1, 128, 129, 1000], top_k=4))
    yield case("equal-axes", "Nq = Hkv = k = 4: no check of shapes tells the axes apart",
               made(20, [4], [900], groups=4, top_k=4))
    yield case("k-above", "k above the visible blocks, the local one among them", made(22, [260], [260], top_k=8))
    yield case("blocks-of-32", "blocks of 32, three groups, 48 channels",
               made(24, [200], [200], groups=3, dim=48, block_size=32))
    yield case("no-key", "more queries than keys: the first see nothing", made(26, [8], [5]))
    yield case("many-blocks", "more blocks than one pass of a kernel takes: 200 of 16 keys",
               made(28, [3], [3200], dim=64, block_size=16, top_k=16))

    ties = made(30, [5, 70], [600, 700], top_k=3)
    ties["index_k"] = np.tile(integers((50, DIM), 31, 2), (26, 1))
    ties["index_q"] = pooled((75, 2, DIM), 33, 2)
    yield case("ties", "keys repeat in every block: ties to the lower id", ties)
    zero = {**ties, "index_q": np.zeros_like(ties["index_q"])}
    zero["index_q"][::2] = -0.0
    yield case("zeros", "queries of +0 and -0: all scores equal", zero)

    below = made(34, [40, 60], [340, 1100], top_k=4)
    below["index_k"][:, 5], below["index_q"][..., 5] = -100, 8
    yield case("far-below", "all scores about -70 and a partial last block: padding that scores 0 would win", below)
    massive = made(36, [100], [700], gap=2.0)
    for channel, factor in ((17, 100), (90, 25)):
        massive["index_k"][:, channel] = factor * 4
        massive["index_q"][..., channel] = factor
    yield case("massive", "two channels a hundred times the others", massive)

    wide = made(38, [60], [500])
    factors = 2.0 ** -(noise((DIM,), 40) % np.uint64(11)).astype(np.float32)
    wide["index_k"] = (pooled((500, DIM), 41, 60, 150) * factors).astype(np.float32)
    wide["index_q"] = clear_queries(wide, 2, 43, gap=0.5)
    yield case("rounded", "channels of sizes 1 to 1/1024, whose sums are rounded: ids by bounds", wide, exact=False)

    scaled = sizes(cu_seqlens_q=lengths(50), cu_seqlens_k=lengths(900), top_k=4)
    scaled["index_q8"] = (pooled((50, 2, DIM), 43, 127)).astype(np.int8)
    scaled["index_k8"] = (pooled((900, DIM), 45, 127)).astype(np.int8)
    scaled["index_q_scales"] = 2.0 ** integers((50, 2), 46, 12)
    scaled["index_k_scales"] = np.array([1, 2 ** -9, 2, 4, 2 ** -12, 1, 2 ** 10, 0.5], np.float32)
    yield case("int8", "int8 with scales of blocks from 2^-12 to 2^10", scaled)
    padded = {**scaled, "index_k8": np.where(np.arange(900)[:, None] % 128 < 60, -np.abs(scaled["index_k8"]), 0)
              .astype(np.int8), "index_q8": np.abs(scaled["index_q8"])}
    yield case("int8-zeros", "int8 whose products are 0 in every block: ties, however far apart the scales", padded)


def branch_rope():
    given = sizes(cu_seqlens_q=lengths(70), cu_seqlens_k=lengths(600), rotary_dim=64, theta=1e4)
    given["index_k_plain"], given["positions_k"] = integers((600, DIM), 10, 2), np.arange(600, dtype=np.int32)
    given["positions_q"] = given["positions_k"][-70:]
    pool = integers((40, DIM), 52, 2)
    system, at = Reference(), np.zeros((70, 2), np.int64)
    for turn in range(len(pool)):  # each query takes the first row of the pool by which no near tie decides
        given["index_q_plain"] = pool[(np.arange(140).reshape(70, 2) * 7 + at) % len(pool)]
        rotated = {**given, **{name: value for name, value in system({**given, "wants": ()}).items()
                               if name.startswith("index")}}
        ranked = -np.sort(-system.scores(rotated)[..., :4] / given["index_scale"])  # 4 or 5 blocks, the last forced
        near = ranked[..., 1] - ranked[..., 2] < 1
        near[given["positions_q"] < 512] = (lambda s: s[..., 1] - s[..., 2] < 1)(ranked[given["positions_q"] < 512])
        if not near.any():
            break
        at = at + near
    yield Case("rope.branch", "RoPE turns the first 64 of 128 channels of the Index Branch, in halves",
               ("index_q", "index_k", "ids"), given, rows=(0, 33, 69), exact=False)


def layer():
    """The whole layer on one sequence, and the same queries as a chunk, as drafts and step by step."""
    n, groups, heads = 640, 2, 32
    base = sizes(cu_seqlens_q=lengths(n), cu_seqlens_k=lengths(n))
    base["index_k"] = integers((n, DIM), 10, 2)
    base["index_q"] = clear_queries(base, groups, 62)
    base["q"] = pooled((n, heads, DIM), 64, 2)
    base["k"], base["v"] = pooled((n, groups, DIM), 66, 2), pooled((n, groups, DIM), 68, 6)
    ids = Reference()({key: base[key] for key in base if key not in "qkv"} | {"wants": ()})["ids"]
    given_ids = {**base, "ids": ids}
    both, attended = ("ids", "out", "lse"), ("out", "lse")
    last = (130, 639)
    yield Case("layer.prefill", "a prompt of five whole blocks", both, base, last)
    yield Case("attend.prefill", "the same with ids given", attended, given_ids, last)

    def tail(count, given):
        found = {**given, "cu_seqlens_q": lengths(count)}
        return {**found, **{name: given[name][-count:] for name in ("q", "index_q", "ids") if name in given}}

    yield Case("layer.chunk", "its last 140 queries, behind the others", both, tail(140, base), (0, 139))
    yield Case("layer.drafts", "its last four queries", both, tail(4, base), (0, 3))
    yield Case("layer.decode", "its last query", both, tail(1, base))

    steps, pages = np.array([639, 599, 512, 511, 129]), 5
    paged = {**base, "page_size": 128, "lengths": (steps + 1).astype(np.int32),
             "cu_seqlens_q": lengths(*[1] * len(steps)),
             "page_table": np.tile(np.arange(pages, dtype=np.int32), (len(steps), 1))}
    for name in ("k", "v", "index_k"):
        paged[f"{name}_pages"] = paged.pop(name).reshape(pages, 128, *base[name].shape[1:])
    paged.update(q=base["q"][steps], index_q=base["index_q"][steps])
    del paged["cu_seqlens_k"]
    yield Case("pages.decode", "queries of it as steps of decode over shared pages", both, paged, (0, 4))

    d_out = pooled((n, heads, DIM), 70, 2)
    yield Case("gradient.attention", "gradients of sum(out * d_out), none through ids", ("d_q", "d_k", "d_v"),
               {**given_ids, "d_out": d_out}, (0, 300))
    yield Case("gradient.kl", "the KL loss on the support and its gradient",
               ("kl", "d_index_q", "d_index_k", "kl_d_q", "kl_d_k"), {**base, "ids": ids}, (0, 300, 639))


def attention():
    """Attention to given blocks."""
    attended = ("out", "lse")

    def made(name, about, ids, keys, groups=2, group=16, dim=DIM, change=None, **others):
        ids = np.asarray(ids, np.int32)
        rows = len(ids)
        given = sizes(dim=dim, top_k=ids.shape[2], cu_seqlens_q=lengths(rows), cu_seqlens_k=lengths(keys), **others)
        given.update(q=pooled((rows, groups * group, dim), 64, 2), k=pooled((keys, groups, dim), 66, 2),
                     v=pooled((keys, groups, dim), 68, 6), ids=ids)
        if change:
            change(given)
        return Case(f"attend.{name}", about, attended, given, (0, rows - 1))

    def chosen(rows, groups, k, blocks, seed):
        """k - 1 blocks by noise and the last one."""
        order = np.argsort(noise((rows, groups, blocks - 1), seed), axis=2)[:, :, :k - 1]
        return np.concatenate([np.sort(order, axis=2), np.full((rows, groups, 1), blocks - 1)], 2)

    yield made("equal-axes", "Nq = Hkv = k = 4: ids of two layouts have one shape", chosen(4, 4, 4, 7, 80), 800,
               groups=4)

    def strided(given):
        buffer = np.full((*given["ids"].shape[:2], 7), 1, np.int32)
        buffer[:, :, 2:5] = given["ids"]
        given["ids_buffer"] = buffer
        del given["ids"]

    yield made("strided", "ids are slots 2 to 4 of rows of seven", chosen(6, 2, 3, 6, 86), 700, change=strided)
    short = chosen(6, 2, 4, 6, 92)
    short[:, 0, 2:] = -1
    short[3, 1, 1:] = -1
    yield made("short-rows", "rows of fewer than k blocks, padded with -1", short, 760)
    none = chosen(4, 2, 3, 5, 98)
    none[1], none[2, 1] = -1, -1
    yield made("no-block", "rows without a block: out 0, lse -inf", none, 640)

    def nan_outside(given):
        for name in ("k", "v"):
            given[name][128:256] = np.nan
            given[name][512:600] = np.nan
    outside = np.tile(np.array([0, 2, 3, 5]), (4, 2, 1))
    yield made("nan-outside", "NaN in blocks that nobody selects", outside, 700, change=nan_outside)

    def far_below(given):
        given["k"][..., 9], given["q"][..., 9] = -85, 8
    yield made("far-below", "logits about -60 and a partial last block: padding of logit 0 would win",
               chosen(4, 2, 3, 6, 110), 650, change=far_below)

    def massive(given):
        # Every second head: two kinds of keys, whose weights are 1 and e^(-4 / sqrt(128)) = 2^-0.51.
        kind = np.float32(noise(given["k"].shape[:2], 117) % np.uint64(2))
        given["q"][:, ::2] = 0
        given["q"][:, ::2, 8] = -4
        given["k"][..., 8] = kind
        given["v"][..., :64] = np.where(kind == 0, 6, -6)[..., None]
        given["q"][..., 7], given["k"][..., 7] = 100, 100
        given["v"][..., 40] *= 100
        given["v"][..., 70] *= 100
    yield made("massive", "a channel of q, k and v a hundred times the others", chosen(6, 2, 4, 7, 116), 880,
               change=massive)
    yield made("group-of-3", "three heads a group, three groups, 48 channels, blocks of 32",
               chosen(9, 3, 3, 6, 124), 180, groups=3, group=3, dim=48, block_size=32)
    yield made("group-of-12", "twelve heads a group, five groups, 64 channels, blocks of 64",
               chosen(3, 5, 3, 5, 130), 300, groups=5, group=12, dim=64, block_size=64)

    def sinks(given):
        heads = given["q"].shape[1]
        given["sinks"] = np.linspace(-6, 14, heads).astype(np.float16).astype(np.float32)
    yield made("sinks", "a logit of each head that competes and has no value, up to 99 % of the weight",
               chosen(4, 2, 3, 5, 136), 600, change=sinks)

    def eight_bits(given):
        table = np.array([0x00, 0x38, 0xB8, 0x40, 0xC0, 0x44, 0xC4, 0x48], np.uint8)  # 0, 1, -1, 2, -2, 3, -3, 4
        for name, seed in (("k", 143), ("v", 145)):
            shape = given.pop(name).shape
            rows = (noise((150, shape[-1]), seed) % np.uint64(8)).astype(np.int64)
            given[f"{name}8"] = table[rows][(noise(shape[:-1], seed + 1) % np.uint64(150)).astype(np.int64)]
        given["k_scales"] = 2.0 ** -np.abs(integers((5, 2), 147, 6))
        given["v_scales"] = 2.0 ** integers((5, 2), 148, 6)
    yield made("e4m3", "keys and values in e4m3 with scales of blocks from 2^-6 to 2^6",
               chosen(4, 2, 3, 5, 142), 600, change=eight_bits)


def pages():
    """Keys in pages. What no token wrote is there, too: 77, NaN, or another request's keys."""
    both = ("ids", "out", "lse")

    def own(part):
        """Keys of the Index Branch differ within a block: a pool of few would make ties of blocks."""
        return 150 if part == "index_k" else 24

    def made(name, about, seed, new, held, page_size=128, table=None, copies=None, unwritten=77.0, top_k=3, old=None,
             groups=2, group=16):
        total = np.array(held) + new
        most = -(-int(total.max()) // page_size)
        if table is None:
            count = int((-(-total // page_size)).sum())
            order, table, at = np.argsort(noise((count,), seed)), np.full((len(new), most), -1, np.int32), 0
            for s, tokens in enumerate(total):
                used = -(-int(tokens) // page_size)
                table[s, :used], at = order[at:at + used], at + used
        table = np.asarray(table, np.int32)
        given = sizes(top_k=top_k, page_size=page_size, cu_seqlens_q=lengths(*new), lengths=total.astype(np.int32),
                      page_table=table)
        if copies:
            given["copies"] = np.array(copies, np.int32)
        count = max(int(table.max()), np.max(copies) if copies else 0) + 1
        rows = int(sum(new))
        for number, (part, axes, most_) in enumerate((("k", (groups, DIM), 2), ("v", (groups, DIM), 6),
                                                      ("index_k", (DIM,), 2))):
            pool = np.full((count, page_size, *axes), unwritten, np.float32)
            if old:
                pool[:] = pooled(pool.shape, seed + 40 + number, most_)
            if old and part == "index_k":  # what draws every query
                pool[:] = np.where(np.arange(DIM) < 4, 2, 0)
            sources = {int(b): int(a) for a, b in copies or ()}
            for s, tokens in enumerate(held):
                for p in range(-(-tokens // page_size)):
                    part_ = min(page_size, tokens - p * page_size)
                    page = sources.get(int(table[s, p]), int(table[s, p]))
                    values = pooled((page_size, *axes), seed + 50 + 7 * page + number, most_, own(part))
                    if not (old and page in sources.values()):
                        pool[page, :part_] = values[:part_]
            given[f"{part}_pages"] = pool
            given[f"new_{part}"] = pooled((rows, *axes), seed + 20 + 2 * number, most_, own(part))
        packed = Reference().packed(given)
        given["index_q"] = clear_queries({**packed, "index_k": np.nan_to_num(packed["index_k"])}, groups, seed + 30)
        given["q"] = pooled((rows, groups * group, DIM), seed + 32, 2)
        return Case(f"pages.{name}", about, both, given, (0, rows - 1))

    yield made("partial", "the last page of each sequence is partial", 200, (3, 1, 20), (500, 390, 256))
    yield made("nan", "NaN in every slot that no token wrote", 220, (4, 1), (600, 129), unwritten=np.nan)
    yield made("of-32", "pages of 32 tokens and blocks of 128", 240, (5, 1), (520, 407), page_size=32)
    yield made("reused", "pages hold the keys of requests before", 260, (6, 2), (530, 700), old=True)
    yield made("prefix", "two sequences share a prefix that ends within a page, whose copy each goes on to write", 280,
               (230, 200), (200, 200), table=[[0, 2, 4, 5], [0, 3, 6, 7]], copies=[(1, 2), (1, 3)], old=True)


def batches():
    """One sequence, full of ties, in several batches: the ids are the same."""
    keys = np.tile(integers((40, DIM), 300, 2), (18, 1))[:700]
    rows = pooled((80, 2, DIM), 302, 2)
    other = pooled((900, DIM), 304, 2)

    def made(name, about, first, mine, last=(0, 0)):
        """Queries and keys before, the rows of the sequence, queries and keys behind."""
        new = [n for n in (first[0], len(mine), last[0]) if n]
        held = [n for n in (first[1], 700, last[1]) if n]
        given = sizes(top_k=3, cu_seqlens_q=lengths(*new), cu_seqlens_k=lengths(*held))
        given["index_k"] = np.concatenate([other[:first[1]], keys, other[:last[1]]])
        given["index_q"] = np.concatenate([rows[:first[0]], rows[mine], rows[:last[0]]])
        return Case(f"batch.{name}", about, ("ids",), given)

    yield made("alone", "the sequence alone", (0, 0), np.arange(80))
    yield made("second", "behind another sequence", (9, 300), np.arange(80))
    yield made("between", "between two others", (1, 900), np.arange(80), (30, 30))
    yield made("chunk", "its last 30 queries, behind the others", (0, 0), np.arange(50, 80))
    yield made("decode", "its last query beside another's", (1, 200), np.arange(79, 80))


def warm_up():
    given = sizes(dim=64, index_dim=64, top_k=3, cu_seqlens_q=lengths(70, 60), cu_seqlens_k=lengths(70, 60),
                  block_size=32)
    given.update(q=pooled((130, 6, 64), 310, 3), k=pooled((130, 2, 64), 312, 3), index_q=pooled((130, 2, 64), 314, 2),
                 index_k=pooled((130, 64), 316, 2))
    given["q"][:, ::3] *= 4  # heads of one group differ widely: a mean of logits is another teacher
    yield Case("gradient.kl-warm-up", "the KL loss on all visible tokens, of two sequences",
               ("kl", "d_index_q", "d_index_k", "kl_d_q", "kl_d_k"), given, (0, 35, 69, 70, 129))


def all_cases():
    return [case for group in (of_scores, of_operands, branch_rope, batches, layer, attention, pages, warm_up)
            for case in group()]


# (name, [(case, first row), ...], number of rows): rows that must have the same ids, whatever rule they follow.
SAME_IDS = (("same.batch", (("batch.alone", 0), ("batch.second", 9), ("batch.between", 1)), 80),
            ("same.batch-chunk", (("batch.alone", 50), ("batch.chunk", 0)), 30),
            ("same.batch-decode", (("batch.alone", 79), ("batch.decode", 1)), 1),
            ("same.chunk", (("layer.prefill", 500), ("layer.chunk", 0)), 140),
            ("same.drafts", (("layer.prefill", 636), ("layer.drafts", 0)), 4),
            ("same.decode", (("layer.prefill", 639), ("layer.decode", 0), ("pages.decode", 0)), 1))
