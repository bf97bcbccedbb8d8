# SPDX-License-Identifier: MIT
"""What the compiled part needs, said plainly: without it, it would end in an illegal instruction."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("avx2", "bmi2", "f16c", "fma")  # of x86-64-v3
CPUINFO = Path("/proc/cpuinfo")


def missing_features(cpuinfo: str) -> list[str]:
    """What of NEEDED the text of /proc/cpuinfo lacks; nothing where it lists no flags."""
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            flags = line.split(":", 1)[1].split()
            return [feature for feature in NEEDED if feature not in flags]
    return []


def require_processor():
    """ImportError on a processor that cannot run the compiled part."""
    missing = missing_features(CPUINFO.read_text()) if CPUINFO.is_file() else []
    if missing:
        raise ImportError("msalab needs a processor with AVX2 (x86-64-v3); this one lacks "
                          + ", ".join(missing))


def load_compiled():
    """The module _msalab; ImportError with the reason where it is absent or cannot be loaded."""
    require_processor()
    name = f"{__package__}._msalab"
    if find_spec(name) is None:
        raise ImportError("the operations of msalab are compiled, and this copy of the package is "
                          "not, or not for this Python: `pip install .` in the repository does it")
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"the compiled part of msalab cannot be loaded: {error}") from error
