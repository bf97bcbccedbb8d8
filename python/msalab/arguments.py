# SPDX-License-Identifier: MIT
"""What the command lines of msalab have in common."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable

INDEX_DIM = 64  # channels of an index head where nothing says, as experiments/driver/presets.h has it


def _folded(word: str) -> str:
    return word.lower().replace("_", "-")


def _distance(a: str, b: str) -> int:
    """Letters that are replaced, left out, added, or swapped with the next one (optimal string alignment)."""
    before, last = [], list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """" (did you mean 'oracle'?)", to follow the word, or nothing: those known names that differ from it least, by at
    most a letter in three, as core/meant.h has it."""
    off = {name: _distance(_folded(word), _folded(name)) for name in known}
    near = [name for name, letters in off.items() if 3 * letters <= max(len(word), len(name))]
    least = min((off[name] for name in near), default=0)
    meant = [name for name in near if off[name] == least][:3]
    return f" (did you mean {' or '.join(repr(name) for name in meant)}?)" if meant else ""


def option_meant(option: str, known: Iterable[str]) -> str:
    """As did_you_mean, before which come the options that have the words of this one: '--weight-decay' for '--decay'."""
    longer = [name for name in known if name.startswith(option) or f"{option[1:]}-" in f"{name[1:]}-"]
    return f", but there is {', '.join(longer)}" if longer else did_you_mean(option, known)


def refuse_unknown(names, known, what: str) -> str:
    """"--selectors names orcale (did you mean 'oracle'?); there are: ...", or nothing where all are known."""
    known = list(known)
    unknown = [f"{name}{did_you_mean(name, known)}" for name in names if name not in known]
    return f"{what} {', '.join(unknown)}; there are: {', '.join(known)}" if unknown else ""


class _HelpAll(argparse.Action):
    def __call__(self, parser, *_):
        parser.usual = ()
        parser.print_help()
        parser.exit()


class CommandLine(argparse.ArgumentParser):
    """Of a command of msalab: its help ends with an example, and its errors say what may have been meant. usual: the
    options of --help, where --help-all has more."""

    def __init__(self, *args, example: str = "", usual: Iterable[str] = (), **more):
        if example:
            more = {"epilog": f"example:\n  {example}", "formatter_class": argparse.RawDescriptionHelpFormatter, **more}
        super().__init__(*args, allow_abbrev=False, **more)
        self.usual = frozenset(usual)
        self.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def format_help(self):
        return self._usually(super().format_help)

    def format_usage(self):
        return self._usually(super().format_usage)

    def _usually(self, write):
        """What write() makes of the usual options alone, and of --help-all in place of the others."""
        whole = self._option_string_actions["--help-all"]
        others = [action for action in self._actions if self.usual and action.option_strings and action.dest != "help"
                  and action is not whole and not self.usual & set(action.option_strings)]
        helps = [(action, action.help) for action in (*others, whole)]
        try:
            for action in others:
                action.help = argparse.SUPPRESS
            if others:
                whole.help = f"show these options and {len(others)} more, and exit"
            return write()
        finally:
            for action, text in helps:
                action.help = text

    def parse_known_args(self, args=None, namespace=None):
        """With --complete --FLAG alone, prints the values that a shell completes there."""
        args = sys.argv[1:] if args is None else list(args)
        if len(args) == 2 and args[0] == "--complete":
            action = self._option_string_actions.get(args[1])
            print(*((action and action.choices) or getattr(action, "offered", ())), sep="\n")
            self.exit()
        return super().parse_known_args(args, namespace)

    def error(self, message):
        options = [name for name in self._option_string_actions if name.startswith("--")]
        if message.startswith("unrecognized arguments:"):
            message = re.sub(r"(--[\w-]+)(=\S*)?", lambda at: at[0] + option_meant(at[1], options), message)
        choice = re.fullmatch(r"(argument .*: invalid choice: )'([^']*)'( \(choose from (.*)\))", message)
        if choice:
            known = re.findall(r"[\w.-]+", choice[4])
            message = f"{choice[1]}'{choice[2]}'{did_you_mean(choice[2], known)}{choice[3]}"
        super().error(message)


def integers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"'{text}', must be integers with commas between them") from None


def distinct_integers(text: str) -> list[int]:
    """In ascending order, as the programs have them."""
    numbers = sorted(integers(text))
    if len(set(numbers)) < len(numbers):
        raise ArgumentTypeError(f"'{text}', it names one twice")
    return numbers


def parse_run(parser, arguments):
    """Options of a program that goes on with a run, or replaces it."""
    options = parser.parse_args(arguments)
    if options.resume and options.overwrite:
        parser.error("--resume and --overwrite exclude each other")
    return options


def interrupt(*_):
    """A handler of SIGTERM."""
    raise KeyboardInterrupt


def counted(number: int, what: str) -> str:
    """"2 processes", "1 process"; what: the plural."""
    return f"{number} {what.removesuffix('es' if what.endswith('sses') else 's') if number == 1 else what}"


def error_text(error: Exception, options=None) -> str:
    """What a program says of an error. A message of msalab.transformers, which begins with "msalab_msa: ", or one that
    begins with the name of an option, "top_k is 0", has options as the command line has them: "--top-k is 0"."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {'no such file' if isinstance(error, FileNotFoundError) else error.strerror}"
    names, said = vars(options) if options else (), str(error)
    text = said.removeprefix("msalab_msa: ")
    if text == said and text.split(" ", 1)[0] not in names:
        return text
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: f"--{found[0].replace('_', '-')}" if found[0] in names
                  else found[0], text)


def note_if_dense(budget: int, longest: int, note):
    """budget: tokens that each query reads; longest: those of the longest sequence."""
    if budget >= longest:
        note(f"note: each query reads up to {counted(budget, 'tokens')}, and the longest sequence has {longest}: "
             "nothing is left out, as in dense attention")
