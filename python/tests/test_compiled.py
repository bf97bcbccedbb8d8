# SPDX-License-Identifier: MIT
"""Where the compiled part cannot run or is not there, the first use of an operation says so."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msalab.__main__ import PROGRAMS

PACKAGE = Path(__file__).parents[1] / "msalab"
OLD = "processor : 0\nflags : fpu sse2 avx f16c fma\n"  # neither AVX2 nor BMI2
LACKS = "msalab needs a processor with AVX2 (x86-64-v3); this one lacks avx2, bmi2"
CALL = "import msalab; print('imported', flush=True); msalab.dense_attention"


@pytest.fixture
def run(tmp_path):
    """run(code, cpuinfo): what Python prints and how it ends, with a copy of the package that is
    not compiled, on a processor that the system describes so."""
    shutil.copytree(PACKAGE, tmp_path / "msalab", ignore=shutil.ignore_patterns("_msalab*", "bin"))
    described = tmp_path / "cpuinfo"

    def run(code, cpuinfo=None):
        if cpuinfo is not None:
            described.write_text(cpuinfo)
            code = ("import pathlib, msalab._compiled as c; "
                    f"c.CPUINFO = pathlib.Path({str(described)!r}); " + code)
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True,
                              capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path), "MSALAB_BIN": ""})

    return run


def test_an_old_processor_is_named_before_the_compiled_part_is_loaded(run):
    from msalab._compiled import missing_features
    assert missing_features("flags : fpu avx2 fma f16c") == ["bmi2"]
    assert missing_features("no flags here") == []
    done = run(CALL, OLD)
    assert done.returncode == 1 and done.stdout == "imported\n"
    assert done.stderr.rstrip().endswith(f"ImportError: {LACKS}")
    assert f"ImportError: {LACKS}" in run("from msalab import dense_attention", OLD).stderr


def test_a_copy_that_is_not_compiled_says_how_to_compile_it(run):
    done = run(CALL)
    assert done.returncode == 1 and done.stdout == "imported\n"
    assert "ImportError: the operations of msalab are compiled, and this copy of the package is " \
           "not, or not for this Python: `pip install .` in the repository does it" in done.stderr


def test_a_compiled_part_that_cannot_be_loaded_says_why(run, tmp_path):
    (tmp_path / "msalab/_msalab.abi3.so").write_bytes(b"not a library")
    error = run(CALL).stderr
    assert "ImportError: the compiled part of msalab cannot be loaded: " in error
    assert "_msalab.abi3.so" in error


def test_a_copy_that_is_not_installed_has_no_version(run):
    done = run("from msalab.__main__ import main; raise SystemExit(main(['--version']))")
    assert done.returncode == 0 and done.stdout.startswith("msalab ")


def test_a_program_that_is_not_installed_is_named_with_where_it_was_looked_for(run, tmp_path):
    done = run("from msalab.__main__ import main; raise SystemExit(main(['fit-indexer', 'a.h5']))")
    assert done.returncode == 2 and done.stderr.startswith(
        "msalab: fit-indexer is the program msa-fit-indexer of this package, which is not here: there is no "
        f"{tmp_path / 'msalab/bin/msa-fit-indexer'}; `pip install .` in the repository")


def test_programs_are_those_of_the_folder_that_the_environment_names(run, tmp_path):
    """Help, a command, and a study's search find the same ones; without the folder, none."""
    made = tmp_path / "made/msa-cost"
    made.parent.mkdir()
    made.write_text("#!/bin/sh\necho the program has $*\n")
    made.chmod(0o755)
    code = "from msalab.__main__ import main; from msalab.programs import find_program; "
    there = code + f"import os; os.environ['MSALAB_BIN'] = {str(made.parent)!r}; "
    assert "which are not here" in run(code + "main(['--help'])").stdout
    assert "which are not here" not in run(there + "main(['--help'])").stdout
    assert run(there + "print(find_program('msa-cost'))").stdout == f"{made}\n"
    assert run(there + "main(['cost', '--json'])").stdout == "the program has --json\n"
    assert f"there is no {made.parent / 'msa-fit-indexer'}" in run(there + "main(['fit-indexer'])").stderr


def test_every_program_is_known_by_name():
    rows = (PACKAGE.parents[1] / "experiments/programs.def").read_text()
    assert list(PROGRAMS) == re.findall(r'^MSA_PROGRAM\(\w+, "msa-([a-z-]+)"', rows, re.MULTILINE)


def test_a_command_that_a_program_has_too_is_named_once(run, tmp_path):
    (tmp_path / "msalab/bin").mkdir()
    for name in ("msa-cost", "msa-plot"):
        (tmp_path / "msalab/bin" / name).write_text("")
    done = run("from msalab.__main__ import main; raise SystemExit(main(['nothing']))")
    commands = re.findall("[a-z-]+", done.stderr)
    assert done.returncode == 2 and commands.count("plot") == commands.count("cost") == 1
