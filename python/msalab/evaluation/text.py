# SPDX-License-Identifier: MIT
"""Text as tokens: documents, and the sequences that a model is run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..capture.gguf import checked, not_loaded, place_of
from ..capture.layer import CaptureError, require

OF_BYTES = "--bytes is for models of bytes"
SEPARATOR = "\0"  # between documents; no text contains it
PROBE = "text"  # by which it is seen what a tokenizer puts around one
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

    def whole_with_ends(self, text: str):
        """encode_whole() and where each token ends in the bytes of the text."""
        ids = self.encode(text)
        return ids, np.arange(1, len(ids) + 1)

    def locate(self, text: str, ranges) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the tokens [begin, end) of each of these ranges of its characters."""
        return self.encode(text), [tuple(len(text[:at].encode()) for at in one) for one in ranges]

    def with_bytes(self, text: str):
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return ids, np.ones(len(ids))

    def save(self, folder):
        pass


class Tokenizer:
    """A model's own. prefix: the ids that it puts before every text. Those that it puts behind a text are left out, since
    here a text may go on. instead: the advice that the error gives where the model has no tokenizer."""

    separator = "\n"  # begins a planted line

    def __init__(self, name, revision=None, instead=OF_BYTES):
        from transformers import AutoTokenizer

        place, how = place_of(name)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, **how)
        except Exception as error:  # the library raises errors of many types
            raise CaptureError(f"{not_loaded(name, error, 'has no tokenizer that can be loaded')}; {instead}"
                               ) from error
        if how:
            checked(self._tokenizer, name)
        # Of a folder without one, some versions of the library load one that knows no word.
        require({*self.encode(PROBE)} - {self._tokenizer.unk_token_id}, f"{name}: has no tokenizer that makes tokens of a text; {instead}")
        self.prefix = self._before(PROBE)

    def _before(self, text: str) -> list[int]:
        """Of the ids of a text with special tokens those before its own."""
        own, whole = self.encode(text), self.encode_whole(text)
        at = [begin for begin in range(len(whole)) if whole[begin:begin + len(own)] == own]
        return whole[:at[0]] if at else []

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
        ends = _ends_in_bytes(found, text)
        return np.asarray(found["input_ids"], np.int64), np.diff(ends, prepend=0).astype(float)

    def whole_with_ends(self, text: str):
        """encode_whole(), and where each token ends in the bytes of the text, int64 that do not descend: one that the
        tokenizer adds has none of them. None of a tokenizer that does not say."""
        if not self._tokenizer.is_fast:
            return self.encode_whole(text), None
        found = self._tokenizer(text, return_offsets_mapping=True)
        return list(found["input_ids"]), np.maximum.accumulate(_ends_in_bytes(found, text))

    def locate(self, text: str, ranges) -> tuple[list[int], list[tuple[int, int]]]:
        """As Bytes.locate. A token belongs to a range that has one of its characters."""
        if not self._tokenizer.is_fast:
            ids = self.encode(text)
            return ids, [tuple(self._same_ids(ids, text[:at]) for at in one) for one in ranges]
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        begins, ends = np.asarray(found["offset_mapping"]).reshape(-1, 2).T
        return list(found["input_ids"]), [
            (int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(begins, end, "left")))
            for begin, end in ranges]

    def _same_ids(self, ids: list[int], part: str) -> int:
        """So many of the ids of a text are those of a part from its beginning, too."""
        return next((at for at, (one, other) in enumerate(zip(ids, self.encode(part))) if one != other),
                    min(len(ids), len(self.encode(part))))

    def save(self, folder):
        self._tokenizer.save_pretrained(folder)


def _ends_in_bytes(found, text: str) -> np.ndarray:
    """Of the tokens that a tokenizer found in a text, int64."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (characters > 0x7f) + (characters > 0x7ff) + (characters > 0xffff)
    ends = np.concatenate([[0], np.cumsum(widths)])
    return ends[[end for _, end in found["offset_mapping"]]] if found["input_ids"] else np.zeros(0, np.int64)


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
        raise not_loaded(name, error) from error
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
    bytes: np.ndarray  # float64: of each token that is foretold, all of the text but one without any before it

    @property
    def foretold(self) -> np.ndarray:
        """Their places."""
        return np.arange(len(self.ids) - len(self.bytes), len(self.ids))


def read_documents(paths) -> list[str]:
    """The documents of all files. A byte 0 separates documents within a file; empty ones are left out."""
    documents = []
    for path in paths:
        try:
            text = Path(path).read_bytes().decode()
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
    for number, document in enumerate(documents if most else []):
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
