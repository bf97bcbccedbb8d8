# SPDX-License-Identifier: MIT
"""msalab conform: does a kernel or an engine answer MiniMax Sparse Attention as the paper defines it?

    msalab conform --call MODULE:FUNCTION     calls a function with the inputs of each case
    msalab conform --dump DIR                 reads what an engine wrote, DIR/<case>.npz
    msalab conform --export DIR               writes the inputs, DIR/<case>.npz
    msalab conform --all                      every adapter of msalab.conform.adapters, one process each

numpy is all it needs; `python -m msalab.conform` is the same where msalab is not compiled. docs/conformance.md says
what a case asks, why, and how far a right answer may be from the exact one. Exit code 1: a case failed;
2: none was answered.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from .archive import Archive
from .check import ABSENT, FAIL, PASS, RULE, RULES, Comparison, Problem, same_ids

REFUSALS = (NotImplementedError, ValueError, TypeError, AssertionError, ImportError)


class Called:
    """A function, and what its module says of itself."""

    def __init__(self, name):
        module, _, function = name.partition(":")
        if not function:
            raise ValueError(f"--call is {name!r}, must be MODULE:FUNCTION")
        self.module = import_module(module)
        self.function = getattr(self.module, function, None)
        if not callable(self.function):
            raise ValueError(f"--call is {name!r}, but {module} has no function {function}")
        self.rules = dict(getattr(self.module, "RULES", {}))
        self.about = getattr(self.module, "about", lambda: name)()

    def __call__(self, case, given):
        try:
            return self.function(given)
        except REFUSALS as error:
            if "CUDA" in str(error):
                raise
            return {"why": f"{type(error).__name__}: {error}".split("\n")[0]}
        except Exception as error:
            if type(error).__name__ != "InterpreterError":  # Triton's, of what it does not interpret
                raise
            return {"why": f"Triton's interpreter: {error}".split("\n")[0]}


class Dumped:
    """DIR/<case>.npz, each with some of the case's answers."""

    def __init__(self, folder, rules):
        self.folder, self.about = Path(folder), str(folder)
        self.rules = {rule: "--rules" for rule in rules}
        if not self.folder.is_dir():
            raise ValueError(f"--dump is {folder}, which is no folder")

    def __call__(self, case, given):
        path = self.folder / f"{case}.npz"
        if not path.exists():
            return {"why": f"no {path.name}"}
        try:
            with np.load(path) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise Problem(f"{path}: {error}") from None


def run(archive, system, only="", each=lambda rows: None):
    """Rows (case, outcome, remark) of every case, and of the relations between them. each: gets the rows so far, behind
    every case."""
    rows, found = [], {}
    for case in archive.cases:
        if only not in case["name"]:
            continue
        given = archive.given(case)
        try:
            answers = found[case["name"]] = system(case["name"], given) or {}
            outcome = Comparison(case, archive.given(case), archive.right(case), answers).outcome(system.rules)
        except Problem as error:
            outcome = FAIL, str(error)
        except Exception as error:  # of the system: it may raise whatever it likes
            outcome = FAIL, f"raised {type(error).__name__}: {error}".split("\n")[0]
        rows.append((case["name"], *outcome))
        each(rows)
    for relation in archive.same_ids:
        if only in relation["name"]:
            rows.append((relation["name"], *same_ids(relation, found)))
    return rows


def show(rows):
    wide = max(len(name) for name, _, _ in rows) + 2
    for name, outcome, remark in rows:
        print(f"{name:<{wide}}{outcome:<17}{remark}".rstrip())
    counts = [(kind, sum(outcome == kind for _, outcome, _ in rows)) for kind in (PASS, RULE, ABSENT, FAIL)]
    print(", ".join(f"{count} {kind}" for kind, count in counts))


def export(archive, folder):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for case in archive.cases:
        given = archive.given(case)
        given.pop("ids" if "ids_buffer" in given else "", None)
        np.savez_compressed(Path(folder) / f"{case['name']}.npz", **given)
    print(f"{len(archive.cases)} cases in {folder}")


def command_line(**words):
    try:
        from ..arguments import CommandLine
    except ImportError:  # a copy of this folder, without the package
        return argparse.ArgumentParser(**words, formatter_class=argparse.RawDescriptionHelpFormatter)
    return CommandLine(**words, example="msalab conform --call my_engine:answer")


def main(arguments=None):
    parser = command_line(prog="msalab conform", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--call", metavar="MODULE:FUNCTION")
    what.add_argument("--dump", metavar="DIR")
    what.add_argument("--export", metavar="DIR")
    what.add_argument("--all", action="store_true")
    parser.add_argument("--rules", default="", help="with --dump, the rules by which the engine says that it differs, "
                        f"separated by commas: {', '.join(RULES)}")
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--json", metavar="FILE", help="the table as JSON, too, renewed behind every case")
    parser.add_argument("--seconds", type=float, default=400, metavar="N", help="with --all, after which a system is stopped; "
                        "what it has answered counts (400)")
    given = parser.parse_args(arguments)
    rules = [rule for rule in given.rules.split(",") if rule]
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown:
        parser.error(f"--rules has {unknown[0]!r}, must be of: {', '.join(RULES)}")
    if given.all:
        from .systems import run_all
        return run_all(given.only, given.json, given.seconds)
    archive = Archive()
    if given.export:
        export(archive, given.export)
        return 0
    try:
        system = Called(given.call) if given.call else Dumped(given.dump, rules)
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    def keep(rows):
        if given.json:
            record = {"about": system.about, "rules": system.rules, "rows": rows}
            part = Path(f"{given.json}.partial")
            part.write_text(json.dumps(record, indent=1) + "\n")
            part.replace(given.json)

    rows = run(archive, system, given.only, keep)
    if not rows:
        parser.error(f"--only is {given.only!r}, which no case's name has")
    print(system.about)
    show(rows)
    keep(rows)
    if all(outcome == ABSENT for _, outcome, _ in rows):
        why = rows[0][2] or "none of the answers that are asked for"
        print(f"error: no case was answered; of {rows[0][0]}: {why}", file=sys.stderr)
        return 2
    return int(any(outcome == FAIL for _, outcome, _ in rows))


if __name__ == "__main__":
    sys.path.insert(0, "")
    sys.exit(main())
