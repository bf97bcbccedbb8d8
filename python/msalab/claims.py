# SPDX-License-Identifier: MIT
"""What several processes agree on in a folder that they share, as the programs do (core/io/claim.h). No result depends
on it: a claim only saves doing work twice."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

from .ending import Refusal

RENEW, STALE = 30, 300  # seconds
STALE_EMPTY = 10  # of a process that was killed before it wrote its name
TRIES = 3  # a stale one may go, or be taken, meanwhile
_numbers = itertools.count()


def _first_of(*names: str) -> int:
    """The number that the first set variable begins with, or 0: "2(x3)" is 2."""
    value = next((os.environ[name] for name in names if name in os.environ), "")
    found = re.match(r"[0-9]+", value)
    return int(found[0]) if found else 0


def launched_rank() -> int:
    """The rank that mpirun or srun gave this process; 0 without them."""
    return _first_of("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def launched_number() -> int:
    """Where this process begins among the units of a run: its rank, and its number in a job array of Slurm or of GNU
    parallel. Processes without a number begin at the same unit."""
    return launched_rank() + _first_of("SLURM_ARRAY_TASK_ID", "PARALLEL_SEQ")


def _start_of(process: int) -> int:
    """When a process of this host began, in ticks since the host did; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return 0
    state, *numbers = text[text.rindex(b")") + 1:].split()
    return 0 if state in (b"Z", b"X") else int(numbers[18])


def temporary_of(path: Path) -> Path:
    """`path`.HOST-PROCESS-NUMBER.tmp, another one at every call."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{next(_numbers)}.tmp")


def remove_abandoned(folder: Path) -> None:
    """The temporary files whose process ran on this host and has ended."""
    of_host = re.compile(rf".*\.{re.escape(socket.gethostname())}-([0-9]{{1,18}})-[0-9]+\.tmp")
    for path in folder.glob("*.tmp"):
        found = of_host.fullmatch(path.name)
        if found and _start_of(int(found[1])) == 0:
            path.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, if_absent: bool = False) -> None:
    """Durably and by a rename: several processes may write the same file, and the last one's stays; if_absent: unless
    it is there, and then of several processes one writes it. Refusal naming file and reason."""
    temporary = temporary_of(path)
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            if if_absent:
                os.link(temporary, path)
            else:
                temporary.replace(path)
        except FileExistsError:
            pass
    except OSError as error:
        raise Refusal(f"cannot write {path}: {error.strerror}") from error
    finally:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass  # the first error is the one reported


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _holder_in(content: bytes) -> dict:
    try:
        found = json.loads(content)
    except ValueError:
        return {}  # it is being written
    return found if isinstance(found, dict) else {}


def _age_of(file: Path) -> float | None:
    """Seconds since it changed by the clock of its file system: those of hosts may differ."""
    clock = temporary_of(file)
    try:
        then = file.stat().st_mtime
        clock.touch(exist_ok=False)
        return clock.stat().st_mtime - then
    except FileNotFoundError:
        return None
    except OSError:
        return 0
    finally:
        try:
            clock.unlink(missing_ok=True)
        except OSError:
            pass


def _is_stale(file: Path, content: bytes) -> bool:
    of = _holder_in(content)
    if of.get("host") == socket.gethostname():
        process = of.get("process")
        start = _start_of(process) if isinstance(process, int) else 0
        return start == 0 or start != of.get("process_start")
    age = _age_of(file)
    return age is not None and age > (STALE if content else STALE_EMPTY)


def holder_of(file: Path) -> str:
    """"process 12 of HOST" has it; empty if it is free or stale."""
    content = _content(file)
    if content is None or _is_stale(file, content):
        return ""
    of = _holder_in(content)
    return f"process {of.get('process')} of {of['host']}" if "host" in of else "another process"


class Claim:
    """A file that says which process does a piece of work. The process renews it until it ends, or leaves the
    context. A claim is stale if its process ran on this host and has ended, or if it was not renewed for STALE."""

    def __init__(self, file: Path, content: bytes):
        self._file, self._content, self._ended = file, content, threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True)
        self._renewal.start()

    def _renew(self):
        while not self._ended.wait(RENEW):
            try:
                os.utime(self._file)
            except OSError:
                pass  # another process took it for stale

    def is_held(self) -> bool:
        """Whether no other process took it for stale."""
        return _content(self._file) == self._content

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._renewal.join()
        if self.is_held():
            self._file.unlink(missing_ok=True)


def take(file: Path) -> Claim | None:
    """What is free or stale; None if another process has it, or if there is no folder. Refusal naming file and
    reason if the claim cannot be written."""
    own = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "process_start": _start_of(os.getpid()),
                      "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}).encode() + b"\n"
    for _ in range(TRIES):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return None
        except FileExistsError:
            found = _content(file)
            if found is not None and not _is_stale(file, found):
                return None
            if found is not None and _content(file) == found:
                file.unlink(missing_ok=True)
            continue
        except OSError as error:
            raise Refusal(f"cannot write {file}: {error.strerror}") from error
        try:
            with open(descriptor, "wb") as claim:
                claim.write(own)
        except OSError as error:
            file.unlink(missing_ok=True)
            raise Refusal(f"cannot write {file}: {error.strerror}") from error
        return Claim(file, own)
    return None
