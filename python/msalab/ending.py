# SPDX-License-Identifier: MIT
"""How every program of the package ends: with the exit code of its work, or with one sentence."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path

from .arguments import error_text

DONE, BUG, REFUSED, INTERRUPTED = 0, 1, 2, 130  # exit codes, as the compiled programs have them
EXTRAS = {"capture": ("torch", "transformers", "accelerate"), "gguf": ("gguf",), "paper": ("scipy",),
          "plots": ("h5py", "jinja2", "matplotlib", "ml_dtypes", "safetensors")}  # as pyproject.toml has them
_HERE = Path(__file__).parent
_PLACES = 3  # of our own code that the sentence about a bug names


class Refusal(Exception):
    """What was asked for cannot be had; the text names what is wrong."""


def ended(work, options, *, less: str = "", interrupted: str = "interrupted") -> int:
    """The exit code of work(); None counts as DONE. An error prints its sentence on stderr and gives REFUSED where the
    input or the system is to blame, BUG where this package is. less: printed where memory is missing; it names what
    needs less."""
    try:
        return work() or DONE
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code, text = _sentence(error, options, less)
        print(f"error: {text}", file=sys.stderr)
        return code


def leave(code: int):
    """Ends this process. One that torchrun started ends without Python's finalization: PyTorch's caches keep the
    process group until then, and a thread of gloo that lets go of a tensor meanwhile aborts the process."""
    if "WORLD_SIZE" not in os.environ:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _sentence(error: Exception, options, less: str) -> tuple[int, str]:
    if isinstance(error, Refusal):
        return REFUSED, error_text(error, options)
    if _is_of_memory(error):
        first = next(iter(str(error).splitlines()), "")
        return REFUSED, "; ".join(filter(None, (f"not enough memory: {first}", less)))
    if isinstance(error, (OSError, *_of_operations())):
        return REFUSED, error_text(error, options)
    if isinstance(error, ImportError):
        return REFUSED, "; ".join(filter(None, (str(error), _installs((error.name or "").partition(".")[0]))))
    return BUG, f"internal error, please report it: {type(error).__name__}: {error} ({_places(error)})"


def _installs(module: str) -> str:
    """What to do where this module is missing."""
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return f"pip install '.[{extra}]' in the repository installs it" if extra else ""


def _is_of_memory(error: Exception) -> bool:
    """PyTorch says it of a GPU by a type of its own, of the host by a text."""
    return (isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            or isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def _of_operations() -> tuple:
    """What the compiled module refuses with, where it is loaded."""
    module = sys.modules.get(f"{__package__}._msalab")
    return (module.InputError, module.UnsupportedError) if module else ()


def _places(error: Exception) -> str:
    """Where in this package it came up, the innermost place first."""
    lines = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f"{path.relative_to(_HERE)}:{line}" for path, line in lines if path.is_relative_to(_HERE)]
    return ", ".join(ours[:-_PLACES - 1:-1])
