#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What gpu/conversion.sh needs beside the model, in one archive, made where there is no GPU: tokens.safetensors to
train on, and held_out.txt, the documents that a row of --context tokens is not too long for, a document of each
kind in turn.

usage: inputs.py MODEL CORPUS ARCHIVE.tar.xz [--context N] [--indexer FIT] [--bytes]   (PYTHONPATH=build/release/python)

CORPUS: folder that `./msalab corpus` has written. --indexer: the Index Branches that training begins with.
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

KINDS = ("english", "c", "code")


def held_out(corpus: Path, vocabulary, context: int) -> str:
    room = context - len(vocabulary.prefix)
    kinds = []
    for kind in KINDS:
        documents = [one for one in read_documents([corpus / f"held_out/{kind}.txt"]) if len(one) > room]
        kinds.append([one for one, ids in zip(documents, vocabulary.encode_all(documents)) if len(ids) >= room])
    turns = list(zip(*kinds))
    if not turns:
        sys.exit(f"{corpus}: a kind has no held-out document of {room} tokens")
    return "\0".join(one for turn in turns for one in turn)


def main():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "corpus", "archive"):
        top.add_argument(name, metavar=name.upper(), type=Path)
    top.add_argument("--context", type=int, default=8192)
    top.add_argument("--indexer", type=Path)
    top.add_argument("--bytes", action="store_true")
    options = top.parse_args()
    vocabulary = Bytes() if options.bytes else Tokenizer(options.model)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        code = train([str(options.model), "--context", str(options.context), "--tokens-out",
                      str(folder / "tokens.safetensors"), *["--bytes"] * options.bytes, "--data",
                      *(str(options.corpus / f"train/{kind}.txt") for kind in KINDS)])
        if code:
            sys.exit(code)
        text = held_out(options.corpus, vocabulary, options.context)
        (folder / "held_out.txt").write_text(text, encoding="utf-8")
        if options.indexer:
            source = file_of(options.indexer)
            shutil.copy(source, folder / f"indexer{source.suffix}")
        with tarfile.open(options.archive, "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
    print(f"{options.archive}: {options.archive.stat().st_size} bytes, {text.count(chr(0)) + 1} held-out documents")


if __name__ == "__main__":
    main()
