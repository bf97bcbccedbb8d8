# SPDX-License-Identifier: MIT
"""The conformance kit: its archive, its runner in a clean environment, faults that it must name, the systems here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msalab.conform import archive, check
from msalab.conform.__main__ import main, run
from msalab.conform.archive import PATH, Archive
from msalab.conform.faults import FAULTS
from msalab.conform.reference import Reference, answer

FOLDER = PATH.parent
CASES = Archive()
NAMES = [case["name"] for case in CASES.cases]


class System:
    """A function as the runner takes it."""

    about = "a function of the tests"

    def __init__(self, function, **rules):
        self.function, self.rules = function, rules

    def __call__(self, case, given):
        return self.function(given)


def outcome(name, function, **rules):
    rows = [row for row in run(CASES, System(function, **rules), name) if row[0] == name]
    return rows[0][1:]


def without(function, *names):
    def answers(given):
        return {name: value for name, value in function(given).items() if name not in names}
    return answers


def test_the_archive_is_what_its_script_writes():
    made = archive.build()
    with np.load(PATH) as file:
        assert sorted(file.files) == sorted(made)
        for name in made:
            assert file[name].dtype == made[name].dtype
            if name.endswith(("/out/ids", "cases")) or "/in/" in name:
                np.testing.assert_array_equal(file[name], made[name], err_msg=name)
            else:  # exp and log of another library may differ in the last place
                np.testing.assert_allclose(np.float64(file[name]), np.float64(made[name]), rtol=1e-6, atol=1e-12,
                                           err_msg=name)
    assert PATH.stat().st_size < 2_000_000


def test_operands_are_exact_in_bfloat16_and_float16():
    for case in CASES.cases:
        for name, values in CASES.given(case).items():
            if name.removesuffix("_pages").removeprefix("new_") in ("q", "k", "v", "index_q", "index_k", "d_out"):
                assert np.array_equal(check.bfloat16(values), values, equal_nan=True), (case["name"], name)
                if case["exact"]:
                    assert np.array_equal(np.float32(np.float16(values)), values, equal_nan=True), (case["name"], name)


def test_sums_of_exact_cases_are_exact():
    for case in CASES.cases:
        given = Reference().packed(CASES.given(case))
        for rows, keys in (("index_q", "index_k"), ("q", "k")):
            if case["exact"] and rows in given and keys in given:
                most = np.nanmax(np.abs(given[rows])) * np.nanmax(np.abs(given[keys])) * given[rows].shape[-1]
                assert most < 2 ** 24, case["name"]


def test_a_copy_of_the_folder_runs_with_numpy_alone(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__", "adapters"))
    code = ("import sys\nfrom kit.__main__ import main\n"
            "code = main(['--call', 'kit.reference:answer', '--only', 'attend.strided'])\n"
            "others = {name.split('.')[0] for name in sys.modules} & {'msalab', 'torch', 'h5py', 'ml_dtypes'}\n"
            "assert not others, others\nsys.exit(code)")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
                         env={"PATH": "/usr/bin:/bin"})
    assert ran.returncode == 0, ran.stderr
    assert "1 pass" in ran.stdout


def test_the_reference_passes():
    for family in ("scores.", "select.", "rope.", "batch.", "same.batch", "attend.e", "attend.n", "pages.n", "layer.d"):
        for name, found, remark in run(CASES, System(answer), family):
            assert found == check.PASS or name.startswith("same."), (name, remark)


CAUGHT = {"head-major ids": "attend.equal-axes", "strided ids": "attend.strided", "stale index keys": "pages.prefix",
          "coarse exponential": "attend.massive", "padded keys score 0": "attend.far-below",
          "ties by batch": "batch.second"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_public_fault_is_caught_by_name(name):
    found, remark = outcome(CAUGHT[name], FAULTS[name])
    assert found == check.FAIL
    assert f"known fault '{name}'" in remark


def test_zeros_of_padding_are_caught_in_selection_too():
    found, remark = outcome("select.far-below", FAULTS["padded keys score 0"])
    assert found == check.FAIL and "known fault 'padded keys score 0'" in remark


def test_coarse_exponentials_in_bfloat16_show_with_massive_channels_alone():
    """Without lse, which tells them at once: where no few keys decide, their errors average out."""
    coarse = without(FAULTS["coarse exponential"], "lse")
    for name in ("attend.equal-axes", "attend.short-rows", "attend.sinks", "layer.decode", "pages.of-32"):
        assert outcome(name, coarse)[0] == check.PASS, name
    assert outcome("attend.massive", coarse)[0] == check.FAIL


def test_ties_by_batch_are_caught_whatever_the_rule_of_ties():
    rows = {name: (found, remark) for name, found, remark in
            run(CASES, System(FAULTS["ties by batch"], ties="nobody names an order"), "batch")}
    assert rows["batch.second"][0] == check.RULE
    assert rows["same.batch"][0] == check.FAIL
    assert "with the same inputs" in rows["same.batch"][1]


class OtherTies(Reference):
    def tie(self, given, i, block):
        return -block


class RoundedScores(Reference):
    def scores(self, given):
        return check.bfloat16(super().scores(given)).astype(np.float64)


class NoLocal(Reference):
    def choose(self, given, i, scores, blocks):
        return super().choose({**given, "forced_local": 0}, i, scores, blocks)


class Fills(Reference):
    def candidates(self, scores, blocks):
        scores[np.isnan(scores)] = -np.inf
        return list(range(blocks))


@pytest.mark.parametrize("rule, system, case", [("ties", OtherTies, "scores.ties"),
                                                ("fills", Fills, "scores.minus-infinity"),
                                                ("bfloat16 scores", RoundedScores, "select.massive"),
                                                ("local block", NoLocal, "scores.plain")])
def test_a_rule_that_is_declared_differs_and_does_not_fail(rule, system, case):
    found, remark = outcome(case, system())
    assert found == check.FAIL and f"'{rule}', which it does not declare" in remark
    found, remark = outcome(case, system(), **{rule: "the manual, page 1"})
    assert found == check.RULE and "the manual, page 1" in remark


def test_rows_are_sets_but_hold_no_block_twice():
    reverse = {"ids": answer(CASES.given(CASES.cases[0]))["ids"][:, :, ::-1]}
    assert outcome("scores.plain", lambda given: reverse)[0] == check.PASS
    twice = reverse["ids"].copy()
    twice[2, 1, 1] = twice[2, 1, 0]
    found, remark = outcome("scores.plain", lambda given: {"ids": twice})
    assert found == check.FAIL and "1 of 12 rows, the first: query 2, group 1" in remark


def test_the_first_number_out_of_bounds_is_named():
    right = answer(CASES.given(CASES.cases[NAMES.index("layer.drafts")]))
    right["out"][3, 17, 5] += 0.01
    found, remark = outcome("layer.drafts", lambda given: right)
    assert found == check.FAIL and remark.startswith("out: 1 of 8192 numbers, the first at [3, 17, 5]: ")


def test_teacher_of_mean_logits_is_another(monkeypatch):
    class MeanLogits(Reference):
        def teacher(self, logits):
            return self.softmax(logits.mean(axis=0))[0]
    found, remark = outcome("gradient.kl-warm-up", MeanLogits())
    assert found == check.FAIL and remark.startswith("kl: ")

    class Attached(Reference):
        def kl(self, given):
            found = super().kl(given)
            found["kl_d_k"][3, 0, 1] = 1e-7
            return found
    found, remark = outcome("gradient.kl-warm-up", Attached())
    assert found == check.FAIL and remark.startswith("kl_d_k: 1 of ")


def test_answers_of_another_shape_or_kind_are_told():
    found, remark = outcome("scores.plain", lambda given: {"ids": np.zeros((2, 6, 6), np.int32)})
    assert (found, remark) == (check.FAIL, "ids are int32 [2, 6, 6], must be integers [6, 2, 6]")
    assert "precision is 'fp4'" in outcome("scores.plain", lambda given: {"ids": [], "precision": "fp4"})[1]
    assert outcome("scores.plain", lambda given: {}) == (check.ABSENT, "")


def test_dumps_are_read_and_inputs_exported(tmp_path, capsys):
    assert main(["--export", str(tmp_path / "in")]) == 0
    assert len(list((tmp_path / "in").iterdir())) == len(NAMES)
    (tmp_path / "got").mkdir()
    for name in ("scores.ties", "batch.chunk"):
        with np.load(tmp_path / "in" / f"{name}.npz") as file:
            given = {key: file[key] if file[key].ndim else file[key].item() for key in file.files}
        np.savez(tmp_path / "got" / f"{name}.npz", ids=OtherTies()(given)["ids"])
    (tmp_path / "got" / "scores.nan.npz").write_bytes(b"nothing")
    capsys.readouterr()
    assert main(["--dump", str(tmp_path / "got"), "--rules", "ties"]) == 1
    told = capsys.readouterr().out
    assert re.search(r"scores.ties +differs by rule +ties: .*\(--rules\)", told)
    assert re.search(r"scores.plain +not supported +no scores.plain.npz", told)
    assert re.search(r"scores.nan +fail +.*scores.nan.npz: ", told)
    assert told.endswith(f"0 pass, 2 differs by rule, {len(NAMES) + len(CASES.same_ids) - 3} not supported, 1 fail\n")
    assert main(["--dump", str(tmp_path / "none")]) == 2
    with pytest.raises(SystemExit):
        main(["--dump", str(tmp_path), "--rules", "luck"])


@pytest.mark.parametrize("call, said", [("msalab.conform.reference", "must be MODULE:FUNCTION"),
                                        ("msalab.conform.reference:nothing", "has no function nothing"),
                                        ("no_such_module:answer", "no_such_module"),
                                        ("msalab.conform.reference:Reference", "no case was answered; of scores.plain: "
                                                                               "TypeError: Reference() takes no arguments")])
def test_a_call_that_cannot_be_made_is_told(call, said, capsys):
    assert main(["--call", call]) == 2
    assert said in capsys.readouterr().err


def test_the_specification_names_every_case():
    text = (Path(__file__).parents[2] / "docs/conformance.md").read_text(encoding="utf-8")
    missing = [name for name in NAMES + [one["name"] for one in CASES.same_ids] if f"`{name}`" not in text]
    assert not missing


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_msalab_passes(backend):
    pytest.importorskip("msalab._msalab")
    from msalab.conform.adapters import ours
    for name, found, remark in run(CASES, System(getattr(ours, backend)), "."):
        if name == "attend.strided":
            assert "not contiguous" in remark
            continue
        assert found == check.PASS, (name, remark)


@pytest.mark.parametrize("adapter", ["ours:torch_cpu", "transformers_m3:answer", "flex:answer"])
def test_systems_of_torch_do_not_fail(adapter):
    pytest.importorskip("torch")
    if adapter.startswith("ours"):
        pytest.importorskip("msalab._msalab")
    elif adapter.startswith("trans"):
        pytest.importorskip("transformers")
    from importlib import import_module
    module, name = adapter.split(":")
    module = import_module(f"msalab.conform.adapters.{module}")

    def answers(given):
        try:
            return getattr(module, name)(given)
        except (NotImplementedError, ValueError):
            return {}
    outcomes = [found for family in ("select.", "attend.", "layer.d", "gradient.kl-w")
                for _, found, remark in run(CASES, System(answers, **module.RULES), family)]
    assert check.FAIL not in outcomes and outcomes.count(check.PASS) > 6


def test_kernels_are_interpreted_without_what_their_package_brings(tmp_path, monkeypatch):
    """Of vLLM and SGLang the files of the kernels alone are imported where there is no GPU."""
    common = pytest.importorskip("msalab.conform.adapters.common")
    kernels = tmp_path / "an_engine" / "models"
    kernels.mkdir(parents=True)
    (tmp_path / "an_engine/__init__.py").write_text("raise ImportError('compiled parts')")
    (kernels / "__init__.py").write_text("raise ImportError('all models')")
    (kernels / "ops.py").write_text("from an_engine.platforms import platform\nfound = platform + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    packages, instead = ("an_engine", "an_engine.models"), {"an_engine__platforms": {"platform": 6}}
    before = set(sys.modules)
    try:
        common.bare(packages, **instead)
        with pytest.raises(ImportError, match="compiled parts"):  # on a GPU the package is as it is
            __import__("an_engine.models.ops")
        monkeypatch.setattr(common, "ALONE", True)
        common.bare(packages, **instead)
        assert __import__("an_engine.models.ops", fromlist=["found"]).found == 7
        with pytest.raises(ModuleNotFoundError, match="no_such_engine"):
            common.bare(("no_such_engine",))
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_all_systems_make_one_table(tmp_path, capsys, monkeypatch):
    from msalab.conform import systems
    rows = [("scores.ties", check.FAIL, "wrong"), ("scores.nan", check.PASS, "")]
    monkeypatch.setattr(systems, "ADAPTERS", ("vllm:answer", "reference:answer"))
    monkeypatch.setattr(systems, "run_one", lambda adapter, only, folder, seconds: {"adapter": adapter} | (
        {"about": "the reference", "rows": rows} if adapter.startswith("ref") else {"error": "not installed"}))
    assert main(["--all", "--only", "scores.t", "--json", str(tmp_path / "record.json")]) == 1
    told = capsys.readouterr().out
    assert "  1  reference:answer: the reference" in told and "  -  vllm:answer: not installed" in told
    assert re.search(r"^scores.ties +F$", told, re.MULTILINE) and "reference:answer scores.ties: wrong" in told
    assert '"format": "msa-conform"' in (tmp_path / "record.json").read_text()


def test_a_system_that_is_not_there_is_told(tmp_path):
    from msalab.conform import systems
    record = systems.run_one("no_such_adapter:answer", "scores.t", tmp_path, 60)
    assert "no_such_adapter" in record["error"] and record["command"].endswith("no_such_adapter:answer")


SLOW = """from .. import reference
RULES = {}
calls = []


def answer(given):
    calls.append(given)
    if len(calls) > 2:
        HOW
    return reference.answer(given)
"""


@pytest.mark.parametrize("how, said", [("__import__('time').sleep(99)", "stopped after 8 s"), ("__import__('os')._exit(9)", "exit code 9")])
def test_what_a_system_answered_before_it_was_stopped_counts(how, said, tmp_path, capsys, monkeypatch):
    """The kit is copied, so that it has an adapter of this test."""
    shutil.copytree(FOLDER, tmp_path / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kit/adapters/slow.py").write_text(SLOW.replace("HOW", how))
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib import import_module
    systems = import_module("kit.systems")
    monkeypatch.setattr(systems, "ADAPTERS", ("slow:answer",))
    assert systems.run_all("scores.", tmp_path / "record.json", 8) == 0
    told = capsys.readouterr().out
    assert f"slow:answer: {said}, 2 cases before" in told
    assert re.search(r"^pass +2$", told, re.MULTILINE)
    for name in [name for name in sys.modules if name.split(".")[0] == "kit"]:
        del sys.modules[name]
