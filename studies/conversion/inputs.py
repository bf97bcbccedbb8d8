#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What studies/conversion/gpu.sh needs beside the model, in one archive, made where there is no GPU: tokens.safetensors to
train on, and held_out.txt, the documents that a row of --context tokens is not too long for, a document of each
kind in turn. With --more, held_out.txt has --documents of MORE that CORPUS has on neither side, and those of CORPUS
are choosing.txt, to choose settings by.

usage: inputs.py MODEL CORPUS ARCHIVE.tar.xz [--more MORE] [--documents N] [--context N] [--indexer FIT] [--bytes]
(PYTHONPATH=build/release/python)

CORPUS: folder that `./msalab corpus` has written. MORE: one that data/make_corpus.py has written by more_text.json,
of the same packages. --indexer: the Index Branches that training begins with.
"""

import argparse
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from msalab.capture.fitted import file_of
from msalab.evaluation.text import Bytes, Tokenizer, read_documents
from msalab.training.__main__ import main as train
from msalab.training.data import read

KINDS = ("english", "c", "code")


def held_out(corpus: Path, vocabulary, context: int, most: int | None = None, but=frozenset()) -> str:
    """Documents that are not among `but`, at most `most` of them."""
    room = context - len(vocabulary.prefix)
    kinds = []
    for kind in KINDS:
        documents = [one for one in read_documents([corpus / f"held_out/{kind}.txt"])
                     if len(one) > room and one not in but]
        kinds.append([one for one, ids in zip(documents, vocabulary.encode_all(documents)) if len(ids) >= room])
    turns = list(zip(*kinds))[:most and most // len(KINDS)]
    if len(turns) < (most // len(KINDS) if most else 1):
        sys.exit(f"{corpus}: a kind has {len(turns)} held-out documents of {room} tokens")
    return "\0".join(one for turn in turns for one in turn)


def of_unix(text: bytes) -> bytes:
    """Line ends as the records have them."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def all_of(corpus: Path) -> set[str]:
    return {one for path in corpus.glob("*/*.txt") for one in read_documents([path])}


def main():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "corpus", "archive"):
        top.add_argument(name, metavar=name.upper(), type=Path)
    top.add_argument("--more", type=Path)
    top.add_argument("--documents", type=int, default=96)
    top.add_argument("--context", type=int, default=8192)
    top.add_argument("--indexer", type=Path)
    top.add_argument("--bytes", action="store_true")
    options = top.parse_args()
    vocabulary = Bytes() if options.bytes else Tokenizer(options.model)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as lines:
        folder, learnt = Path(folder), [Path(lines, f"{kind}.txt") for kind in KINDS]
        for path in learnt:
            path.write_bytes(of_unix((options.corpus / "train" / path.name).read_bytes()))
        code = train([str(options.model), "--context", str(options.context), "--tokens-out",
                      str(folder / "tokens.safetensors"), *["--bytes"] * options.bytes, "--data", *map(str, learnt)])
        if code:
            sys.exit(code)
        rows = read([folder / "tokens.safetensors"], None, options.context, print)
        texts = {"held_out.txt": held_out(options.corpus, vocabulary, options.context)}
        if options.more:
            texts = {"choosing.txt": texts["held_out.txt"],
                     "held_out.txt": held_out(options.more, vocabulary, options.context, options.documents,
                                              all_of(options.corpus))}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        if options.indexer:
            source = file_of(options.indexer)
            shutil.copy(source, folder / f"indexer{source.suffix}")
        with tarfile.open(options.archive, "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
    counts = ", ".join(f"{name} {text.count(chr(0)) + 1}" for name, text in texts.items())
    print(f"{options.archive}: {options.archive.stat().st_size} bytes; documents: {counts}; tokens: {rows.sum()}")


if __name__ == "__main__":
    main()
