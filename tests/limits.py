# SPDX-License-Identifier: MIT
"""How long files and functions may be, and whose names they hold; prints what breaks it and fails.

Sizes that a reader takes in at once. What is longer stands in LONGER with its present size as its own
limit; to add a line there, say in the commit why the parts would be harder to read.

All programs are linked into one library, so the names of each are in a namespace of its own: a type
that two of them define would be one type for the linker.
"""

import re
import subprocess
import sys
from pathlib import Path

FILE_LINES = {".h": 150, ".cuh": 200, ".cpp": 400, ".cu": 400}
FUNCTION_LINES = 60
KERNEL_LINES = 150  # a __global__ function and what it is made of: its phases share registers

LONGER = {
    "core/backend.h": 233,
    "core/io/h5.cpp": 450,
    "core/tensor.h": 182,
    "core/tolerance.h": 165,
    "tests/core/select/policy.h": 199,
    "tests/core/test_select.cpp": 436,
}

WORDS_BEFORE_BLOCKS = re.compile(r"\b(namespace|struct|class|enum|union|extern)\b")


def without_comments_and_texts(source):
    """The source with the same lines, but blanks for comments, strings, characters and macros."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())

    pattern = (r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
               r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*")
    return re.sub(pattern, blank, source, flags=re.S | re.M)


def functions(source):
    """(name, first line, number of lines, is a kernel) of every function that stands in no other."""
    text = without_comments_and_texts(source)
    depth, start, function = 0, 0, None  # open braces, begin of the statement, the function we are in
    for match in re.finditer(r"[{};]", text):
        at, brace = match.start(), match.group()
        head = text[start:at]
        if brace == "{" and function is None:
            is_scope = not head.strip() or WORDS_BEFORE_BLOCKS.search(head.split("(")[0])
            if not is_scope:
                first = text.count("\n", 0, start + len(head) - len(head.lstrip()))
                is_body = "(" in head and head.rstrip()[-1] not in "=,({"
                calls = re.findall(r"([\w:~]+)\s*\(", head)  # attributes of kernels begin with __
                name = next((c for c in calls if not c.startswith("__")), "") if is_body else ""
                function = (depth, name, first, "__global__" in head)
            depth += 1
        elif brace == "{":
            depth += 1
        elif brace == "}":
            depth -= 1
            if function is not None and depth == function[0]:
                _, name, first, is_kernel = function
                if name:
                    yield name, first + 1, text.count("\n", 0, at) - first + 1, is_kernel
                function = None
        if function is None:
            start = match.end()


def in_a_wrong_namespace(paths):
    """Files of a program, experiments/NAME/, that hold no msa::experiments::NAME."""
    for path in paths:
        parts = path.parts
        if parts[0] == "experiments" and len(parts) == 3 and path.suffix in (".cpp", ".h"):
            name = f"namespace msa::experiments::{parts[1]} "
            if parts[1] != "driver" and name not in path.read_text():
                yield f"{path}: has no {name.strip()}"


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "core", "gpu",
                             "analysis", "experiments", "tests", "examples"],
                            check=True, capture_output=True, text=True).stdout.split()
    sizes = {}
    paths = [path for path in sorted(map(Path, listed)) if path.exists()]
    for path in paths:
        if path.suffix not in FILE_LINES:
            continue
        source = path.read_text()
        sizes[str(path)] = (source.count("\n"), FILE_LINES[path.suffix], "")
        for name, line, lines, kernel in functions(source):
            key = f"{path} {name}"
            limit = KERNEL_LINES if kernel else FUNCTION_LINES
            if key not in sizes or lines > sizes[key][0]:
                sizes[key] = (lines, limit, f":{line}")
    wrong = list(in_a_wrong_namespace(paths))
    for key, (lines, limit, line) in sizes.items():
        if lines > LONGER.get(key, limit):
            place, _, name = key.partition(" ")
            wrong.append(f"{place}{line}: {name or 'the file'} has {lines} lines, at most "
                         f"{LONGER.get(key, limit)} are allowed")
    for key in LONGER:
        if key not in sizes or sizes[key][0] <= sizes[key][1]:
            wrong.append(f"tests/limits.py: {key} needs no line in LONGER any more")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
