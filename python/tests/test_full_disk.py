# SPDX-License-Identifier: MIT
"""What msalab.capture leaves behind when the disk is full or another process writes the same file."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_capture_files import Fake, random_layer

from msalab.capture import ActivationsWriter, CaptureError, capture, partial_file
from msalab.capture.__main__ import main
from msalab.capture.partial_file import PartialFile
from msalab.capture.reader import ActivationsReader

ROOT = Path(__file__).parents[1]

# A process that may write no file larger than so many bytes: writes beyond fail, as on a full disk.
LIMITED = """
import os, resource, signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
import test_full_disk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
before = sorted(os.listdir())
for limit in {limits}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    code, where = test_full_disk.{task}()
    assert (code, sorted(os.listdir())) == (2, before), (limit, where, code, os.listdir())
print("all failed well")
"""


def task_capture():
    try:
        capture(Fake(), [range(3000)], "out.h5")
    except CaptureError as error:
        assert str(error) == f"out.h5: {os.strerror(errno.EFBIG)}"
        return 2, "capture"
    return 0, "capture"


def task_import():
    return main(["convert", "a.safetensors", "--out", "out.h5"]), "import"


def task_rotate():
    return main(["convert", "pre.h5", "--apply-rope", "--rope-theta", "1e4", "--out",
                 "out.h5"]), "rotate"


def task_export():
    return main(["convert", "a.h5", "--out", "out.safetensors"]), "export"


@pytest.mark.parametrize("task", ["task_capture", "task_import", "task_rotate", "task_export"])
def test_a_full_disk_is_a_message_and_leaves_nothing(tmp_path, task):
    capture(Fake(), [range(1500)], tmp_path / "a.h5")
    capture(Fake(lambda *of: replace(random_layer(*of), q_state="pre_rope", k_state="pre_rope")),
            [range(1500)], tmp_path / "pre.h5")
    assert main(["convert", str(tmp_path / "a.h5"), "--out", str(tmp_path / "a.safetensors")]) == 0
    limits = [0, 1, 100, 3000, 10000, 40000, 100000, 150000, 300000, 500000]
    script = LIMITED.format(tests=str(ROOT / "tests"), root=str(ROOT), limits=limits, task=task)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (0, "all failed well\n"), done.stderr[-2000:]
    if task != "task_capture":
        assert done.stderr.count("error: out.") == len(limits), done.stderr
        assert "File too large" in done.stderr and "Traceback" not in done.stderr


def test_a_second_writer_is_refused_and_the_first_one_ends_well(tmp_path):
    path = tmp_path / "a.h5"
    with ActivationsWriter(path, model_id="first", model_config="{}", producer="",
                           cu_seqlens=[0, 8]) as first:
        first.write(0, 0, random_layer(8))
        for overwrite in (False, True):
            with pytest.raises(CaptureError, match="a.h5: another process is writing it"):
                capture(Fake(), [range(8)], path, overwrite=overwrite)
        first.finish()
    with ActivationsReader(path) as file:
        assert (file.model_id, file.layers) == ("first", [0])
        file.layer(0)
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_file_that_was_finished_while_it_was_opened_stays_whole(tmp_path, monkeypatch):
    """The other process renames its file after this one has opened it, before this one locks it."""
    path, lock = tmp_path / "a.h5", partial_file.fcntl.flock
    (tmp_path / "a.h5.partial").write_text("of the other process")

    def flock(*arguments):
        if not path.exists():
            (tmp_path / "a.h5.partial").rename(path)
        lock(*arguments)

    monkeypatch.setattr(partial_file.fcntl, "flock", flock)
    with PartialFile(path) as file:
        assert path.read_text() == "of the other process"
        file.write(b"mine")
    assert os.listdir(tmp_path) == ["a.h5"]


@pytest.mark.parametrize("make, words", [
    (lambda path: path.mkdir(), "is no regular file"),
    (lambda path: os.mkfifo(path), "is no regular file"),
    (lambda path: path.with_name("a.h5.partial").mkdir(), "cannot write .*a.h5.partial")])
def test_what_cannot_be_replaced_is_refused(tmp_path, make, words):
    make(tmp_path / "a.h5")
    before = os.listdir(tmp_path)
    with pytest.raises(CaptureError, match=f"a.h5: {words}"):
        capture(Fake(), [range(8)], tmp_path / "a.h5", overwrite=True)
    assert os.listdir(tmp_path) == before


@pytest.mark.parametrize("name", ["\udcff", "a\0b"])
def test_names_that_cannot_be_stored_are_refused_before_work(tmp_path, name):
    model = Fake()
    model.model_id = name
    with pytest.raises(CaptureError, match="model_id .* cannot be stored"):
        capture(model, [range(8)], tmp_path / "a.h5")
    assert not os.listdir(tmp_path)
