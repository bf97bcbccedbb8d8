# SPDX-License-Identifier: MIT
"""What the command lines of msalab have in common."""

import re
from argparse import ArgumentTypeError


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
