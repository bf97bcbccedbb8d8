# SPDX-License-Identifier: MIT
"""cases.npz: the inputs and answers of every case. `python -m msalab.conform.archive` writes it anew.

Arrays are stored once, as the smallest type that holds their values: the entry `cases`, a text of JSON, says for each
case which array is which input or answer, in which shape.
"""

import json
import zipfile
from pathlib import Path

import numpy as np

from .cases import SAME_IDS, all_cases
from .reference import answer

PATH = Path(__file__).with_name("cases.npz")
VERSION = 1
INTEGERS = {"ids", "ids_buffer", "cu_seqlens_q", "cu_seqlens_k", "page_table", "lengths", "copies", "positions_q",
            "positions_k", "index_q8", "index_k8", "k8", "v8"}
OF_KEYS = {"d_k": "k", "d_v": "v", "d_index_k": "index_k", "kl_d_k": "k", "index_k": "index_k_plain"}
STRIDED = slice(2, 5)  # slots of ids_buffer that are ids


def small(values):
    """The same values in the smallest type that is read back without loss."""
    for kind in (np.int8, np.int16, np.float16, np.float32):
        with np.errstate(all="ignore"):
            if values.dtype.kind == "f" and (np.signbit(values) & (values == 0)).any() and kind(0).dtype.kind == "i":
                continue
            if np.array_equal(values.astype(kind).astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
                return values.astype(kind)
    return values


def sampled(name, values, rows):
    """Of large answers the rows that the archive keeps; of keys every 40th."""
    name = name.removesuffix("_size")
    if name in ("ids", "kl", "kl_d_q", "kl_d_k"):  # small, or zeros
        return values
    return values[key_rows(len(values)) if name in OF_KEYS else rows or slice(None)]


def key_rows(count):
    return slice(7, None, max(1, count // 8))


def build():
    """name -> array of the archive. What is the beginning of another array is not stored again."""
    wanted, listed = [], []

    def keep(label, values):
        values = small(np.ascontiguousarray(values))
        place = {"array": label, "shape": list(values.shape)}
        wanted.append((label, values, place))
        return place

    for case in all_cases():
        entry = {"name": case.name, "about": case.about, "wants": list(case.wants), "rows": case.rows,
                 "exact": case.exact, "in": {}, "numbers": {}, "out": {}}
        for name, value in case.given.items():
            if isinstance(value, np.ndarray):
                entry["in"][name] = keep(f"{case.name}/in/{name}", value)
            elif name != "wants":
                entry["numbers"][name] = value
        found = answer(usable(case.given))
        for name in (*case.wants, *(f"{want}_size" for want in case.wants if f"{want}_size" in found)):
            values = sampled(name, found[name], case.rows)
            if name in ("out", "lse", "index_q", "index_k") or name.endswith("_size"):
                values = values.astype(np.float32)
            entry["out"][name] = keep(f"{case.name}/out/{name}", values)
        listed.append(entry)
    arrays, stored = {}, []
    for label, values, place in sorted(wanted, key=lambda one: -one[1].nbytes):
        code = values.tobytes()
        for other, kind, longer in stored:
            if kind == values.dtype and longer.startswith(code):
                place["array"] = other
                break
        else:
            stored.append((label, values.dtype, code))
            arrays[label] = values
    same = [{"name": name, "of": parts, "rows": rows} for name, parts, rows in SAME_IDS]
    text = json.dumps({"format": "msalab-conform", "version": VERSION, "cases": listed, "same_ids": same}, indent=1)
    arrays["cases"] = np.frombuffer(text.encode(), np.uint8)
    return arrays


def usable(given):
    """The inputs as a system gets them: ids of a buffer as a view of it, whose rows are not contiguous."""
    if "ids_buffer" not in given:
        return given
    return {**given, "ids": given["ids_buffer"][:, :, STRIDED]}


class Archive:
    """The cases of the file, in order."""

    def __init__(self, path=PATH):
        with np.load(path) as file:
            self.arrays = {name: file[name] for name in file.files}
        about = json.loads(self.arrays.pop("cases").tobytes())
        if (about.get("format"), about.get("version")) != ("msalab-conform", VERSION):
            raise ValueError(f"{path} is {about.get('format')} {about.get('version')}, must be msalab-conform "
                             f"{VERSION}")
        self.cases, self.same_ids = about["cases"], about["same_ids"]

    def _array(self, place):
        values = self.arrays[place["array"]].reshape(-1)
        return values[:int(np.prod(place["shape"]))].reshape(place["shape"])

    def given(self, case):
        found = {"case": case["name"], "wants": tuple(case["wants"]), **case["numbers"]}
        for name, place in case["in"].items():
            values = self._array(place)
            if name not in ("index_q8", "index_k8", "k8", "v8"):
                values = values.astype(np.int32 if name in INTEGERS else np.float32)
            elif name in ("k8", "v8"):
                values = values.astype(np.uint8)
            found[name] = np.ascontiguousarray(values)
        return usable(found)

    def right(self, case):
        return {name: self._array(place).astype(np.int32 if name == "ids" else np.float64)
                for name, place in case["out"].items()}


def write(path, arrays):
    """As np.savez_compressed does, at the highest level."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, values in arrays.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values)


def main():
    write(PATH, build())
    print(f"{PATH}: {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
