# SPDX-License-Identifier: MIT
"""Exercises in retrieval inside text, those of msa-pretrain (experiments/pretrain/tasks.h) and one of code: filler,
text of documents, with lines planted in it and questions at its end. To models of bytes they have
the same shape; a tokenizer's model is asked in words.

  needle      one fact, asked for                  tracking   a chain of references to a value
  multi_key   many facts, one of them asked for    recall     many facts, many of them asked for
  copy        one run of letters, to be repeated
  definition  functions in Python: which of them returns a value?
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..capture.layer import require

TASKS = ("needle", "multi_key", "tracking", "recall", "copy", "definition")
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

FUNCTION = '\ndef {key}(): return "{value}"\n'
QUESTION_OF_FUNCTION = '\n# The function that returns "{value}" is'
CHARACTERS = {OF_BYTES: 1, OF_WORDS: 4}  # of a token, about
TRIES = 32  # to fill an exercise exactly


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
        if task == "definition":
            lines.append((place, FUNCTION.format(key=key, value=value)))
            if number == 0:
                questions.append((QUESTION_OF_FUNCTION.format(value=value), f" {key}"))
            continue
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


class _Planted:
    """Lines and questions of an exercise, which any filler may go around. CaptureError where they alone take more than
    `length` tokens."""

    def __init__(self, task: str, vocabulary, length: int, depth: float, pairs: int, rng):
        self.style = OF_BYTES if vocabulary.separator == "\0" else OF_WORDS
        lines, self._questions = _plan(task, self.style, pairs, depth, rng)
        self._lines, self._vocabulary = sorted(lines), vocabulary
        self.most, self.needed = length - len(vocabulary.prefix), len(self.made("")[0])
        require(self.needed <= self.most, f"an exercise of {task} takes {self.needed + len(vocabulary.prefix)} tokens without "
                f"any filler, a length is {length}")

    def made(self, filler: str):
        """Its ids, and where in them the answers are."""
        return self._vocabulary.locate(*_text(self._lines, self._questions, filler))


def require_room(task: str, vocabulary, length: int, depth: float, pairs: int, seed):
    """What make_exercise requires, without its filler, which takes most of the time."""
    _Planted(task, vocabulary, length, depth, pairs, np.random.default_rng(seed))


def make_exercise(task: str, vocabulary, documents, length: int, depth: float, pairs: int,
                  seed) -> Exercise:
    """At most `length` tokens, those of its whole text, and as many as the filler's characters allow: a
    function of its arguments. documents: texts of the filler."""
    rng = np.random.default_rng(seed)
    planted = _Planted(task, vocabulary, length, depth, pairs, rng)
    ids, answers = _filled(planted.made, _Filler(documents, rng), planted.needed, planted.most, CHARACTERS[planted.style])
    before = len(vocabulary.prefix)
    return Exercise(np.asarray([*vocabulary.prefix, *ids], np.int64),
                    [(begin + before, end + before) for begin, end in answers], depth)


def _text(lines, questions, filler: str) -> tuple[str, list[tuple[int, int]]]:
    """Lines planted in the filler with questions behind it, and where the answers are, in characters."""
    text, filled, answers = "", 0, []
    for place, line in lines:
        upto = round(place * len(filler))
        text += filler[filled:upto] + line
        filled = upto
    text += filler[filled:]
    for number, (prompt, answer) in enumerate(questions):
        text += ("\n" if number else "") + prompt
        answers.append((len(text), len(text) + len(answer)))
        text += answer
    return text, answers


def _filled(made, filler: _Filler, needed: int, most: int, share: float):
    """made(filler) with so much of the filler that its ids are `most`, or else of the tries the one with the
    most that are not more. needed: of ids without filler. share: about so many characters are a token."""
    best, count, size, tried = made(""), needed, 0, {0}
    for _ in range(TRIES):
        step = round((most - count) * share) or (1 if count < most else -1)
        while size + step in tried and step:
            step -= 1 if step > 0 else -1
        if count == most or not step or size + step < 0:
            break
        size += step
        tried.add(size)
        found = made(filler.text(size))
        count = len(found[0])
        share = size / max(count - needed, 1)
        if len(best[0]) < count <= most:
            best = found
    return best


class _Filler:
    """Pieces of documents, each drawn by its length and cut at a random place."""

    def __init__(self, documents, rng):
        self._documents, self._rng, self._drawn = documents, rng, ""
        lengths = np.asarray([len(document) for document in documents], float)
        self._share = lengths / lengths.sum()

    def text(self, size: int) -> str:
        """Its first `size` characters."""
        while len(self._drawn) < size:
            document = self._documents[self._rng.choice(len(self._documents), p=self._share)]
            begin = int(self._rng.integers(0, max(1, len(document) - (size - len(self._drawn)) + 1)))
            self._drawn += document[begin:]
        return self._drawn[:size]
