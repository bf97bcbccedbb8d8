# SPDX-License-Identifier: MIT
"""Ctrl-C in a command of the package."""

import signal

import pytest

from msalab.__main__ import main


def interrupt(*_, **__):
    raise KeyboardInterrupt


def outcome(arguments):
    try:
        return main(arguments)
    except KeyboardInterrupt:  # would end pytest, too
        return "traceback"


@pytest.mark.parametrize("command, place", [
    (["plot", "a.h5"], "msalab.plots.__main__.Results"),
    (["check-batching"], "msalab.batching.present"),
    (["convert", "a.npy", "--state", "post_rope"], "msalab.capture.__main__.run_convert")])
def test_it_ends_without_a_traceback(tmp_path, monkeypatch, capsys, command, place):
    if command[0] == "check-batching":
        pytest.importorskip("msalab._msalab")
    monkeypatch.setattr(place, interrupt)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = ["a.h5"] if command[0] == "check-batching" else ["--out", str(tmp_path / "out")]
    assert outcome([*command, *arguments]) == 130
    assert capsys.readouterr().err == "interrupted\n"
