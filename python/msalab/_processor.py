# SPDX-License-Identifier: MIT
"""What the compiled part needs of the processor, said before it would end in an illegal instruction."""

from pathlib import Path

NEEDED = ("avx2", "bmi2", "f16c", "fma")  # of x86-64-v3


def missing_features(cpuinfo: str) -> list[str]:
    """What of NEEDED the text of /proc/cpuinfo lacks; nothing where it lists no flags."""
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            flags = line.split(":", 1)[1].split()
            return [feature for feature in NEEDED if feature not in flags]
    return []


def require_processor():
    """ImportError on a processor that cannot run the compiled part."""
    cpuinfo = Path("/proc/cpuinfo")
    missing = missing_features(cpuinfo.read_text()) if cpuinfo.is_file() else []
    if missing:
        raise ImportError("msalab needs a processor with AVX2 (x86-64-v3); this one lacks "
                          + ", ".join(missing))
