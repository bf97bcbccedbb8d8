# SPDX-License-Identifier: MIT
"""Files as the programs write them (data/FORMAT.md): whole or not at all, HDF5 with a checksum at
its end, and a run's record beside its finished units."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import h5py

from ..capture.layer import CaptureError, require
from ..capture.partial_file import PartialFile

MARK, DIGITS = b"msa-sha256 ", 64
AT_ONCE = 1 << 20


def sha256(path, count: int | None = None) -> str:
    """Of a file's first `count` bytes, or of all."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size if count is None else count
        while left > 0 and (part := file.read(min(left, AT_ONCE))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


def write_h5(path, fill) -> None:
    """fill(file) writes an HDF5 file, which then gets its checksum and its name."""
    with PartialFile(path, overwrite=True) as whole:
        with h5py.File(whole, "w") as file:
            fill(file)
        whole.check()
        whole.seek(0, os.SEEK_END)
        whole.write(MARK + sha256(whole.partial).encode() + b"\n")
        whole.finish()


def check_seal(path) -> None:
    """CaptureError unless the file ends with the checksum of its bytes."""
    size, length = Path(path).stat().st_size, len(MARK) + DIGITS + 1
    with open(path, "rb") as file:
        file.seek(max(0, size - length))
        line = file.read()
    require(line.startswith(MARK) and line[len(MARK):-1] == sha256(path, size - length).encode(),
            f"{path}: does not match its checksum; remove it, and --resume makes it anew")


def write_json(path, content) -> None:
    with PartialFile(path, overwrite=True) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        file.finish()


class Units:
    """The folder results.h5.partial of a run under way: run.json, the record that says which run it
    is, and a file for each finished unit. One process at a time."""

    def __init__(self, results: Path, record: dict, resume: bool, overwrite: bool):
        self.folder = results.with_name(results.name + ".partial")
        require(not resume or self.folder.exists() or not results.exists(), f"{results}: is "
                "complete; --overwrite begins anew")
        if results.exists() and not resume:
            require(overwrite, f"{results}: exists; --overwrite replaces it")
        if self.folder.exists() and not resume:
            require(overwrite, f"{self.folder}: a run was under way; --resume goes on with it, "
                    "--overwrite begins anew")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.folder / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise CaptureError(f"{self.folder}: another process is writing it") from None
        known = self.folder / "run.json"
        if resume and known.exists():
            self._compare(known, json.loads(json.dumps(record)))
        else:
            for old in self.folder.glob("unit-*"):
                old.unlink()
            write_json(known, record)

    @staticmethod
    def _compare(known: Path, record: dict):
        try:
            before = json.loads(known.read_text("utf-8"))
        except ValueError as error:
            raise CaptureError(f"{known}: {error}; --overwrite begins anew") from error
        require(isinstance(before, dict), f"{known}: must be a JSON object")
        for part in sorted(before.keys() | record.keys()):
            old, new = before.get(part), record.get(part)
            if isinstance(old, dict) and isinstance(new, dict):
                for name in sorted(old.keys() | new.keys()):
                    require(old.get(name) == new.get(name), f"{known}: {part} {name} was "
                            f"{old.get(name)!r}, is {new.get(name)!r}; --resume goes on with the "
                            "same run alone, --overwrite begins anew")
            else:
                require(old == new, f"{known}: {part} was {old!r}, is {new!r}; --overwrite begins "
                        "anew")

    def path(self, name: str) -> Path:
        return self.folder / f"unit-{name.replace(' ', '-')}.h5"

    def get(self, name: str, make) -> dict:
        """The arrays of a unit, of its file or of make()."""
        path = self.path(name)
        if not path.exists():
            arrays = make()
            write_h5(path, lambda file: [file.create_dataset(key, data=values)
                                         for key, values in arrays.items()])
        check_seal(path)
        with h5py.File(path, "r") as file:
            return {key: values[()] for key, values in file.items()}

    def done(self):
        """All units are in the results: the folder is not needed any more."""
        self._lock.close()
        shutil.rmtree(self.folder)

    def close(self):
        self._lock.close()
