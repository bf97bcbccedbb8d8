# SPDX-License-Identifier: MIT
"""The compiled module as other libraries of a process see it."""

import shutil
import subprocess

import pytest

module = pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here: binutils")
def test_it_shows_its_start_alone():
    listed = subprocess.run(["nm", "-D", "--defined-only", module.__file__], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    assert [line.split()[-1] for line in listed] == ["PyInit__msalab"]
