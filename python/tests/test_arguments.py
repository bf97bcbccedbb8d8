# SPDX-License-Identifier: MIT
"""The command line of msalab: what may have been meant, what it can do, examples."""

import re
from pathlib import Path

import pytest

from msalab.__main__ import GROUPS, PROGRAMS, TOOLS, main
from msalab.arguments import INDEX_DIM, CommandLine, did_you_mean

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("word, known, meant", [
    ("orcale", ["index", "oracle", "oracle-logit"], " (did you mean 'oracle'?)"),
    ("Mean_Key", ["mean-key", "window"], " (did you mean 'mean-key'?)"),
    ("evalute", ["evaluate", "merge"], " (did you mean 'evaluate'?)"),
    ("tran", ["train", "trim"], " (did you mean 'train'?)"),
    ("ab", ["abc", "abd", "xy"], " (did you mean 'abc' or 'abd'?)"),
    ("best", ["index", "oracle"], ""), ("x", ["y"], ""), ("", ["a"], "")])
def test_what_was_meant(word, known, meant):
    assert did_you_mean(word, known) == meant


def test_an_index_head_is_as_wide_as_the_programs_have_it():
    header = (ROOT / "experiments/driver/presets.h").read_text(encoding="utf-8")
    assert re.findall(r"int64_t kDefaultIndexDim = (\d+);", header) == [str(INDEX_DIM)]


def refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_an_unknown_option_names_the_one_that_was_meant(capsys):
    evaluate = ["evaluate", "model", "--text", "a", "--out", "b"]
    assert "--top_k (did you mean '--top-k'?)" in refused([*evaluate, "--top_k", "3"], capsys)
    assert "--blocksize=64 (did you mean '--block-size'?)" in refused([*evaluate, "--blocksize=64"], capsys)
    assert "did you mean" not in refused([*evaluate, "--quickly"], capsys)


@pytest.mark.parametrize("command, old, meant", [
    (["train", "model", "--data", "a"], "--decay", "--weight-decay"),
    (["train", "model", "--data", "a"], "--norm", "--index-norm"),
    (["train", "model", "--data", "a"], "--warmup", "--warmup-steps, --lr-warmup"),
    (["evaluate", "model", "--text", "a", "--out", "b"], "--selector", "--selectors"),
    (["try", "model", "--text", "a", "--out", "b"], "--top", "--top-k")])
def test_the_words_of_an_option_name_it_and_do_not_stand_for_it(command, old, meant, capsys):
    assert f"unrecognized arguments: {old}, but there is {meant} 1" in refused([*command, old, "1"], capsys)


def test_an_unknown_choice_names_the_one_that_was_meant(capsys):
    words = ["evaluate", "model", "--text", "a", "--out", "b", "--dtype", "bflaot16"]
    assert "invalid choice: 'bflaot16' (did you mean 'bfloat16'?)" in refused(words, capsys)


def test_an_unknown_command_names_the_one_that_was_meant(capsys):
    assert main(["evalute"]) == 2
    assert "'evalute' is no command (did you mean 'evaluate'?)" in capsys.readouterr().err


def test_without_arguments_it_says_what_it_can_do(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", said, re.MULTILINE) for name in (*TOOLS, *PROGRAMS))


def test_every_command_is_in_one_group():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted({*TOOLS, *PROGRAMS})


def test_questions_are_those_of_the_programs():
    rows = (ROOT / "experiments/programs.def").read_text(encoding="utf-8")
    assert PROGRAMS == dict(re.findall(r'^MSA_PROGRAM\(\w+, "msa-([a-z-]+)", "([^"]*)"', rows, re.MULTILINE))


@pytest.mark.parametrize("tool", ["capture", "convert", "evaluate", "plot", "train"])
def test_help_has_ten_options_and_help_all_has_all(tool, capsys):
    listed = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main([tool, flag])
        assert ended.value.code == 0
        listed[flag] = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    usual = listed["--help"] - {"--help-all"}
    assert usual < listed["--help-all"] and len(usual) <= 10


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_help_has_an_example(tool, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main([tool, "--help"])
    assert ended.value.code == 0
    assert re.search(rf"^ +msalab {tool} ", capsys.readouterr().out, re.MULTILINE)


def test_the_example_of_a_help_stays_as_it_is(capsys):
    CommandLine(prog="x", example="x --a 1 \\\n    --b 2").print_help()
    assert "example:\n  x --a 1 \\\n    --b 2\n" in capsys.readouterr().out
