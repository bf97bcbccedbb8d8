# SPDX-License-Identifier: MIT
"""Compares what a system answered with the right answers. docs/conformance.md explains outcomes and rules."""

import numpy as np

from . import bounds
from .archive import key_rows, OF_KEYS
from .faults import FAULTS
from .reference import Reference, forced_blocks, queries

PASS, FAIL, RULE, ABSENT = "pass", "fail", "differs by rule", "not supported"
_RIGHT = Reference()

RULES = {"ties": "blocks of equal score are chosen otherwise than by the lower id",
         "bfloat16 scores": "scores are rounded to bfloat16 before they are compared",
         "fills": "a row that has slots left takes visible blocks whose score is -inf or NaN",
         "local block": "the query's own block is not forced",
         "NaN first": "NaN is greater than every number",
         "range": "scores beyond -1e30 or 1e30 are not told apart from marks of that size",
         "NaN spreads": "a NaN in a key or value that no row selects reaches the result"}


ROUNDING = ("rounding",)
LAST = np.iinfo(np.int32).max  # pads rows behind their blocks


def listed(row):
    return [int(b) for b in row if 0 <= b < LAST]


class Problem(Exception):
    """An answer that is not of the shape or kind that docs/conformance.md asks for."""


def sampled(name, values, case):
    """Those rows of an answer that the archive has."""
    if name in ("ids", "kl", "kl_d_q", "kl_d_k"):
        return values
    return values[key_rows(len(values)) if name in OF_KEYS else case["rows"] or slice(None)]


