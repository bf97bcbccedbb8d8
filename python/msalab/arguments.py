# SPDX-License-Identifier: MIT
"""What the command lines of msalab have in common."""


def integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def interrupt(*_):
    """A handler of SIGTERM."""
    raise KeyboardInterrupt
