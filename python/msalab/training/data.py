# SPDX-License-Identifier: MIT
"""Text as rows of tokens: documents one behind the other, cut every `context` tokens. No token sees
another document, or what of its own stands in another row."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from ..capture.layer import CaptureError, require
from ..capture.partial_file import PartialFile
from ..evaluation import text
from ..progress import Progress

SUFFIXES = (".txt", ".md", ".jsonl")  # that count in a folder
AT_ONCE = 256  # documents that the tokenizer is given
NO_TARGET = -100  # of a token whose next one is in no row with it


@dataclass(frozen=True)
class Rows:
    """tokens int32 [n]; begins int64: the first token of each document."""

    tokens: np.ndarray
    begins: np.ndarray
    context: int

    def __len__(self):
        return len(self.tokens) // self.context

    def batch(self, rows):
        """(tokens [N], cu_seqlens, targets [N]) of rows, one behind the other."""
        tokens, targets, ends = [], [], [0]
        for row in rows:
            begin, end = row * self.context, (row + 1) * self.context
            some = self.tokens[begin:end].astype(np.int64)
            first, last = np.searchsorted(self.begins, [begin + 1, end])
            inner = self.begins[first:last] - begin
            target = np.append(some[1:], NO_TARGET)
            target[inner - 1] = NO_TARGET
            tokens.append(some)
            targets.append(target)
            ends += [len(some) * (len(tokens) - 1) + int(at) for at in (*inner, len(some))]
        return np.concatenate(tokens), ends, np.concatenate(targets)

    def order(self, step: int, batch: int, seed: int) -> list[int]:
        """The rows of a step: all in an order drawn anew each time they have been through."""
        places = range(step * batch, (step + 1) * batch)
        drawn = {epoch: np.random.default_rng([seed, epoch]).permutation(len(self))
                 for epoch in {place // len(self) for place in places}}
        return [int(drawn[place // len(self)][place % len(self)]) for place in places]

    def sum(self) -> str:
        """sha256 of what it holds."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens))
        digest.update(np.ascontiguousarray(self.begins))
        return digest.hexdigest()


def files_of(paths) -> list[Path]:
    """The files themselves, and of folders those below them that end in one of SUFFIXES."""
    found = []
    for path in map(Path, paths):
        require(path.exists(), f"{path}: no such file")
        below = [path] if path.is_file() else sorted(
            one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
        require(below, f"{path}: holds no file that ends in {', '.join(SUFFIXES)}")
        found += below
    return found


def documents_of(path: Path) -> list[str]:
    """Of JSON lines the string `text` of each; of other files what the byte 0 separates."""
    if path.suffix != ".jsonl":
        return text.read_documents([path])
    documents = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                document = json.loads(line)["text"]
                require(isinstance(document, str), "text is no string")
            except (ValueError, KeyError, TypeError, CaptureError) as error:
                raise CaptureError(f"{path}: line {number} must be an object with a string \"text\": "
                                   f"{error}") from error
            documents.append(document)
    return documents


def read(paths, vocabulary, context: int, note) -> Rows:
    """Of text, or of one file that write() made. CaptureError where there is not one row."""
    paths = list(paths)
    tokens, begins = (_stored(paths) if any(Path(path).suffix == ".safetensors" for path in paths) else
                      _tokenized(files_of(paths), vocabulary(), note))
    require(len(tokens) >= context, f"the text has {len(tokens)} tokens, fewer than --context = {context}")
    return Rows(tokens, begins, context)


def _tokenized(files, vocabulary, note):
    """Each document begins with what the tokenizer puts before a text."""
    parts, ends = [], [0]
    progress = Progress(note, sum(path.stat().st_size for path in files))
    for path in files:
        documents = documents_of(path)
        for at in range(0, len(documents), AT_ONCE):
            some = documents[at:at + AT_ONCE]
            for found in vocabulary.encode_all(some):
                ids = np.asarray([*vocabulary.prefix, *found], np.int32)
                if len(ids):
                    parts.append(ids)
                    ends.append(ends[-1] + len(ids))
            progress.advance(sum(len(document.encode()) for document in some), f"{ends[-1]} tokens")
    require(parts, "the text holds no token")
    return np.concatenate(parts), np.asarray(ends[:-1], np.int64)


def _stored(paths):
    require(len(paths) == 1, "--data has a file of tokens, which must be all of it")
    try:
        with safe_open(paths[0], "numpy") as file:
            tokens, begins = file.get_tensor("tokens"), file.get_tensor("begins").astype(np.int64)
    except Exception as error:  # the library raises errors of many types
        raise CaptureError(f"{paths[0]}: cannot be read as tokens and begins: {error}") from error
    require(tokens.ndim == begins.ndim == 1 and tokens.dtype.kind in "iu", f"{paths[0]}: tokens and begins "
            "must be lists of integers")
    rising = len(begins) and begins[0] == 0 and (np.diff(begins) > 0).all() and begins[-1] < len(tokens)
    require(rising, f"{paths[0]}: begins must rise from 0 to less than {len(tokens)}, the tokens")
    return tokens.astype(np.int32), begins


def write(rows: Rows, path) -> None:
    """Tokens as read() takes them, of 16 bits where that is enough."""
    element = np.uint16 if rows.tokens.max() < 1 << 16 else np.int32
    with PartialFile(path, overwrite=True) as file:
        file.write(save({"tokens": rows.tokens.astype(element), "begins": rows.begins}))
        file.finish()
