# SPDX-License-Identifier: MIT
"""Named arrays of other formats: safetensors, npz, npy. One array is read at a time."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes  # noqa: F401  gives numpy the name "bfloat16", which safetensors asks for
import numpy as np
from safetensors import safe_open

from .layer import CaptureError, as_bfloat16, native, require


class Source:
    """Arrays of one .safetensors or .npz file, or of several .npy files, each under its stem."""

    def __init__(self, paths):
        self.paths = [Path(path) for path in paths]
        kinds = {path.suffix for path in self.paths}
        require(len(kinds) == 1 and (len(self.paths) == 1 or kinds == {".npy"}),
                f"{', '.join(map(str, paths))}: one .safetensors or .npz file, or .npy files, are "
                "read at a time")
        kind, path = kinds.pop(), self.paths[0]
        self.metadata = {}
        try:
            if kind == ".safetensors":
                self._file = safe_open(path, "numpy")
                self._names, self._get = list(self._file.keys()), self._file.get_tensor
                self.metadata = self._file.metadata() or {}
            elif kind == ".npz":
                file = np.load(path)
                self._names, self._get = file.files, file.__getitem__
            elif kind == ".npy":
                files = {path.stem: path for path in self.paths}
                self._names, self._get = list(files), lambda name: np.load(files[name])
                for path in self.paths:
                    np.load(path, mmap_mode="r")
            else:
                raise CaptureError(f"{path}: is no .safetensors, .npz, .npy or .h5 file")
        except CaptureError:
            raise
        except FileNotFoundError as error:
            raise CaptureError(f"{path}: No such file or directory") from error
        except Exception as error:  # the libraries raise errors of many types on damaged files
            why = getattr(error, "strerror", None) or error
            raise CaptureError(f"{path}: cannot be read: {why}") from error

    def names(self) -> list[str]:
        return self._names

    def place(self, name: str) -> str:
        """Begins the messages about an array: its file and name."""
        several = {path.stem: path for path in self.paths[1:]}
        return f"{several.get(name, self.paths[0])}: {name}"

    def read(self, name: str) -> np.ndarray:
        """Floating values as float16, bfloat16 or float32; float64 is rounded to float32. numpy
        has no bfloat16 in its files: 16-bit words that are no numbers or unsigned ones are it."""
        values = self.stored(name)
        if values.dtype == np.float64:
            return values.astype(np.float32)
        return as_bfloat16(values) if values.dtype in (np.uint16, np.dtype("V2")) else values

    def stored(self, name: str) -> np.ndarray:
        """Of the type that the file has, as ids of 16 bits, which are no floating values."""
        try:
            values = self._get(name)
        except Exception as error:  # damaged, or larger than the memory
            raise CaptureError(f"{self.place(name)}: cannot be read: {error}") from error
        require(isinstance(values, np.ndarray), f"{self.place(name)}: is no array of numpy's")
        return native(values)
