# SPDX-License-Identifier: MIT
"""Work in steps, each of which is done once."""

import pytest

from msalab.results import ResultsError
from msalab.steps import DONE, Step, done_steps, left, run, run_all


def make_step(name, source, log, fails=False):
    def work():
        log.append(name)
        if fails:
            raise KeyboardInterrupt
    return Step(name, "something", 1, (source,), work)


def test_a_step_is_done_once_and_again_when_its_input_changes(tmp_path):
    source, log = tmp_path / "in", []
    source.write_text("a")
    one, two = make_step("one", source, log), make_step("two", source, log, fails=True)
    run(one, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(two, tmp_path)
    assert left([one, two], tmp_path) == [two]
    source.write_text("other")
    assert left([one, two], tmp_path) == [one, two] and log == ["one", "two"]


def test_a_record_of_steps_that_is_damaged_is_named(tmp_path):
    (tmp_path / DONE).write_text("{")
    with pytest.raises(ResultsError, match="steps.json: not a readable JSON file"):
        done_steps(tmp_path)


def test_what_follows_a_step_that_is_done_again_is_done_again(tmp_path):
    source, log, notes = tmp_path / "in", [], []
    source.write_text("a")
    every = [make_step(name, source, log) for name in ("one", "two", "three")]
    run_all(every, tmp_path, notes.append)
    assert log == ["one", "two", "three"] and notes[0] == "3 steps, about 00:03 on two quiet cores"
    every[1] = Step("two", "something", 1, (source,), every[1].run, ("other",))
    run_all(every, tmp_path, notes.append)
    assert log[3:] == ["two", "three"] and "2 steps, about 00:02 on two quiet cores; 1 are done" in notes


def test_what_was_begun_as_other_work_is_removed(tmp_path):
    """A program refuses to go on with the folder of another run; the same work goes on, done or not."""
    folder, seen = tmp_path / "work", []

    def work(stop):
        seen.append(folder.exists())
        folder.mkdir(exist_ok=True)
        if stop:
            raise KeyboardInterrupt

    def attempt(option, stop=False):
        try:
            run(Step("one", "something", 1, (), lambda: work(stop), (option,), folder), tmp_path)
        except KeyboardInterrupt:
            pass

    attempt("a", stop=True)
    attempt("a")
    attempt("b", stop=True)
    attempt("b")
    assert seen == [False, True, False, True]
    folder.rename(tmp_path / "kept")
    (tmp_path / DONE).unlink()
    folder.mkdir()
    attempt("c")  # nobody knows whose it is
    assert seen[-1]
