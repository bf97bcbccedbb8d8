# SPDX-License-Identifier: MIT
"""The units of a run of `msalab evaluate`: each is a file of JSON in OUT/units that its process renames when its bytes
are on the device. Any number of processes do a run together, each started with the same command; who finds all units
there makes the results. Claims (claims.py) only save doing a unit twice."""

from __future__ import annotations

import json
import shutil
import time
import zlib
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from .. import claims, hdf5, results
from ..capture.layer import CaptureError, require
from ..ending import Refusal
from .files import read_json, same_or_refused, verify_checksum
from .results import complete

CHECK = ', "crc32": '  # of the text without it
PROGRAM = "msalab evaluate"
RESULTS = "results"  # the claim of who makes them
WAITS = 0.02, 1.0  # seconds between two looks at what others do: at first, at most
SAID_AFTER = 2.0  # seconds, whom a process waits for


def _text(content: dict) -> bytes:
    text = json.dumps(content)
    return f"{text[:-1]}{CHECK}{zlib.crc32(text.encode())}}}\n".encode()


def _content(path: Path) -> dict:
    """CaptureError naming a file that has changed."""
    text, _, check = path.read_bytes().decode("utf-8", "replace").rpartition(CHECK)
    text += "}"
    require(check == f"{zlib.crc32(text.encode())}}}\n", f"{path}: does not match its checksum; remove it, and the "
            "same command makes it anew")
    content = json.loads(text)
    require(isinstance(content, dict) and content.keys() == {"run", "device", "unit", "arrays"},
            f"{path}: is no unit of msalab evaluate; remove it")
    return content


def _arrays(unit: dict) -> dict:
    return {name: np.array(one["values"], one["dtype"]) for name, one in unit["arrays"].items()}


class Folder:
    """OUT, and OUT/units while a run is under way. run.json there says which run it is, also before a unit is done; it
    goes first when all is done. record: that of this run, as JSON has it."""

    def __init__(self, out: Path, record: dict):
        self.out, self.record = out, json.loads(json.dumps(record))
        self.units, self.results = out / "units", out / "results.h5"

    def file_of(self, name: str) -> Path:
        return self.units / f"{name.replace(' ', '-')}.json"

    def claim_of(self, name: str) -> Path:
        return self.units / f"{name.replace(' ', '-')}.claim"

    def finished(self, names) -> set[str]:
        """Which of these units are there."""
        try:
            there = {path.name for path in self.units.iterdir()}
        except FileNotFoundError:
            return set()
        return {name for name in names if self.file_of(name).name in there}

    def begin(self, overwrite: bool) -> None:
        """Joins the run under way in the folder, or begins one. CaptureError where another run is in the way."""
        known = self._known()
        claimed = any(claims.holder_of(path) for path in self.units.glob("*.claim"))
        if known is not None and known != self.record:
            if overwrite:
                require(not claimed, f"{self.results}: another process is writing it")
            elif claimed or self.results.exists() or any(self._files()):
                self._require_ours(self.units, known)
            (self.units / "run.json").unlink(missing_ok=True)
        if overwrite and not claimed:
            for path in [*self._files()]:
                path.unlink(missing_ok=True)
        if overwrite:  # older results stay until there are others
            self._publish()
        if not self.is_complete():
            claims.remove_abandoned(self.units)
            for path in [*self._files()]:
                self.read(path)
        elif not claimed:  # one was killed while it removed them
            shutil.rmtree(self.units, ignore_errors=True)

    def is_complete(self) -> bool:
        """Whether the results of this run are there. If not, the run of the folder is this one when this returns."""
        while (known := self._known()) is None:
            if self.results.exists():
                self._require_results()
                return True
            self._publish()
        self._require_ours(self.units, known)
        return False

    def read(self, path: Path) -> dict:
        """A unit. CaptureError where it is damaged or of another run."""
        unit = _content(path)
        self._require_ours(path, unit["run"])
        return unit

    def write(self, name: str, device: str, arrays: dict) -> None:
        claims.write_file(self.file_of(name), _text({"run": self.record, "device": device, "unit": name, "arrays": {
            key: {"dtype": str(one.dtype), "values": one.tolist()} for key, one in arrays.items()}}))

    def leave(self) -> None:
        """Leaves nothing of a run that has done nothing."""
        if self._known() == self.record and not self.results.exists() and not any(self._files()) \
                and not any(self.units.glob("*.claim")):
            self.end()

    def end(self) -> None:
        (self.units / "run.json").unlink(missing_ok=True)  # without it the folder is no run to go on with
        shutil.rmtree(self.units, ignore_errors=True)

    def _files(self):
        return (path for path in self.units.glob("*.json") if path.name != "run.json")

    def _known(self) -> dict | None:
        path = self.units / "run.json"
        try:
            return read_json(path) if path.exists() else None
        except FileNotFoundError:
            return None

    def _publish(self) -> None:
        self.units.mkdir(parents=True, exist_ok=True)
        try:
            claims.write_file(self.units / "run.json", f"{json.dumps(self.record, indent=1)}\n".encode(), if_absent=True)
        except Refusal:
            if self.units.exists():
                raise  # else another process has just ended

    def _require_ours(self, place: Path, known: dict) -> None:
        same_or_refused(str(place), known, self.record, "; it is of another run, --overwrite begins anew")

    def _require_results(self) -> None:
        """CaptureError where the results are damaged or of another run."""
        verify_checksum(self.results)
        try:
            with h5py.File(self.results) as file:
                run = hdf5.checked(file["run"], file, f"{self.results}: /run", CaptureError)
                found = {name: run.attrs.get(name) for name in self.record}
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise CaptureError(f"{self.results}: is no result of msalab evaluate ({error}); --overwrite replaces it"
                               ) from error
        require(found == {name: value if isinstance(value, (str, int)) else json.dumps(value)
                          for name, value in self.record.items()},
                f"{self.results}: is of another run; --overwrite replaces it")


