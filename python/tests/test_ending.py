# SPDX-License-Identifier: MIT
"""How programs of the package end: one sentence and the exit code that the compiled programs have."""

import errno
import os
import re
from argparse import Namespace
from pathlib import Path

import pytest

from msalab.__main__ import TOOLS
from msalab.__main__ import main as msalab
from msalab.capture.layer import CaptureError
from msalab.ending import EXTRAS, Refusal, ended
from msalab.plots.results import ResultsError


def raises(error):
    def work():
        raise error
    return work


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b.h5")
ENDS = [
    (CaptureError("layer 3: q has one axis"), 2, "error: layer 3: q has one axis"),
    (ResultsError("a.h5: is damaged"), 2, "error: a.h5: is damaged"),
    (Refusal("top_k is 0, must be at least 1"), 2, "error: --top-k is 0, must be at least 1"),
    (FULL, 2, "error: a/b.h5: No space left on device"),
    (MemoryError("4 GB"), 2, "error: not enough memory: 4 GB; --rows 1 needs less"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nat"), 2,
     "error: not enough memory: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 "
     "bytes; --rows 1 needs less"),
    (ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"), 2,
     "error: No module named 'torch.nn'; pip install '.[capture]' in the repository installs it"),
    (ModuleNotFoundError("No module named 'other'", name="other"), 2, "error: No module named 'other'"),
    (KeyboardInterrupt(), 130, "interrupted; --resume goes on"),
]


@pytest.mark.parametrize("error, code, said", ENDS, ids=[type(error).__name__ for error, *_ in ENDS])
def test_an_error_is_a_sentence(capsys, error, code, said):
    assert ended(raises(error), Namespace(top_k=0), less="--rows 1 needs less",
                 interrupted="interrupted; --resume goes on") == code
    assert capsys.readouterr().err == said + "\n"


def test_extras_are_those_of_the_package():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for extra, modules in EXTRAS.items():
        listed = re.search(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)[1].lower()
        assert [module for module in modules if f'"{module}>=' not in listed] == []


def test_what_has_no_sentence_is_a_bug_and_says_where(capsys):
    from msalab.arguments import integers

    assert ended(lambda: integers(7), Namespace()) == 1
    assert re.fullmatch(r"error: internal error, please report it: AttributeError: 'int' object has no attribute "
                        r"'split' \(arguments.py:\d+, ending.py:\d+\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("done, code", [(None, 0), (0, 0), (3, 3)])
def test_work_that_ends_well_says_its_code(done, code):
    assert ended(lambda: done, None) == code


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_ends_so(tool, monkeypatch, capsys):
    monkeypatch.setattr("msalab.__main__.run_tool", lambda *_: raises(CaptureError("no"))())
    assert msalab([tool]) == 2 and capsys.readouterr().err == "error: no\n"
