# SPDX-License-Identifier: MIT
"""msalab COMMAND ...: the programs of the package, analyze, bench, compare, cost, fit-indexer and the
others; msalab COMMAND --help says what each does."""

import os
import sys
from pathlib import Path

BIN = Path(__file__).parent / "bin"


def programs() -> dict[str, Path]:
    """Command -> its program."""
    return {path.name.removeprefix("msa-"): path for path in sorted(BIN.glob("msa-*"))}


def main(arguments=None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    known = programs()
    if arguments and arguments[0] in known:
        path = known[arguments[0]]
        os.execv(path, [str(path), *arguments[1:]])
    usage = f"usage: msalab COMMAND [ARGUMENTS]\n\ncommands: {', '.join(known)}\n\n{__doc__}"
    if arguments and arguments[0] in ("-h", "--help", "help"):
        print(usage)
        return 0
    if arguments and arguments[0] == "--version":
        from importlib.metadata import version
        print("msalab", version("msalab"))
        return 0
    named = f"'{arguments[0]}' is no command; " if arguments else ""
    print(f"msalab: {named}commands are: {', '.join(known)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
