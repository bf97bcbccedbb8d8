# SPDX-License-Identifier: MIT
"""What the activations say beside the results: the text, and the probabilities of dense attention."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from ..capture.layer import Layer
from ..capture.reader import ActivationsReader
from ..plots.results import Results, ResultsError

CHUNK_BYTES = 1 << 22  # of the probabilities that are held at a time: they stay in the cache


class Text(NamedTuple):
    """Of one sequence: its characters, and where each token ends in them, counted in units of UTF-16, as
    browsers do. An end within a character is that of the whole character."""

    text: str
    ends: np.ndarray


class Activations:
    """The files of one analysis, in its order."""

    def __init__(self, paths, results: Results):
        """ResultsError where they cannot be those that the results are of."""
        self.path = ", ".join(map(str, paths))
        with ExitStack() as files:
            self._readers = [files.enter_context(ActivationsReader(path)) for path in paths]
            self._check(results)
            self._files = files.pop_all()

    def _check(self, results: Results):
        found = [int(reader.cu_seqlens[-1]) for reader in self._readers]
        tokens = results.sizes(results.layers[0]).tokens
        if sum(found) != tokens:
            raise ResultsError(f"{self.path}: has {sum(found)} tokens, {results.path} is of {tokens}")
        captures = results.run_json("captures")
        for reader, of in zip(self._readers, captures if len(captures) == len(found) else ()):
            if of.get("model", reader.model_id) != reader.model_id or of.get("tokens") not in (
                    None, reader.cu_seqlens[-1]):
                raise ResultsError(f"{reader.path}: is of {reader.model_id} and {reader.cu_seqlens[-1]} tokens, "
                                   f"{results.path} of {of.get('model')} and {of.get('tokens')}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._files.close()

    def _place(self, sequence: int):
        """The file of a sequence of all, and its first token and its end in it."""
        for reader in self._readers:
            here = len(reader.cu_seqlens) - 1
            if sequence < here:
                return reader, *map(int, reader.cu_seqlens[sequence:sequence + 2])
            sequence -= here
        raise ResultsError(f"{self.path}: has no sequence {sequence}")

    def tokens(self, sequence: int) -> int:
        _, begin, end = self._place(sequence)
        return end - begin

    def text(self, sequence: int) -> Text | None:
        """None where it is unknown."""
        reader, begin, end = self._place(sequence)
        if reader.text is None:
            return None
        first = int(reader.token_ends[begin - 1]) if begin else 0
        content = reader.text[first:int(reader.token_ends[end - 1])]
        return as_utf16(content, reader.token_ends[begin:end] - first) if content else None

    def layer(self, number: int, sequence: int) -> tuple[Layer, int, int] | None:
        """A layer with the first token and the end of the sequence in it; None where the file has no such
        layer, or has its queries before RoPE."""
        reader, begin, end = self._place(sequence)
        if number not in reader.layers:
            return None
        layer = reader.layer(number)
        return None if "pre_rope" in (layer.q_state, layer.k_state) else (layer, begin, end)


def as_utf16(content: bytes, ends: np.ndarray) -> Text:
    """Bytes that are no UTF-8 become one sign each, as Python's decoder has it."""
    begins = np.flatnonzero((np.frombuffer(content, np.uint8) & 0xC0) != 0x80)  # of characters
    try:
        text = content.decode()
        wide = np.frombuffer(text.encode("utf-32-le"), np.uint32) > 0xFFFF
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        begins, wide = np.arange(len(content)), np.zeros(len(content), bool)
    units = np.concatenate([[0], np.cumsum(1 + wide)])
    return Text(text, units[np.searchsorted(begins, ends)])


class Attention(NamedTuple):
    """Of dense attention, in float32: mass [queries, groups, blocks] is P_b, the probability of a block, and tokens
    [groups, tokens] the mean over the queries of that of each token; both are means over the heads of a group."""

    mass: np.ndarray
    tokens: np.ndarray


def attention(layer: Layer, begin: int, end: int, positions: np.ndarray, block_size: int) -> Attention:
    """Of the queries at these positions of the sequence [begin, end), ascending."""
    q, k = (values[begin:end].astype(np.float32) for values in (layer.q, layer.k))
    tokens, groups = k.shape[:2]
    size = q.shape[1] // groups
    k = np.ascontiguousarray(k.transpose(1, 2, 0))
    mass = np.zeros((len(positions), groups, -(-tokens // block_size)), np.float32)
    drawn = np.zeros((groups, tokens))
    chunk = max(1, CHUNK_BYTES // (4 * size * tokens))
    for first in range(0, len(positions), chunk):
        rows = positions[first:first + chunk]
        begins, seen = int(rows[0]) + 1, int(rows[-1]) + 1  # what some rows do not see begins at `begins`
        hidden = rows[:, None] < np.arange(begins, seen)
        starts = np.arange(0, seen, block_size)
        for group in range(groups):
            heads = slice(group * size, (group + 1) * size)
            logits = q[rows, heads].reshape(len(rows) * size, -1) @ k[group, :, :seen]  # one product, not one per row
            logits = logits.reshape(len(rows), size, seen)
            logits *= np.float32(layer.softmax_scale)
            if layer.softcap:
                logits = np.float32(layer.softcap) * np.tanh(logits / np.float32(layer.softcap))
            np.copyto(logits[:, :, begins:], -np.inf, where=hidden[:, None])
            if layer.sliding_window:
                np.copyto(logits, -np.inf, where=(rows[:, None] - np.arange(seen) >= layer.sliding_window)[:, None])
            sinks = np.full(size, -np.inf) if layer.sinks is None else np.asarray(layer.sinks)[heads]
            highest = np.maximum(logits.max(-1), sinks)[..., None].astype(np.float32)
            logits -= highest
            weights = np.exp(logits, out=logits)
            share = 1 / (size * (weights.sum(-1) + np.exp(sinks - highest[..., 0])))  # of a head, in the mean
            of_group = (share[:, None].astype(np.float32) @ weights)[:, 0]
            mass[first:first + chunk, group, :len(starts)] = np.add.reduceat(of_group, starts, -1)
            drawn[group, :seen] += of_group.sum(0, dtype=float)
    return Attention(mass, (drawn / len(positions)).astype(np.float32))
