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


def same_or_refused(place: str, before: dict, record: dict, way_out: str) -> None:
    """CaptureError naming the first difference of two records."""
    require(isinstance(before, dict), f"{place}: must be a JSON object")
    for part in sorted(before.keys() | record.keys()):
        old, new = before.get(part), record.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            for name in sorted(old.keys() | new.keys()):
                require(old.get(name) == new.get(name), f"{place}: {part} {name} was "
                        f"{old.get(name)!r}, is {new.get(name)!r}{way_out}")
        else:
            require(old == new, f"{place}: {part} was {old!r}, is {new!r}{way_out}")


def read_json(path):
    """CaptureError naming the file where it holds none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CaptureError(f"{path}: {error}; --overwrite begins anew") from error


def partial_folder(results: Path) -> Path:
    return results.with_name(results.name + ".partial")


def unit_path(folder: Path, name: str) -> Path:
    return folder / f"unit-{name.replace(' ', '-')}.h5"


def read_unit(path) -> dict:
    """The arrays of a finished unit. CaptureError where its bytes do not match its checksum."""
    check_seal(path)
    with h5py.File(path, "r") as file:
        return {key: values[()] for key, values in file.items()}


def lock_folder(folder: Path):
    """An open file: nobody else writes into the folder until it is closed."""
    lock = open(folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise CaptureError(f"{folder}: another process is writing it") from None
    return lock


class Units:
    """The folder results.h5.partial of a run under way: run.json, the record that says which run it
    is; plan.json, what its results need beside that and the units, and which shard of it the folder
    is for; and a file for each finished unit. One process at a time."""

    def __init__(self, results: Path, record: dict, plan: dict, resume: bool, overwrite: bool):
        self.folder = partial_folder(results)
        self.record = json.loads(json.dumps(record))
        require(not resume or self.folder.exists() or not results.exists(), f"{results}: is "
                "complete; --overwrite begins anew")
        if results.exists() and not resume:
            require(overwrite, f"{results}: exists; --overwrite replaces it")
        if self.folder.exists() and not resume:
            require(overwrite, f"{self.folder}: a run was under way; --resume goes on with it, "
                    "--overwrite begins anew")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.folder)
        try:
            self._begin(resume, plan)
        except BaseException:
            self._lock.close()
            raise

    def _begin(self, resume: bool, plan: dict):
        known = self.folder / "run.json"
        if resume and known.exists():
            same_or_refused(str(known), read_json(known), self.record,
                            "; --resume goes on with the same run alone, --overwrite begins anew")
        else:
            for old in self.folder.glob("unit-*"):
                old.unlink()
            write_json(known, self.record)
        write_json(self.folder / "plan.json", plan)

    def make(self, name: str, make) -> None:
        """The unit's file is there, with the arrays of make() where it was not."""
        path = unit_path(self.folder, name)
        if path.exists():
            return check_seal(path)
        arrays = make()
        write_h5(path, lambda file: [file.create_dataset(key, data=values)
                                     for key, values in arrays.items()])

    def make_all(self, names, makers, note) -> None:
        """make() of each, which `makers` has by name."""
        for done, name in enumerate(names):
            note(f"{done + 1}/{len(names)}: {name}")
            self.make(name, makers[name])

    def read(self, name: str) -> dict:
        return read_unit(unit_path(self.folder, name))

    def done(self):
        """All units are in the results: the folder is not needed any more."""
        self._lock.close()
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lock.close()