def bfloat16(values):
    """The nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return np.where(np.isfinite(values), bits.astype(np.uint32).view(np.float32), values)


class Comparison:
    """A case, what is right, and what was found."""

    def __init__(self, case, given, right, found):
        self.case, self.given, self.right, self.found = case, given, right, found
        self.precision = str(found.get("precision", "float32"))
        if self.precision not in bounds.STORED:
            raise Problem(f"precision is {self.precision!r}, must be one of {', '.join(bounds.STORED)}")
        self.packed = _RIGHT.packed(given)

    def outcome(self, declared):
        """(outcome, remark)."""
        asked = [name for name in self.case["wants"] if self.found.get(name) is not None]
        missing = [name for name in self.case["wants"] if name not in asked]
        if not asked:
            return ABSENT, str(self.found.get("why", ""))
        remarks, ruled = [], False
        for name in asked:
            wrong, rules = self.ids(declared) if name == "ids" else (self.numbers(name), [])
            if wrong and "NaN spreads" in declared and self.is_spread(name):
                wrong, rules = "", ["NaN spreads"]
            if wrong:
                return FAIL, f"{name}: {wrong}{self.like_a_fault()}"
            ruled |= bool(rules)
            remarks += [f"{rule}: {RULES[rule]} ({declared[rule]})" for rule in rules]
        if missing:
            remarks.append(f"no {', '.join(missing)}")
        return RULE if ruled else PASS, "; ".join(remarks)

    def numbers(self, name):
        """The first number out of bounds in words, or nothing."""
        values = np.asarray(self.found[name], np.float64)
        want = self.right[name]
        full = self.shape(name)
        if values.shape != full:
            raise Problem(f"{name} has shape {list(values.shape)}, must be {list(full)}")
        values, bound = sampled(name, values, self.case), np.broadcast_to(self.bound(name), want.shape)
        with np.errstate(invalid="ignore"):
            fits = (values == want) | (np.abs(values - want) <= bound)
        if fits.all():
            return ""
        at = tuple(int(n) for n in np.argwhere(~fits)[0])
        place = self.place(name, at)
        return (f"{(~fits).sum()} of {fits.size} numbers, the first at {place}: {values[at]:.9g}, right is "
                f"{want[at]:.9g}, bound {bound[at]:.2g}")

    def is_spread(self, name):
        """Is NaN, where inputs have some, the whole difference?"""
        values = sampled(name, np.asarray(self.found[name], np.float64), self.case)
        known = ~np.isnan(values)
        return (any(np.isnan(self.packed[operand]).any() for operand in "kv") and
                (np.abs(values - self.right[name]) <= self.bound(name))[known].all())

    def shape(self, name):
        base = {"out": "q", "lse": "q", "d_q": "q", "d_k": "k", "d_v": "v", "kl": "index_q", "d_index_q": "index_q",
                "d_index_k": "index_k", "kl_d_q": "q", "kl_d_k": "k", "index_q": "index_q_plain",
                "index_k": "index_k_plain"}[name]
        shape = self.packed[base].shape
        return shape[:2] if name in ("lse", "kl") else shape

    def place(self, name, at):
        if name in ("ids", "kl", "kl_d_q", "kl_d_k"):
            row = at[0]
        else:
            row = np.arange(self.shape(name)[0])[key_rows(self.shape(name)[0]) if name in OF_KEYS else
                                                 self.case["rows"] or slice(None)][at[0]]
        return f"[{', '.join(map(str, (int(row), *at[1:])))}]"

    def bound(self, name):
        given, exact = self.packed, self.case["exact"]
        if name in ("kl_d_q", "kl_d_k"):
            return 0.0
        if name in ("out", "lse"):
            rows = self.case["rows"] or range(len(given["q"]))
            ids = given["ids"] if "ids" in given else self.right["ids"]
            return bounds.attention_bounds({**given, "ids": ids}, rows, self.precision, exact)[name == "lse"]
        if name in ("index_q", "index_k"):
            return self.rotation(name)
        want = np.abs(self.right[name])
        rounded = bounds.stored(self.precision, want)
        if name == "kl":
            base, of_ratio, _ = bounds.kl_bounds(given, self.precision, exact)
            return base + of_ratio * self.right["kl_size"] + bounds.ROUNDOFF * want
        size = self.right[f"{name}_size"][..., None]
        share = (bounds.kl_bounds(given, self.precision, exact)[2] if name.startswith("d_index") else
                 bounds.gradient_share(given, self.precision, exact))
        return share * size + rounded

    def rotation(self, name):
        plain = self.packed[f"{name}_plain"]
        angle = float(self.packed["positions_k"].max())
        return bounds.rotation_bound(np.abs(plain).max(), angle, self.precision)

    # Ids

    def scores(self):
        if "scores" in self.packed:
            return np.asarray(self.packed["scores"], np.float64)
        given = self.packed
        if "index_q_plain" in given:
            given = {**given, **{name: value for name, value in _RIGHT({**given, "wants": ()}).items()
                                 if name.startswith("index")}}
        return _RIGHT.scores(given)

    def score_bound(self):
        """By how much a score may be off; 0 where sums are exact."""
        if self.case["exact"]:
            return 0.0
        given = self.packed
        q, k = (given[f"{name}_plain" if f"{name}_plain" in given else name].astype(np.float64)
                for name in ("index_q", "index_k"))
        largest = given["index_scale"] * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max()
        found = bounds.gamma(k.shape[-1] + 3) * largest
        if "index_q_plain" in given:
            each = self.rotation("index_q") + self.rotation("index_k")
            found += given["index_scale"] * each * np.sqrt(k.shape[-1]) * max(np.linalg.norm(q, axis=-1).max(),
                                                                             np.linalg.norm(k, axis=-1).max())
        return found

    def ids(self, declared):
        """(what is wrong, in words; rules by which the ids differ)."""
        found, want = np.asarray(self.found["ids"]), self.right["ids"]
        if found.shape != want.shape or found.dtype.kind not in "iu":
            raise Problem(f"ids are {found.dtype} {list(found.shape)}, must be integers {list(want.shape)}")
        found = np.sort(np.where(found < 0, LAST, found.astype(np.int64)), axis=2)  # a row is a set: its order is free
        want = np.where(want < 0, LAST, want)
        if np.array_equal(found, want):
            return "", []
        self.all_scores, self.off = self.scores(), self.score_bound()
        rules, count, first = set(), 0, ""
        for i, _, visible, _ in queries(self.packed):
            for r in range(found.shape[1]):
                mine, right = found[i, r], want[i, r]
                if np.array_equal(mine, right):
                    continue
                rule = self.rule_of(declared, i, r, mine, right,
                                    -(-visible // self.packed["block_size"]))
                if rule == ROUNDING or rule and all(part in declared for part in rule):
                    rules |= set(rule)
                    continue
                count += 1
                if not first:
                    first = (f"query {i}, group {r} has {listed(mine)}, right is {listed(right)}"
                             f"{self.why(i, r, mine, right)}")
                    if rule:
                        first += f"; that is the rule {' and '.join(map(repr, rule))}, which it does not declare"
        rows = found.shape[0] * found.shape[1]
        return (f"{count} of {rows} rows, the first: {first}" if count else ""), sorted(rules - set(ROUNDING))

    def rule_of(self, declared, i, r, mine, right, blocks):
        """The rules by which a row differs: () if by none; ROUNDING if within the bound of its scores."""
        kept = listed(mine)
        if len(set(kept)) < len(kept) or any(b >= blocks for b in kept):
            return ()
        seen = np.nan_to_num(self.all_scores[i, r][:blocks], posinf=0, neginf=0)
        if "range" in declared and np.abs(seen).max() > 1e30:
            return ("range",)
        scores = self.all_scores[i, r]
        forced, k = set(forced_blocks(self.packed, blocks)), len(mine)
        free = [b for b in range(blocks) if b not in forced]
        usable = [b for b in free if scores[b] > -np.inf]
        size = min(k, len(forced) + len(usable))

        def best(values, among, bound=0.0):
            """Are the kept ones of `among` best by `values`, but for ties and the bound?"""
            inside, outside = [b for b in among if b in kept], [b for b in among if b not in kept]
            return not inside or not outside or min(values[b] for b in inside) >= max(
                values[b] for b in outside) - 2 * bound

        if forced <= set(kept):
            if len(kept) == size and set(kept) <= forced | set(usable):
                if self.off and best(scores, usable, self.off):
                    return ROUNDING
                if best(scores, usable):
                    return ("ties",)
                if best(bfloat16(scores), usable):
                    return ("bfloat16 scores",)
            if len(kept) == min(k, blocks) and best(np.nan_to_num(scores, nan=-np.inf), free):
                return ("fills", *(("ties",) if len(usable) + len(forced) > k else ()))
            if len(kept) == min(k, blocks) and np.isnan(scores).any() and best(
                    np.nan_to_num(scores, nan=np.inf, posinf=3e38), free):
                return ("NaN first",)
        among = [b for b in range(blocks) if scores[b] > -np.inf]
        if set(kept) <= set(among) and len(kept) == min(k, len(among)) and best(scores, among):
            return ("local block",)
        return ()

    def why(self, i, r, mine, right):
        scores = self.all_scores[i, r]
        extra = [b for b in listed(mine) if b not in right]
        lost = [b for b in listed(right) if b not in mine]

        def told(b):
            return f"block {b} (score {scores[b]:.6g})" if b < len(scores) else f"block {b}, which does not exist"
        return (f"; it has {', '.join(map(told, extra)) or 'none'} in place of {', '.join(map(told, lost)) or 'none'}")

    def like_a_fault(self):
        """The known fault that answers in this way, if one does."""
        for name, fault in FAULTS.items():
            like = fault(self.given)
            wrong = Comparison(self.case, self.given, self.right, {**like, "precision": self.precision})
            if any(wrong.disagrees(want) for want in self.case["wants"]) and all(
                    self.agrees(want, like[want]) for want in self.case["wants"] if self.found.get(want) is not None):
                return f". So answers the known fault '{name}': {' '.join(type(fault).__doc__.split())}"
        return ""

    def disagrees(self, name):
        if name == "ids":
            return not np.array_equal(np.sort(self.found["ids"], axis=2), np.sort(self.right["ids"], axis=2))
        return bool(self.numbers(name))

    def agrees(self, name, like):
        if name == "ids":
            return np.array_equal(np.sort(self.found["ids"], axis=2), np.sort(like, axis=2))
        mine, like = (sampled(name, np.asarray(a, np.float64), self.case) for a in (self.found[name], like))
        with np.errstate(invalid="ignore"):
            return bool(((mine == like) | (np.abs(mine - like) <= self.bound(name))).all())


def same_ids(relation, found):
    """(outcome, remark) of rows that must have the same blocks in several cases."""
    parts = [(name, first, found.get(name, {}).get("ids")) for name, first in relation["of"]]
    there = [(name, first, np.sort(np.asarray(ids)[first:first + relation["rows"]], axis=2))
             for name, first, ids in parts if ids is not None]
    if len(there) < 2:
        return ABSENT, ""
    for name, first, ids in there[1:]:
        differ = (ids != there[0][2]).any(axis=2)
        if differ.any():
            row, group = np.argwhere(differ)[0]
            return FAIL, (f"{differ.sum()} of {differ.size} rows depend on the batch, the first: query {first + row}, "
                          f"group {group} of {name} has {listed(ids[row, group])}, query {there[0][1] + row} of "
                          f"{there[0][0]}, with the same inputs, {listed(there[0][2][row, group])}")
    return PASS, ", ".join(name for name, _, _ in there)
