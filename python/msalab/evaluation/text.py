# SPDX-License-Identifier: MIT
"""Text as tokens: documents, and the sequences that a model is run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..capture.gguf import place_of
from ..capture.layer import CaptureError, require

OF_BYTES = "--bytes is for models of bytes"
SEPARATOR = "\0"  # between documents; no text contains it
BYTES = 256
MOST_OF_BYTES = 512  # tokens of a model of bytes: 256, special ones, and what fills up to a round number


class Bytes:
    """The vocabulary of models of bytes: a byte is a token."""

    prefix: list[int] = []
    separator = SEPARATOR

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return list(map(self.encode, texts))

    encode_whole = encode

    def with_bytes(self, text: str):
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return ids, np.ones(len(ids))

    def save(self, folder):
        pass


class Tokenizer:
    """A model's own. prefix: what it puts before every text. instead: said where there is none."""

    separator = "\n"  # begins a planted line

    def __init__(self, name, revision=None, instead=OF_BYTES):
        from transformers import AutoTokenizer

        place, how = place_of(name)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, **how)
        except Exception as error:  # the library raises errors of many types
            raise CaptureError(f"{name}: has no tokenizer that can be loaded: {error}; "
                               f"{instead}") from error
        # Of a folder without one, some versions of the library load an empty tokenizer.
        require(self.encode("text"), f"{name}: has no tokenizer that makes tokens of a text; {instead}")
        self.prefix = list(self._tokenizer("")["input_ids"])[:1]

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Of several texts, side by side where the tokenizer can."""
        return list(self._tokenizer(texts, add_special_tokens=False)["input_ids"])

    def encode_whole(self, text: str) -> list[int]:
        """With what the tokenizer puts around a text."""
        return list(self._tokenizer(text)["input_ids"])

    def with_bytes(self, text: str):
        """Token ids int64 and the bytes of each; of a tokenizer that does not say where its tokens
        end, NaN."""
        if not self._tokenizer.is_fast:
            ids = np.asarray(self.encode(text), np.int64)
            return ids, np.full(len(ids), np.nan)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        widths = 1 + (characters > 0x7f) + (characters > 0x7ff) + (characters > 0xffff)
        ends = np.concatenate([[0], np.cumsum(widths)])
        last = ends[[end for _, end in found["offset_mapping"]]] if found["input_ids"] else []
        return np.asarray(found["input_ids"], np.int64), np.diff(last, prepend=0).astype(float)

    def save(self, folder):
        self._tokenizer.save_pretrained(folder)


def vocabulary_of(options, *instead):
    """A function that gives the vocabulary, of bytes or the model's own, which is loaded when it is first
    asked for."""
    return cache(lambda: _bytes_of(options.model, options.revision) if options.bytes else
                 Tokenizer(options.model, options.revision, *instead))


def _bytes_of(name, revision) -> Bytes:
    """CaptureError where the model reads tokens that are no bytes: by its vocabulary, or by its tokenizer."""
    from transformers import AutoConfig

    place, how = place_of(name)
    try:
        config = AutoConfig.from_pretrained(place, revision=revision, **how).get_text_config()
    except Exception as error:  # the library raises errors of many types
        raise CaptureError(f"{name} cannot be loaded: {error}") from error
    size = getattr(config, "vocab_size", None)
    require(size is None or BYTES <= size <= MOST_OF_BYTES, f"{OF_BYTES}, and {name} has a vocabulary of {size} tokens: "
            f"must be from {BYTES} to {MOST_OF_BYTES}")
    try:
        tokens = Tokenizer(name, revision).encode("a text")
    except CaptureError:  # has none
        return Bytes()
    require(tokens == Bytes().encode("a text"), f"{OF_BYTES}, and {name} has a tokenizer of other tokens: leave "
            "out --bytes")
    return Bytes()


@dataclass(frozen=True)
class Sequence:
    document: int
    ids: np.ndarray  # int64 [n]
    bytes: np.ndarray  # float64 [n - 1]: of the text of each token that is foretold


def read_documents(paths) -> list[str]:
    """Of all files; documents of a file are separated by the byte 0, empty ones left out."""
    documents = []
    for path in paths:
        try:
            text = Path(path).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise CaptureError(f"{path}: is no UTF-8 text: {error}") from error
        found = [document for document in text.split(SEPARATOR) if document]
        require(found, f"{path}: holds no text")
        documents += found
    return documents


def cut(documents, vocabulary, context: int, most: int) -> list[Sequence]:
    """Sequences of at most `context` tokens, one behind the other in each document, a last one of
    fewer than 2 tokens left out; at most `most`, of all documents in turn: the first of each, then
    the second of each, and so on."""
    prefix = np.asarray(vocabulary.prefix, np.int64)
    room = context - len(prefix)
    by_turn: list[list[Sequence]] = []
    for number, document in enumerate(documents):
        ids, widths = vocabulary.with_bytes(document)
        for turn, begin in enumerate(range(0, len(ids), room)):
            part = np.concatenate([prefix, ids[begin:begin + room]])
            if len(part) < 2:
                continue
            if turn == len(by_turn):
                by_turn.append([])
            told = widths[begin:begin + room]
            by_turn[turn].append(Sequence(number, part, told if len(prefix) else told[1:]))
    return [sequence for turn in by_turn for sequence in turn][:most]
