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

SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")  # that count in a folder
COLUMN = "text"  # of datasets, and the key of JSON lines
AT_ONCE = 256  # documents that the tokenizer is given
MOST = 2 ** 31 - 1  # the largest id of a token
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

    @property
    def longest(self) -> int:
        """Most tokens that attend to each other: of a document, in a row."""
        return min(self.context, int(np.diff(self.begins, append=len(self.tokens)).max()))

    def sum(self) -> str:
        """sha256 of what it holds."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens))
        digest.update(np.ascontiguousarray(self.begins))
        return digest.hexdigest()


def files_of(paths) -> list[Path]:
    """The files themselves, folders that are a saved dataset, and of other folders the files below them that end in
    one of SUFFIXES."""
    found = []
    for path in map(Path, paths):
        require(path.exists(), f"{path}: no such file")
        splits = next(path.rglob("dataset_dict.json"), None)
        require(splits is None, f"{splits and splits.parent}: has all splits of a dataset; name the folders of those to "
                f"read, as {splits and splits.parent / 'train'}")
        below = [path] if path.is_file() or _is_saved_dataset(path) else sorted(
            one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file() or _is_saved_dataset(one))
        require(below, f"{path}: holds no file that ends in {', '.join(SUFFIXES)}")
        found += below
    return found


def _is_saved_dataset(path: Path) -> bool:
    """By save_to_disk of Hugging Face's datasets."""
    return all((path / name).is_file() for name in ("state.json", "dataset_info.json"))


def documents_of(path: Path):
    """Of JSON lines the string `text` of each, of datasets that column; of other files what the byte 0 separates."""
    if path.is_dir() or path.suffix == ".parquet":
        return _column(path)
    return _of_lines(path) if path.suffix == ".jsonl" else text.read_documents([path])


def _column(path: Path):
    try:
        if path.is_dir():
            from datasets import load_from_disk

            return load_from_disk(str(path)).with_format(None)[COLUMN]  # stays in its files
        from pyarrow.parquet import read_table

        return read_table(path, columns=[COLUMN])[COLUMN].to_pylist()
    except ImportError as error:
        raise CaptureError(f"{path}: is a dataset, for which this needs: pip install datasets ({error})") from error
    except Exception as error:  # the libraries raise errors of many types
        raise CaptureError(f"{path}: has no column {COLUMN} that can be read: {error}") from error


def _of_lines(path: Path) -> list[str]:
    documents = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                document = json.loads(line.decode())[COLUMN]
                require(isinstance(document, str), "text is no string")
                document.encode()  # half a surrogate pair is no text
            except (ValueError, KeyError, TypeError, RecursionError, CaptureError) as error:
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
    rows = Rows(tokens, begins, context)
    require(rows.longest > 1, "each document of the text has one token: there is none to foretell")
    return rows


def _tokenized(files, vocabulary, note):
    """Each document begins with what the tokenizer puts before a text."""
    parts, ends = [], [0]
    sizes = list(map(_bytes_of, files))
    progress = Progress(note, sum(sizes))
    for path, size in zip(files, sizes):
        documents = documents_of(path)
        for at in range(0, len(documents), AT_ONCE):
            some = documents[at:at + AT_ONCE]
            other = next((row for row, one in enumerate(some, at) if not isinstance(one, str)), None)
            require(other is None, f"{path}: {COLUMN} of row {other} is no string")
            for found in vocabulary.encode_all(some):
                ids = np.asarray([*vocabulary.prefix, *found], np.int32)
                if len(ids):
                    parts.append(ids)
                    ends.append(ends[-1] + len(ids))
            share = size * (at + len(some)) // len(documents) - size * at // len(documents)
            progress.advance(share, f"{ends[-1]} tokens")
    require(parts, "the text holds no token")
    return np.concatenate(parts), np.asarray(ends[:-1], np.int64)


def _bytes_of(path: Path) -> int:
    """On disk."""
    return sum(one.stat().st_size for one in ([path] if path.is_file() else path.iterdir()))


def _stored(paths):
    require(len(paths) == 1, "--data has a file of tokens, which must be all of it")
    try:
        with safe_open(paths[0], "numpy") as file:
            tokens, begins = file.get_tensor("tokens"), file.get_tensor("begins")
        require(begins.dtype.kind in "iu", "begins must be integers")
        begins = begins.astype(np.int64)  # what does not fit does not rise
    except Exception as error:  # the library raises errors of many types
        raise CaptureError(f"{paths[0]}: cannot be read as tokens and begins: {error}") from error
    require(tokens.ndim == begins.ndim == 1 and tokens.dtype.kind in "iu", f"{paths[0]}: tokens and begins "
            "must be lists of integers")
    for at in np.flatnonzero((tokens < 0) | (tokens > MOST))[:1]:
        raise CaptureError(f"{paths[0]}: token {at} is {tokens[at]}, must be from 0 to {MOST}")
    rising = len(begins) and begins[0] == 0 and (np.diff(begins) > 0).all() and begins[-1] < len(tokens)
    require(rising, f"{paths[0]}: begins must rise from 0 to less than {len(tokens)}, the tokens")
    return tokens.astype(np.int32), begins


def write(rows: Rows, file: PartialFile) -> None:
    """Tokens as read() takes them, of 16 bits where that is enough."""
    element = np.uint16 if rows.tokens.max() < 1 << 16 else np.int32
    file.write(save({"tokens": rows.tokens.astype(element), "begins": rows.begins}))
    file.finish()
