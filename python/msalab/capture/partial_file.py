# SPDX-License-Identifier: MIT
"""A file that has its name only when it is whole."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path

from .layer import CaptureError, require


class PartialFile(io.FileIO):
    """`path`.partial, empty, open for reading and writing, locked against other processes until
    finish() gives it its name. Leaving the context before that removes it. An existing `path` is
    refused unless `overwrite`, and stays as it is until finish().

    HDF5 crashes when it closes a file after a write failed. So it is never told: the first failure
    is kept for check(), and what is written after it goes nowhere."""

    def __init__(self, path, overwrite: bool = False):
        self.path = Path(path)
        require(overwrite or not os.path.lexists(self.path), f"{path}: exists; --overwrite "
                "replaces it")
        require(self.path.is_file() or not self.path.exists(), f"{path}: is no regular file")
        require(self.path.parent.is_dir(), f"{path}: there is no folder {self.path.parent}")
        self.partial = self.path.with_name(self.path.name + ".partial")
        self._failure: OSError | None = None
        super().__init__(self._open_locked(), "r+")

    def _open_locked(self) -> int:
        while True:
            try:
                file = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise CaptureError(f"{self.path}: cannot write {self.partial}: "
                                   f"{error.strerror}") from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise CaptureError(f"{self.path}: another process is writing it") from None
            except OSError:
                pass  # the file system has no locks
            if self._is_partial(file):
                os.ftruncate(file, 0)
                return file
            os.close(file)  # of another process, which gave it its name or removed it meanwhile

    def _is_partial(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.partial))
        except FileNotFoundError:
            return False

    def write(self, data) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and self._failure is None:
            try:
                rest = rest[super().write(rest):]
            except OSError as error:
                self._failure = error
        return size

    def truncate(self, size=None) -> int:
        if self._failure is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self._failure = error
        return self.tell() if size is None else size

    def check(self):
        """CaptureError if a write has failed."""
        if self._failure is not None:
            raise CaptureError(f"{self.path}: {self._failure.strerror}") from self._failure

    def finish(self):
        """Waits until the bytes are on the device, then gives the file its name."""
        self.check()
        try:
            os.fsync(self.fileno())
        except OSError as error:
            self._failure = error
        self.check()
        self.partial.replace(self.path)
        self.close()

    def __exit__(self, *_):
        if not self.closed:
            self.partial.unlink(missing_ok=True)
            self.close()
