# SPDX-License-Identifier: MIT
"""How far a right answer may be from the exact one. The formulas are those of core/tolerance.h of msalab, in whose
words each is derived: gamma, logit_bound, weight_bound, attention_bound, slot_bound, lse_bound, sink_output_bound,
kl_bound; docs/conformance.md has them on one page. A system says in which precision it answers: the type of operands
and results. Sums are at least float32."""

import numpy as np

from .reference import Reference, queries

ROUNDOFF = 2.0 ** -24  # of a float32 sum
EXP = 4  # roundoffs of one float32 exp
STORED = {"float64": ROUNDOFF, "float32": ROUNDOFF, "bfloat16": 2.0 ** -8, "float16": 2.0 ** -11, "e4m3": 2.0 ** -8}
_MATH = Reference()


def gamma(terms):
    share = terms * ROUNDOFF
    return np.where(share < 0.5, share / (1 - np.minimum(share, 0.5)), 2 * share)


def weight_bound(logit, keys):
    return np.expm1(2 * logit) + gamma(2 * EXP + 2 * keys + 4)


def taken(precision):
    """Rounding of the softmax weights, which tensor cores take in the operands' type."""
    return {"float64": 0.0, "float32": 0.0, "e4m3": 2.0 ** -4}.get(precision, STORED[precision])


def stored(precision, size):
    return STORED[precision] * size + 2.0 ** -149


def product_bound(rows, keys, scale, exact, products):
    """Error of scale * row . key. Where all sums are whole numbers below 2^24 (times a power of two), no sum rounds
    anything: then there are the scale, log2 e, the products with them and the subtraction of the maximum, six
    roundings of the largest logit in all. Otherwise gamma(width + 3) |q| |k|."""
    if exact:
        return gamma(6) * np.abs(products).max()
    return gamma(keys.shape[1] + 3) * scale * np.linalg.norm(rows) * np.linalg.norm(keys, axis=1).max()


def e4m3_product_bound(row, keys, scale):
    """Tensor cores keep 13 fraction bits of each step of 32 products (Hopper)."""
    steps = np.ceil(keys.shape[1] / 32)
    return steps * 33 * 2.0 ** -13 * scale * np.linalg.norm(row) * np.linalg.norm(keys, axis=1).max()


def e4m3_weights_bound(keys, block_size):
    """Error of an output whose weights tensor cores take in e4m3 (e4m3_attention_bound of core/e4m3_tolerance.h): in units
    of the weighted mean size of the values, and in units of the largest."""
    return taken("e4m3") + np.ceil(block_size / 32) * 33 * 2.0 ** -13, keys * 2.0 ** -18


def attention_bounds(given, rows, precision, exact):
    """Of packed inputs with ids: bounds of out [rows, Hq, dh] and lse [rows, Hq]."""
    q, k, v = _MATH.operands(given)
    group, scale, where = q.shape[1] // k.shape[1], given["softmax_scale"], list(queries(given))
    out, lse = np.zeros((len(rows), *q.shape[1:])), np.zeros((len(rows), q.shape[1]))
    for at, row in enumerate(rows):
        _, first, count, length = where[row]
        for h in range(q.shape[1]):
            tokens = _MATH.support(given, given["ids"][row, h // group], first, count, length)
            if not len(tokens):
                continue
            keys, values = k[tokens, h // group], np.abs(v[tokens, h // group]).max(0)
            products = scale * (keys @ q[row, h])
            logit = product_bound(q[row, h], keys, scale, exact, products)
            weights = taken(precision)
            if precision == "e4m3":
                logit = e4m3_product_bound(q[row, h], keys, scale)
                weights = sum(e4m3_weights_bound(len(tokens), given["block_size"]))
            sink = _MATH.sink(given, h)
            size = abs(_MATH.softmax(products, sink)[1])
            lse[at, h] = logit + gamma(EXP + 2 * len(tokens) + 4) + 2 * ROUNDOFF * size
            share = weight_bound(logit, len(tokens)) + weights + gamma(len(tokens) + 2)
            if sink > -np.inf:
                share += np.expm1(lse[at, h]) + gamma(EXP + 4) + STORED[precision]
                lse[at, h] += gamma(EXP + 2)
            out[at, h] = share * values + 3 * stored(precision, values)  # the result, a part of it, and their mean
    return out, lse


def error_of_weights(given, precision, exact, names=("q", "k"), scale="softmax_scale"):
    """The relative error of the weights of whichever row has the largest, and the most keys of a row."""
    rows, keys = (np.asarray(given[name], np.float64) for name in names)
    rows = rows.reshape(-1, rows.shape[-1])
    keys = keys.reshape(-1, keys.shape[-1])
    most = (given["top_k"] * given["block_size"]) if "ids" in given else int(np.diff(given["cu_seqlens_k"]).max())
    largest = given[scale] * np.linalg.norm(rows, axis=1).max() * np.linalg.norm(keys, axis=1).max()
    logit = (gamma(6) if exact else gamma(keys.shape[1] + 3)) * largest
    return logit, weight_bound(logit, most), most


def gradient_share(given, precision, exact):
    """Of gradients of attention, the error in units of the sum of the sizes of what is added: of a weight (its own,
    and its rounding where tensor cores take it), of the out of which D is made (that of a weight and of its storage),
    of products and sums."""
    _, weight, keys = error_of_weights(given, precision, exact)
    rows = len(given["q"]) * given["q"].shape[1] // given["k"].shape[1]
    return 2 * weight + 2 * taken(precision) + 4 * STORED[precision] + gamma(keys + rows + 2 * given["q"].shape[2] + 10)


def kl_bounds(given, precision, exact):
    """(bound of kl without its log ratio, factor of the log ratio, error of gradients in units of their sizes)."""
    main, weight, keys = error_of_weights(given, precision, exact)
    index, index_weight, _ = error_of_weights(given, precision, exact, ("index_q", "index_k"), "index_scale")
    rows = len(given["q"]) * given["index_q"].shape[1]
    gradient = weight + index_weight + 2 * gamma(keys + rows + 4) + 2 * taken(precision) + STORED[precision]
    return 2 * (main + index) + gamma(8 * EXP + 8 * keys) + taken(precision), weight + taken(precision), gradient


def rotation_bound(size, angle, precision):
    """Of rows turned by RoPE: the angle (frequency and product), cosine and sine, two products and a sum; in another
    type than float32 cosine and sine are rounded to it."""
    return np.sqrt(2) * size * ((4 * angle + 8) * ROUNDOFF + (2 * STORED[precision])) + stored(precision, size)
