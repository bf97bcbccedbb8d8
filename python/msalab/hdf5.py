# SPDX-License-Identifier: MIT
"""What an object of an HDF5 file must be to be read: of this file alone, and written."""

from __future__ import annotations

import math

import h5py
import numpy as np

LARGEST_RATIO = 1032  # bytes that deflate, the filter of the formats, makes of one, at most


def checked(found, file: h5py.File, place: str, error: type[Exception]):
    """The object that a path of the open file has led to; raises error("place, what is wrong with it")."""
    fault = _fault_of(found, file)
    if fault is not None:
        raise error(f"{place} {fault}")
    return found


def _fault_of(found, file: h5py.File) -> str | None:
    if _file_number(found) != _file_number(file):
        return (f"is an external link into {found.file.filename}, must lie in the file itself (h5py's copy with "
                "expand_external=True)")
    return _fault_of_dataset(found) if isinstance(found, h5py.Dataset) else None


def _fault_of_dataset(found: h5py.Dataset) -> str | None:
    if found.is_virtual or found.external:
        return (f"{'is a virtual dataset' if found.is_virtual else 'has external storage'}, whose values lie in other "
                "files; must lie in the file itself: read it with h5py and write its values into a new file")
    filters = found.id.get_create_plist()
    for number in range(filters.get_nfilters()):
        code, _, _, name = filters.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            return (f"is stored with filter {code} ({name.decode(errors='replace') or 'without a name'}), which this HDF5 "
                    "library has not got: write it with gzip, shuffle or fletcher32, or without (h5repack -f NONE, "
                    "where the filter is installed)")
    return _fault_of_values(found) or _fault_of_size(found) if found.size else None


def _fault_of_size(found: h5py.Dataset) -> str | None:
    stored = min(found.id.get_storage_size(), found.file.id.get_filesize())
    if found.nbytes <= LARGEST_RATIO * stored:
        return None
    return f"has shape {found.shape}, {found.nbytes} bytes, more than the {stored} bytes that the file stores can hold"


def _fault_of_values(found: h5py.Dataset) -> str | None:
    if not found.id.get_storage_size():
        return ("was never written: the file stores no byte of it; a dataset that is not known must not be there")
    chunks = math.prod(-(-size // of) for size, of in zip(found.shape, found.chunks or found.shape))
    written = found.id.get_num_chunks() if found.chunks else chunks
    if written < chunks:
        return (f"holds {written} of its {chunks} chunks of {found.chunks[0]} rows: the others were never written")
    return None


def _file_number(found) -> int:
    return h5py.h5o.get_info(found.id).fileno


def attribute(value):
    """Texts of fixed length come as bytes; one value may stand in an array of one."""
    if isinstance(value, np.ndarray) and value.shape == (1,):
        value = value[0]
    return value.decode() if isinstance(value, bytes) else value
