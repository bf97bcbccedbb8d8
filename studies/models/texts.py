# SPDX-License-Identifier: MIT
"""Texts of the study: code and prose of `./msalab corpus` (the packages that data/corpus.json names), and both mixed.

A text is made of documents one behind the other, whole ones but in a mixed text, so that it is as long as the context
asks: `learnt`, of the corpus's train side, is captured and fitted to; `held_out` is what the loss is measured on, in documents that each fill
the context."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msalab.ending import Refusal

KINDS = ("code", "prose", "mixed")
FILES = {"code": ("code.txt",), "prose": ("english.txt",), "mixed": ("code.txt", "english.txt")}
CHARACTERS = 6  # of a token, more than any of these models has on these texts
LEAST = 2000  # characters of a document that is used, and of its pieces in a mixed text
READ = 1 << 24  # characters of a corpus's file that are looked at


def documents(path: Path) -> list[str]:
    """In an order that mixes packages and is always the same."""
    with open(path, encoding="utf-8", errors="ignore") as file:
        found = [one for one in file.read(READ).split("\0") if len(one) >= LEAST]
    return sorted(found, key=lambda one: hashlib.sha256(one.encode()).digest())


def made(corpus: Path, side: str, kind: str, context: int, count: int) -> list[str]:
    """`count` texts of at least `context` tokens: whole documents, or pieces of code and of prose in turn."""
    sources = [documents(corpus / side / name) for name in FILES[kind]]
    if len(sources) > 1:
        sources = [[one[at:at + LEAST] for one in source for at in range(0, len(one), LEAST)] for source in sources]
    turns = [one for turn in zip(*sources) for one in turn]
    found, text = [], ""
    for one in turns:
        text += one.rstrip("\n") + "\n\n"
        if len(text) >= CHARACTERS * context:
            found.append(text)
            text = ""
        if len(found) == count:
            return found
    raise Refusal(f"{corpus / side}: has {len(found)} texts of {CHARACTERS * context} characters of the kind {kind}, "
                  f"must have {count}")


def write(folder: Path, corpus: Path | None, kind: str, context: int, learnt: int, held_out: int) -> dict[str, list[Path]]:
    """The files of a kind and context, made where they are missing: each of `learnt` is one sequence, `held_out` is one
    file of documents."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{kind}-{context}"
    files = {"learnt": [folder / f"{stem}-learnt-{number}.txt" for number in range(learnt)],
             "held_out": [folder / f"{stem}-held_out-{held_out}.txt"]}
    if all(path.exists() for paths in files.values() for path in paths):
        return files
    if corpus is None:
        raise Refusal(f"{folder}: has not the texts of {stem}; --corpus makes them of what ./msalab corpus has written")
    for path, text in zip(files["learnt"], made(corpus, "train", kind, context, learnt)):
        _put(path, text)
    _put(files["held_out"][0], "\0".join(made(corpus, "held_out", kind, context, held_out)))
    return files


def _put(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".partial")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
