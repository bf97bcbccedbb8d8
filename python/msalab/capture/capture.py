# SPDX-License-Identifier: MIT
"""Runs a model over token sequences and writes what its attention layers get."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..progress import Progress
from .layer import Layer, require
from .writer import ActivationsWriter

Record = Callable[[int, Layer], None]


class Model(Protocol):
    """What capture() asks of a model: TransformersModel, ModuleAdapter, or your own."""

    model_id: str
    model_config: str  # JSON
    layers: Sequence[int]  # numbers of the layers that can be captured, ascending
    producer: str
    # It may have without_attention, too: number of each layer that has no softmax attention -> what it is.

    def run(self, tokens: np.ndarray, layers: Sequence[int], record: Record) -> None:
        """Runs one sequence, int64 [S], and hands over each of `layers` once, as soon as it is
        known: record(number, layer). May stop after the last one."""


def capture(model: Model, sequences: Iterable[Any], path: str | Path, layers: Sequence[int] | None = None, *,
            texts: Iterable[Any] | None = None, max_tokens: int | None = None, overwrite: bool = False,
            note: Callable[[str], None] = lambda text: None) -> None:
    """Writes an msa-activations file from token ids, one list or array per sequence.

    layers: numbers of layers, default all. max_tokens: of each sequence, the rest is cut off. texts: of each
    sequence its bytes and where each token ends in them, or None where that is not known.
    At any time one layer of one sequence is held, in host memory, beside what the model holds.
    CaptureError when something cannot be captured; nothing is left under `path` then.
    """
    sequences = [_tokens(tokens, number, max_tokens) for number, tokens in enumerate(sequences)]
    text, token_ends = joined_texts(texts or (), sequences)
    require(sequences, "no sequences to run")
    wanted = sorted(set(model.layers if layers is None else layers))
    unknown = [number for number in wanted if number not in model.layers]
    require(wanted and not unknown, f"no layer {', '.join(map(str, unknown))} with softmax "
            f"attention in {model.model_id}; there are: {', '.join(map(str, model.layers))}")
    cu_seqlens = np.cumsum([0, *map(len, sequences)])
    progress = Progress(note, len(wanted) * int(cu_seqlens[-1]))
    windows: dict[int, int] = {}  # of the layers that have one
    with ActivationsWriter(path, model_id=model.model_id, model_config=model.model_config,
                           producer=model.producer, cu_seqlens=cu_seqlens,
                           tokens=np.concatenate(sequences), text=text, token_ends=token_ends,
                           overwrite=overwrite) as writer:
        for sequence, tokens in enumerate(sequences):
            recorded = set()

            def record(number: int, layer: Layer):
                place = f"layer {number}, sequence {sequence}"
                require(number not in recorded, f"{place}: recorded twice")
                require(len(layer.q) == len(tokens), f"{place}: {len(layer.q)} tokens recorded, "
                        f"the sequence has {len(tokens)}")
                writer.write(number, int(cu_seqlens[sequence]), layer)
                if not sequence and not recorded:
                    note(_size_text(layer, int(cu_seqlens[-1]), len(wanted)))
                if layer.sliding_window:
                    windows[number] = int(layer.sliding_window)
                recorded.add(number)
                progress.count(len(tokens))
                note(f"sequence {sequence + 1}/{len(sequences)}, {len(tokens)} tokens: "
                     f"layer {number} ({len(recorded)}/{len(wanted)}){progress.left()}")

            model.run(tokens, wanted, record)
            missing = [number for number in wanted if number not in recorded]
            require(not missing, f"sequence {sequence}: nothing came of layer "
                    f"{', '.join(map(str, missing))}")
        writer.finish()
    if windows:
        note(_windows_text(windows, wanted))
    others = getattr(model, "without_attention", {})
    if others:
        note(_others_text(others))


def _others_text(others: dict[int, str]) -> str:
    """Which layers attend to no keys, and what they are."""
    of = {what: [number for number, one in sorted(others.items()) if one == what] for what in others.values()}
    words = "; ".join(f"layer{'s' * (len(numbers) > 1)} {ranges(numbers)}: {what}" for what, numbers in of.items())
    return f"{words}, no softmax attention, which msalab leaves as it is"


def ranges(numbers: Iterable[int]) -> str:
    """Of 0, 1, 2 and 4: 0-2, 4."""
    found = sorted(numbers)
    begins = [number for number in found if number - 1 not in found]
    ends = [number for number in found if number + 1 not in found]
    return ", ".join(str(one) if one == last else f"{one}-{last}" for one, last in zip(begins, ends))



def _windows_text(windows: dict[int, int], layers: list[int]) -> str:
    """Which layers have a sliding window, so that msalab leaves them as they are, and which have none."""
    def text(numbers) -> str:
        return ("layer " if len(numbers) == 1 else "layers ") + ", ".join(map(str, numbers))

    of = {window: [number for number in layers if windows.get(number) == window]
          for window in sorted(set(windows.values()))}
    full = [number for number in layers if number not in windows]
    words = "; ".join(f"{text(numbers)}: a sliding window of {window} tokens" for window, numbers in of.items())
    return (f"{words}, which msalab leaves as it is"
            + (f"; --layers {','.join(map(str, full))} captures what can be sparse" if full else ""))


def _size_text(layer: Layer, tokens: int, layers: int) -> str:
    """Of the file, by its first layer."""
    arrays = layer.arrays().values()
    size = sum(array.nbytes for array in arrays) // len(layer.q) * tokens * layers
    wide = any(array.dtype == np.float32 for array in arrays)
    return (f"{layers} layer{'s' * (layers > 1)} of {tokens} tokens: {size / 1e9:.2f} GB"
            + ("; in half precision (--dtype bfloat16) half of it" if wide else ""))


def joined_texts(texts, sequences):
    """The bytes of all sequences, one behind the other, and where each token ends in them; (None, None) where no text
    is known. A sequence without a text has no bytes."""
    if all(text is None for text in texts):
        return None, None
    content, ends = b"", []
    for text, tokens in zip(texts, sequences):
        of, places = text or (b"", np.zeros(len(tokens), np.int64))
        places = np.asarray(places, np.int64)[:len(tokens)]
        ends.append(len(content) + places)
        content += of[:places[-1]]
    return content, np.concatenate(ends)


def _tokens(tokens, number: int, max_tokens: int | None) -> np.ndarray:
    require(max_tokens is None or max_tokens >= 1, f"{max_tokens} tokens of each sequence asked "
            "for, must be at least 1")
    return token_ids(tokens, f"sequence {number}")[:max_tokens]


def token_ids(tokens, place: str) -> np.ndarray:
    """int64 [S], S >= 1; `place` begins the message that refuses others."""
    require(not isinstance(tokens, np.ma.MaskedArray), f"{place}: token ids are a masked array, and no token can be "
            "hidden")
    mixed = isinstance(tokens, list) and any(isinstance(one, bool) for one in tokens)
    try:
        ids = np.asarray(tokens, object if mixed else None)
    except ValueError:  # lists of several lengths
        ids = np.asarray(tokens, object)
    whole = np.issubdtype(ids.dtype, np.integer) or ids.dtype == object and all(map(_is_whole, ids.flat))  # of any size
    require(ids.ndim == 1 and ids.size and whole,
            f"{place}: token ids must be a list of integers, not empty, and {_wrong(tokens, ids)}")
    largest = np.iinfo(np.int32).max
    require(0 <= ids.min() and ids.max() <= largest, f"{place}: token ids from {ids.min()} to "
            f"{ids.max()}, must be from 0 to {largest}")
    return ids.astype(np.int64)


def _is_whole(one) -> bool:
    return isinstance(one, Integral) and not isinstance(one, bool)


def _wrong(tokens, ids: np.ndarray) -> str:
    """What a list has in place of an integer; of anything else, its type and shape."""
    if ids.ndim and not isinstance(tokens, (list, tuple)):
        return f"this is {ids.dtype} {list(ids.shape)}"
    for number, one in enumerate(tokens if ids.ndim else ()):
        if not _is_whole(one):
            return f"token {number} is {reprlib.repr(one)}"
    return f"this is {reprlib.repr(tokens)}"
