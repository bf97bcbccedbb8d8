# SPDX-License-Identifier: MIT
"""Files as the programs write them (data/FORMAT.md): whole or not at all, HDF5 with a checksum at
its end."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import h5py

from ..capture.layer import CaptureError, require
from ..capture.partial_file import PartialFile

MARK = b"msa-sha256 "
SEAL = len(MARK) + 64 + 1  # bytes of the checksum with its mark
AT_ONCE = 1 << 20
NAMED = 6  # differences that a message names


def sha256(path, size: int | None = None) -> str:
    """The SHA-256 of the first `size` bytes of a file, of all bytes if None."""
    digest, left = hashlib.sha256(), Path(path).stat().st_size if size is None else size
    with open(path, "rb") as file:
        while part := file.read(min(AT_ONCE, left)):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


def verify_checksum(path) -> None:
    """CaptureError where the bytes do not match the checksum at the end of an HDF5 file; one that has none,
    since HDF5 drops it when the file changes, is accepted as by the programs."""
    size = Path(path).stat().st_size - SEAL
    with open(path, "rb") as file:
        file.seek(max(size, 0))
        mark, _, found = file.read().rpartition(b" ")
    require(size < 0 or mark + b" " != MARK or found == f"{sha256(path, size)}\n".encode(),
            f"{path}: is damaged, its bytes do not match the checksum at its end; --overwrite begins anew")


def write_h5(path, fill) -> None:
    """fill(file) writes an HDF5 file, which then gets its checksum and its name. It is made in memory: HDF5 crashes
    where it reads what a full disk did not take."""
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        fill(file)
    content = memory.getvalue()
    with PartialFile(path, overwrite=True) as whole:
        whole.write(content + MARK + hashlib.sha256(content).hexdigest().encode() + b"\n")
        whole.finish()


def write_text(path, text: str) -> None:
    with PartialFile(path, overwrite=True) as file:
        file.write(text.encode())
        file.finish()


def write_json(path, content) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path):
    """CaptureError naming a file that holds none."""
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: is damaged, and no JSON: {error}") from error


def require_folder(path) -> None:
    """CaptureError where another file stands in the place of what is to be a folder."""
    require(Path(path).is_dir() or not Path(path).exists(), f"{path}: is a file, must be a folder")


@contextmanager
def alone_in(out: Path):
    """CaptureError while another run writes there."""
    require_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaptureError(f"{out}: another run is writing there") from None
        yield
    finally:
        os.close(folder)


def remove_folder(path: Path) -> None:
    """It loses its name before its first file: no half of it stays behind a kill."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    shutil.rmtree(old)


def replace_folder(partial: Path, path: Path) -> None:
    """Gives a folder its name when its bytes are on the device. What had the name before is removed behind that."""
    for one in (*partial.rglob("*"), partial):
        _wait_for(one)
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    _wait_for(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _wait_for(path: Path) -> None:
    """Until a file, or the names in a folder, are on the device."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def same_or_refused(place: str, before: dict, record: dict, way_out: str, free=()) -> None:
    """CaptureError naming what differs in two records, but for what is `free` to."""
    require(isinstance(before, dict), f"{place}: must be a JSON object")
    found = [f"{name} was {old!r}, is {new!r}" for name, old, new in _differences(before, record)
             if name not in free]
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    require(not found, f"{place}: {', '.join(found[:NAMED])}{more}{way_out}")


def _differences(before: dict, record: dict, of: str = ""):
    for name in sorted(before.keys() | record.keys()):
        old, new = before.get(name), record.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{of}{name} ")
        elif old != new:
            yield f"{of}{name}", old, new
