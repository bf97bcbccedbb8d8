# SPDX-License-Identifier: MIT
"""MSA in float64, from the equations of the paper ("MiniMax Sparse Attention"), with numpy alone.

Shapes: index_q [Nq, Hkv, didx], index_k [Nk, didx], q [Nq, Hq, dh], k and v [Nk, Hkv, dh], ids [Nq, Hkv, top_k].
Query i of a sequence of Nq queries and Nk keys sits at position Nk - Nq + i of it and sees the keys up to there.
What a dictionary `given` may hold: docs/conformance.md.
"""

import numpy as np

NONE = -1  # pads a row of ids


class Reference:
    """given -> answers. Its methods are the steps that a faulty copy (faults.py) replaces."""

    precision = "float64"

    def __call__(self, given):
        given = self.packed(given)
        found = {"precision": self.precision}
        if "index_q_plain" in given:
            given = {**given, **{name: rotated(given[f"{name}_plain"], positions, given["rotary_dim"], given["theta"])
                                 for name, positions in (("index_q", given["positions_q"]),
                                                         ("index_k", given["positions_k"]))}}
            found.update(index_q=given["index_q"], index_k=given["index_k"])
        if "ids" in given:
            given = {**given, "ids": self.read_ids(given["ids"])}
        elif "kl" in given["wants"]:
            pass  # without ids: all visible tokens
        elif "scores" in given or "index_q" in given or "index_q8" in given:
            found["ids"] = self.select(given, given["scores"] if "scores" in given else self.scores(given))
            given = {**given, "ids": found["ids"]}
        if {"out", "lse", "d_q"} & set(given["wants"]):
            found.update(self.attend(given))
        if "kl" in given["wants"]:
            found.update(self.kl(given))
        return found

    def packed(self, given):
        """The same call with packed keys: the pages of each sequence, read in order."""
        if "page_table" not in given:
            return given
        where = places(given, given["lengths"])
        found = {**given, "cu_seqlens_k": np.concatenate([[0], np.cumsum(given["lengths"])])}
        for name, pool in self.written(given).items():
            found[name] = pool.reshape(-1, *pool.shape[2:])[np.concatenate(where)]
        return found

    def written(self, given):
        """The pools after pages were copied and the new tokens written."""
        counts = np.diff(given["cu_seqlens_q"])
        new = np.concatenate([row[len(row) - count:] for row, count in zip(places(given, given["lengths"]), counts)])
        found = {}
        for name in ("k", "v", "index_k"):
            if f"{name}_pages" not in given:
                continue
            pool = found[name] = given[f"{name}_pages"].copy()
            for source, target in given.get("copies", ()):
                self.copy_page(name, pool, source, target)
            if f"new_{name}" in given:
                self.append(name, pool.reshape(-1, *pool.shape[2:]), new, given[f"new_{name}"], given)
        return found

    def copy_page(self, name, pool, source, target):
        pool[target] = pool[source]

    def append(self, name, tokens, places, rows, given):
        tokens[places] = rows

    def read_ids(self, ids):
        return np.asarray(ids)

    def scores(self, given):
        """eq:msa-index-score: of each block the largest product with a visible key; -inf without one."""
        if "index_q8" in given:
            rows = given["index_q8"].astype(np.float64) * given["index_q_scales"][..., None]
            keys = given["index_k8"].astype(np.float64) * block_of_each_key(given, given["index_k_scales"])[:, None]
        else:
            rows, keys = (np.asarray(given[name], np.float64) for name in ("index_q", "index_k"))
        size, found = given["block_size"], None
        for i, first, count, length in queries(given):
            products = given["index_scale"] * (rows[i] @ keys[first:first + length].T)
            products = self.masked(products, count)
            blocks = -(-products.shape[1] // size)
            if found is None:
                found = np.full((len(rows), rows.shape[1], self.most_blocks(given)), -np.inf)
            for b in range(blocks):
                found[i, :, b] = products[:, b * size:(b + 1) * size].max(1)
        return found

    def most_blocks(self, given):
        return most_blocks(given)

    def masked(self, products, count):
        return np.where(np.arange(products.shape[1]) < count, products, -np.inf)

    def select(self, given, scores):
        """eq:msa-topk: forced blocks take their slots first, then the highest scores, ties to the lower id; NaN and
        -inf are never chosen. Rows are ascending, padded with -1."""
        ids = np.full((*scores.shape[:2], given["top_k"]), NONE, np.int32)
        for i, _, count, _ in queries(given):
            blocks = -(-count // given["block_size"])
            for r in range(scores.shape[1]):
                row = self.choose(given, i, scores[i, r], blocks)
                ids[i, r, :len(row)] = row
        return ids

    def choose(self, given, i, scores, blocks):
        forced = forced_blocks(given, blocks)
        free = [b for b in self.candidates(scores, blocks) if b not in forced]
        free.sort(key=lambda b: (-scores[b], self.tie(given, i, b)))
        return sorted([*forced, *free[:given["top_k"] - len(forced)]])

    def candidates(self, scores, blocks):
        return [b for b in range(blocks) if scores[b] > -np.inf]

    def tie(self, given, i, block):
        return block

    def attend(self, given):
        """eq:msa-sparse-attn, and its gradient where d_out is given."""
        q, k, v = self.operands(given)
        group, scale = q.shape[1] // k.shape[1], given["softmax_scale"]
        found = {"out": np.zeros(q.shape), "lse": np.full(q.shape[:2], -np.inf)}
        d_out = np.asarray(given["d_out"], np.float64) if "d_out" in given else None
        if d_out is not None:
            found.update({name: np.zeros(like.shape) for name, like in (("d_q", q), ("d_k", k), ("d_v", v))})
            found.update({f"{name}_size": np.zeros(found[name].shape[:2]) for name in ("d_q", "d_k", "d_v")})
        for i, first, count, length in queries(given):
            for h in range(q.shape[1]):
                r = h // group
                tokens = self.support(given, given["ids"][i, r], first, count, length)
                if not len(tokens):
                    continue
                keys, values = self.rows(k, tokens, r), self.rows(v, tokens, r)
                p, found["lse"][i, h] = self.softmax(scale * (keys @ q[i, h]), self.sink(given, h))
                found["out"][i, h] = p @ values
                if d_out is None:
                    continue
                d_p, d = values @ d_out[i, h], found["out"][i, h] @ d_out[i, h]
                d_logit = scale * p * (d_p - d)
                found["d_q"][i, h] = d_logit @ keys
                found["d_k"][tokens, r] += d_logit[:, None] * q[i, h]
                found["d_v"][tokens, r] += p[:, None] * d_out[i, h]
                # Sums of the sizes of what is added, which bounds.py needs.
                size = scale * p * (np.abs(d_p) + abs(d) + np.abs(d_out[i, h]) @ (p @ np.abs(values)))
                found["d_q_size"][i, h] = size.sum() * np.abs(keys).max()
                found["d_k_size"][tokens, r] += size * np.abs(q[i, h]).max()
                found["d_v_size"][tokens, r] += p * np.abs(d_out[i, h]).max()
        return found

    def operands(self, given):
        """q, k, v as float64; 8-bit keys and values times the scales of their blocks."""
        if "k8" not in given:
            return tuple(np.asarray(given[name], np.float64) for name in ("q", "k", "v"))
        return (np.asarray(given["q"], np.float64),
                *(e4m3(given[f"{name}8"]) * block_of_each_key(given, given[f"{name}_scales"])[..., None]
                  for name in ("k", "v")))

    def support(self, given, row, first, count, length):
        """The visible tokens of the row's blocks."""
        size = given["block_size"]
        tokens = [np.arange(b * size, min((b + 1) * size, count)) for b in row if b >= 0]
        return first + np.concatenate(tokens) if tokens else np.zeros(0, np.int64)

    def rows(self, operand, tokens, r):
        return operand[tokens, r]

    def sink(self, given, h):
        return float(given["sinks"][h]) if "sinks" in given else -np.inf

    def softmax(self, logits, sink=-np.inf):
        """Weights, and the natural logarithm of their sum, in which a sink competes."""
        most = max(logits.max(), sink)
        weights = self.exp(logits - most)
        total = weights.sum() + np.exp(sink - most)
        return weights / total, most + np.log(total)

    def exp(self, x):
        return np.exp(x)

    def kl(self, given):
        """eq:msa-kl over the support, and the gradient of its mean over rows and groups; the teacher is the mean over
        the group's heads of probabilities (eq:msa-pp) and gets no gradient. Without ids: all visible tokens."""
        q, k, index_q, index_k = (np.asarray(given[name], np.float64) for name in ("q", "k", "index_q", "index_k"))
        queries_, groups, _ = index_q.shape
        group = q.shape[1] // groups
        found = {"kl": np.zeros((queries_, groups)), "d_index_q": np.zeros(index_q.shape),
                 "d_index_k": np.zeros(index_k.shape), "kl_d_q": np.zeros(q.shape), "kl_d_k": np.zeros(k.shape),
                 "kl_size": np.zeros((queries_, groups)), "d_index_q_size": np.zeros((queries_, groups)),
                 "d_index_k_size": np.zeros(len(index_k))}
        for i, first, count, length in queries(given):
            for r in range(groups):
                tokens = (self.support(given, given["ids"][i, r], first, count, length) if "ids" in given
                          else first + np.arange(count))
                if not len(tokens):
                    continue
                logits = given["softmax_scale"] * (q[i, r * group:(r + 1) * group] @ k[tokens, r].T)
                teacher = self.teacher(logits)
                index, _ = self.softmax(given["index_scale"] * (index_k[tokens] @ index_q[i, r]))
                some = teacher > 0
                ratio = np.log(teacher[some] / index[some])
                found["kl"][i, r], found["kl_size"][i, r] = teacher[some] @ ratio, np.abs(ratio).max()
                d_score = (index - teacher) * given["index_scale"] / (queries_ * groups)
                found["d_index_q"][i, r] = d_score @ index_k[tokens]
                found["d_index_k"][tokens] += d_score[:, None] * index_q[i, r]
                size = (index + teacher) * given["index_scale"] / (queries_ * groups)
                found["d_index_q_size"][i, r] = size.sum() * np.abs(index_k[tokens]).max()
                found["d_index_k_size"][tokens] += size * np.abs(index_q[i, r]).max()
        return found

    def teacher(self, logits):
        return np.mean([self.softmax(row)[0] for row in logits], axis=0)


def places(given, lengths):
    """For each sequence, the rows of the pool in which its tokens lie; the pool's pages follow one another."""
    size = given["page_size"]
    return [given["page_table"][s, np.arange(n) // size].astype(np.int64) * size + np.arange(n) % size
            for s, n in enumerate(lengths)]


def queries(given):
    """(query, first key of its sequence, keys it sees, keys of its sequence) of each."""
    ends_q, ends_k = given["cu_seqlens_q"], given["cu_seqlens_k"]
    for s in range(len(ends_q) - 1):
        length = int(ends_k[s + 1] - ends_k[s])
        hidden = length - int(ends_q[s + 1] - ends_q[s])
        for i in range(int(ends_q[s]), int(ends_q[s + 1])):
            yield i, int(ends_k[s]), max(0, hidden + i - int(ends_q[s]) + 1), length


def most_blocks(given):
    """B, of the longest sequence."""
    return int(-(-np.diff(given["cu_seqlens_k"]).max() // given["block_size"]))


def forced_blocks(given, blocks):
    """The forced ones of a query that sees so many blocks."""
    return [b for b in range(blocks) if b < given["forced_first"] or b >= blocks - given["forced_local"]]


def block_of_each_key(given, values):
    """values [blocks of all sequences, ...] for each key."""
    found, first = [], 0
    for length in np.diff(given["cu_seqlens_k"]):
        found.append(values[first + np.arange(length) // given["block_size"]])
        first += -(-int(length) // given["block_size"])
    return np.concatenate(found)


def rotated(rows, positions, rotary_dim, theta):
    """RoPE on the first rotary_dim channels of rows [tokens, ..., d]; channel c turns with c + rotary_dim / 2."""
    rows = np.array(rows, np.float64)
    half = rotary_dim // 2
    angles = np.asarray(positions, np.float64)[:, None] * theta ** (-2.0 * np.arange(half) / rotary_dim)
    angles = angles.reshape(len(rows), *[1] * (rows.ndim - 2), half)
    a, b = rows[..., :half].copy(), rows[..., half:rotary_dim].copy()
    rows[..., :half] = a * np.cos(angles) - b * np.sin(angles)
    rows[..., half:rotary_dim] = b * np.cos(angles) + a * np.sin(angles)
    return rows


def e4m3(bits):
    """The numbers that bytes mean in e4m3 (finite, with NaN at 0x7f and 0xff)."""
    bits = np.asarray(bits, np.uint8).astype(np.int64)
    exponent, fraction = (bits >> 3) & 15, bits & 7
    size = np.where(exponent == 0, fraction * 2.0 ** -9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    return np.where(bits & 127 == 127, np.nan, np.where(bits & 128, -size, size))


answer = Reference()
