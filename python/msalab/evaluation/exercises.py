# SPDX-License-Identifier: MIT
"""Exercises in retrieval inside text, those of msa-pretrain (experiments/pretrain/tasks.h): filler,
text of documents, with lines planted in it and questions at its end. To models of bytes they have
the same shape; a tokenizer's model is asked in words.

  needle      one fact, asked for                  tracking   a chain of references to a value
  multi_key   many facts, one of them asked for    recall     many facts, many of them asked for
  copy        one run of letters, to be repeated
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..capture.layer import require

TASKS = ("needle", "multi_key", "tracking", "recall", "copy")
HOPS, KEY_LETTERS, VALUE_LETTERS, COPY_LETTERS = 2, 4, 8, 32


@dataclass(frozen=True)
class Style:
    """Planted lines and questions; a question is followed by its answer."""

    fact: str
    reference: str
    source: str
    question: str
    question_of_reference: str
    question_of_source: str
    answer: str


OF_BYTES = Style("\0{key}={value}\n", "\0{key}=${other}\n", "\0{value}\n", "\0{key}=", "\0{key}?",
                 "\0", "{value}")
OF_WORDS = Style("\nThe code of {key} is {value}.\n", "\nThe code of {key} is that of {other}.\n",
                 "\nThe secret word is {value}.\n", "\nThe code of {key} is",
                 "\nFollowed to its end, the code of {key} is", "\nThe secret word is", " {value}")


@dataclass(frozen=True)
class Exercise:
    ids: np.ndarray  # int64 [length]
    answers: list[tuple[int, int]]  # tokens [begin, end)
    depth: float  # share of the filler before the line that holds the first answer


def _letters(rng, count: int) -> str:
    return "".join(chr(ord("a") + int(letter)) for letter in rng.integers(0, 26, count))


def _plan(task: str, style: Style, pairs: int, depth: float, rng):
    """Lines (place, text), and questions (prompt, answer)."""
    if task == "copy":
        run = _letters(rng, COPY_LETTERS)
        return [(depth, style.source.format(value=run))], [
            (style.question_of_source, style.answer.format(value=run))]
    keys: set[str] = set()

    def new_key():
        while True:
            key = _letters(rng, KEY_LETTERS)
            if key not in keys:
                keys.add(key)
                return key

    lines, questions = [], []
    for number in range(1 if task == "needle" else pairs):
        place = depth if number == 0 else rng.random()
        key, value = new_key(), _letters(rng, VALUE_LETTERS)
        lines.append((place, style.fact.format(key=key, value=value)))
        prompt = style.question
        if task == "tracking":
            prompt = style.question_of_reference
            for share in sorted(rng.random(HOPS)):
                other, key = key, new_key()
                lines.append((place + share * (1 - place),
                              style.reference.format(key=key, other=other)))
        if number == 0 or task == "recall":
            questions.append((prompt.format(key=key), style.answer.format(value=value)))
    return lines, questions


def make_exercise(task: str, vocabulary, documents, length: int, depth: float, pairs: int,
                  seed) -> Exercise:
    """Exactly `length` tokens, a function of its arguments. documents: token ids of the filler."""
    rng = np.random.default_rng(seed)
    style = OF_BYTES if vocabulary.separator == "\0" else OF_WORDS
    lines, questions = _plan(task, style, pairs, depth, rng)
    planted = [(place, vocabulary.encode(line)) for place, line in sorted(lines)]
    asked = [(vocabulary.encode(("\n" if number else "") + prompt), vocabulary.encode(answer))
             for number, (prompt, answer) in enumerate(questions)]
    needed = len(vocabulary.prefix) + sum(len(line) for _, line in planted) + sum(
        len(prompt) + len(answer) for prompt, answer in asked)
    require(needed <= length, f"an exercise of {task} takes {needed} tokens without any filler, a "
            f"length is {length}")
    filler = _filler(documents, length - needed, rng)
    ids, filled = list(vocabulary.prefix), 0
    for place, line in planted:
        upto = round(place * len(filler))
        ids += [*filler[filled:upto], *line]
        filled = upto
    ids += filler[filled:]
    answers = []
    for prompt, answer in asked:
        ids += prompt
        answers.append((len(ids), len(ids) + len(answer)))
        ids += answer
    return Exercise(np.asarray(ids, np.int64), answers, depth)


def _filler(documents, count: int, rng) -> list[int]:
    """Pieces of documents, each drawn by its length and cut at a random place."""
    lengths = np.asarray([len(document) for document in documents], float)
    filler: list[int] = []
    while len(filler) < count:
        document = documents[rng.choice(len(documents), p=lengths / lengths.sum())]
        missing = count - len(filler)
        begin = int(rng.integers(0, max(1, len(document) - missing + 1)))
        filler += document[begin:begin + missing].tolist()
    return filler