class _Patience:
    """Waits for others, longer each time, and says for whom."""

    def __init__(self, note):
        self._note, self._since, self._seconds = note, None, WAITS[0]

    def reset(self):
        self._since, self._seconds = None, WAITS[0]

    def wait(self, folder: Folder, names):
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif self._since != 0 and now - self._since > SAID_AFTER:
            held = {name: claims.holder_of(folder.claim_of(name)) for name in names}
            self._note("waits for what others do: " + "; ".join(f"{name}, {who}" for name, who in held.items() if who))
            self._since = 0  # once
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, WAITS[1])


def _answer_of(path: Path) -> results.Report:
    require(path.is_file(), f"{path}: no such file; --overwrite begins anew")
    try:
        return results.open(path, PROGRAM)
    except results.ResultsError as error:
        raise CaptureError(f"{error}; it is not of this run, --overwrite begins anew") from error


def _make_results(folder: Folder, plan: dict, note) -> results.Report:
    """results.h5, summary.json and pictures; returns the answer."""
    devices: dict[str, None] = {}

    def read(name: str) -> dict:
        unit = folder.read(folder.file_of(name))
        devices[unit["device"]] = None
        return _arrays(unit)

    try:
        answer = complete(folder.out, folder.record, plan, read)
    except (KeyError, TypeError) as error:
        raise CaptureError(f"{folder.units}: its units are not of this run ({type(error).__name__}: {error}); --overwrite "
                           "begins anew") from error
    if len(devices) > 1:
        note(f"note: the run had several devices: {'; '.join(devices)}. Where these are of one kind, so are the last "
             "bits of their numbers")
    return answer


def work(out: Path, options, record, plan, makers, note, watch=None) -> results.Report:
    """Does units until all are done, by this process or by others; returns the answer, which one of them writes. makers:
    how to make each unit of the run, by name. watch.begin(names) gets the units that are not done, watch.count(names)
    those that others have done since; watch.left() returns how long the rest takes."""
    folder = Folder(out, record)
    try:
        return _work(folder, options, plan, makers, note, watch)
    except BaseException:
        with suppress(OSError, Refusal):  # the first error is said
            folder.leave()
        raise


def _work(folder: Folder, options, plan, makers, note, watch) -> results.Report:
    names, patience = list(makers), _Patience(note)
    folder.begin(options.overwrite)
    first = claims.launched_number() % len(names)
    in_turn, counted = names[first:] + names[:first], None
    while not folder.is_complete():
        done = folder.finished(names)
        left = [name for name in in_turn if name not in done]
        if watch is not None and counted is None:
            watch.begin(left)
        elif watch is not None:
            watch.count(done - counted)
        counted = done
        name, claim = next(((name, claim) for name in left or [RESULTS] if (claim := claims.take(folder.claim_of(name)))),
                           (None, None))
        if claim is None:
            patience.wait(folder, left or [RESULTS])
            continue
        patience.reset()
        with claim:
            try:
                if folder.is_complete() or folder.file_of(name).exists():
                    continue
                if name == RESULTS:
                    answer = _make_results(folder, plan, note)
                    folder.end()
                    return answer
                note(f"{len(done) + 1}/{len(names)}: {name}{watch.left() if watch is not None else ''}")
                folder.write(name, plan["device"], {key: np.asarray(values) for key, values in makers[name]().items()})
                counted.add(name)
            except (Refusal, OSError):
                if claim.is_held():
                    raise  # else another process took it over, or has made the results
    if counted is None:
        note(f"{folder.results}: is complete")
    return _answer_of(folder.out / results.SUMMARY)
