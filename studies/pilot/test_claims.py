# SPDX-License-Identifier: MIT
"""The records of a pilot sweep against the claims of the paper's appendix, on made-up records whose
differences are known, and the page of the real ones."""

import csv
import json
import math
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from make_runs import write_arm, write_run

from msalab.results import ResultsError
from studies.pilot import claims, figures
from studies.pilot.__main__ import main
from studies.pilot.claims import CLAIMS, EXPECTED, Check, Interval, compare, judge, verdict_of
from studies.pilot.runs import chance_of_first_block, read_records

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "studies/pilot/records", ROOT / "studies/pilot/exploratory.md"
OF = {claim.key: claim for claim in CLAIMS}


@pytest.fixture
def made(tmp_path):
    """MSA as full attention but for 0.01, 0.02 and 0.03 bits per byte; the window 1 above MSA."""
    write_arm(tmp_path, "full", (2.0, 3.0, 4.0), attention="full")
    write_arm(tmp_path, "msa", (2.01, 3.02, 4.03), loss=1.5, spike=4.0)
    write_arm(tmp_path, "window", (3.01, 4.02, 5.03), attention="window", recall=(0, 0, 0, 0))
    return tmp_path


# Quantiles of the tables: 0.975 of Student's distribution.
@pytest.mark.parametrize("freedom, quantile", [
    (1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)])
def test_quantiles_of_students_distribution(freedom, quantile):
    assert claims.student_t(freedom) == pytest.approx(quantile, rel=1e-5)


def test_quantiles_in_closed_form():
    assert claims.student_t(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert claims.student_t(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


def test_paired_differences_and_their_interval(made):
    found = compare(read_records(made), Check("msa", "full", "bits_per_byte", "near"))
    assert found.seeds == pytest.approx({1: 0.01, 2: 0.02, 3: 0.03})
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) * 0.01 / math.sqrt(3)  # sd of the three is 0.01
    at = found.interval
    assert (at.n, at.mean) == (3, pytest.approx(0.02))
    assert (at.low, at.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    assert found.margin == pytest.approx(0.03)  # 1 % of the mean of 2, 3 and 4


@pytest.mark.parametrize("measure, expected", [
    ("bits_per_byte 128-256", 0.02), ("exact_match recall", 0.0), ("training_loss", 0.5),
    ("bytes_until_copying", 0.0), ("gradient_spike", 2.0), ("bits_per_byte at step 200", 0.02)])
def test_measures_of_a_run(made, measure, expected):
    found = compare(read_records(made), Check("msa", "full", measure, "near"))
    assert found.interval.mean == pytest.approx(expected)


def test_bytes_until_copying(made):
    run = read_records(made)["msa"][1]
    assert run.values["bytes_until_copying"] == 200 * 256 * 2  # 0.6 at step 200 is the first
    window = read_records(made)["window"][1]
    assert math.isnan(window.values["bytes_until_copying"])


def test_only_seeds_of_both_arms_are_paired(made):
    write_run(made, "full", 7, bits=9.0, attention="full")
    write_run(made, "msa", 8, bits=9.0)
    found = compare(read_records(made), Check("msa", "full", "bits_per_byte", "near"))
    assert list(found.seeds) == [1, 2, 3]


def test_two_seeds_give_no_interval(tmp_path):
    write_arm(tmp_path, "msa", (2.0, 2.0))
    write_arm(tmp_path, "window", (3.0, 3.0), attention="window")
    judged = judge(read_records(tmp_path), OF["window"])
    assert math.isnan(judged.found[0].interval.low)
    assert judged.found[0].interval.mean == pytest.approx(1)
    assert (judged.verdict, judged.reason) == ("undecided", "2 seeds give no interval")


@pytest.mark.parametrize("expected, low, high, verdict", [
    ("higher", 0.1, 9, "agree"), ("higher", -0.1, 9, "undecided"), ("higher", -9, 0.9, "disagree"),
    ("lower", -9, -0.1, "agree"), ("lower", -9, 0.1, "undecided"), ("lower", -0.9, 9, "disagree"),
    ("near", -0.9, 0.9, "agree"), ("near", -1.1, 0.9, "undecided"), ("near", 1.1, 9, "disagree"),
    ("near", -9, -1.1, "disagree"), ("no higher", -9, 0.9, "agree"),
    ("no higher", 0.9, 9, "undecided"), ("no higher", 1.1, 9, "disagree"),
    ("no lower", -0.9, 9, "agree"), ("no lower", -9, -0.9, "undecided"),
    ("no lower", -9, -1.1, "disagree")])
def test_the_rule(expected, low, high, verdict):
    assert verdict_of(expected, Interval(3, (low + high) / 2, low, high), 1.0) == verdict


def test_every_check_has_a_margin_and_an_expectation():
    for claim in CLAIMS:
        for check in claim.checks:
            assert check.measure.split(" ")[0] in claims.MARGINS
            assert check.expected in EXPECTED


def test_every_arm_of_a_claim_is_in_the_sweep():
    arms = json.loads((ROOT / "studies/pilot/appendix.json").read_text(encoding="utf-8"))["arms"]
    assert {name for claim in CLAIMS for check in claim.checks
            for name in (check.arm, check.against)} <= arms.keys()


def test_verdicts_of_claims(made):
    verdicts = {one.claim.key: one.verdict for one in claims.judge_all(read_records(made))}
    assert verdicts.pop("training-dynamics-pt") == "disagree"  # by training loss: 0.5 above 1
    assert verdicts.pop("window") == "agree"
    assert verdicts.pop("window-throughout") == "agree"
    assert verdicts.pop("emergence") == "agree"
    assert set(verdicts.values()) == {"waits for runs"}


def test_no_verdict_before_copying_has_emerged(made):
    write_run(made, "msa", 4, recall=(0, 0, 0, 0.4))
    judged = judge(read_records(made), OF["window"])
    assert (judged.verdict, judged.found) == ("undecided", ())
    assert judged.reason == "copying has not emerged in msa"


def test_evaluations_count_from_the_emergence_of_copying_on(made):
    judged = judge(read_records(made), OF["window-throughout"])
    assert [one.check.measure for one in judged.found] == [
        f"bits_per_byte at step {step}" for step in (200, 300, 400)]


def test_a_run_that_diverged_is_a_result(made):
    for arm, seeds in (("attached-w100", (1, 2, 3)), ("detached-w100", ())):
        write_arm(made, arm, (2.0, 2.0, 2.0))
        for seed in seeds:
            path = made / arm / f"seed-{seed}"
            (path / "summary.json").unlink()
            (path / "diverged.json").write_text('{"diverged_after": 70}')
    write_arm(made, "attached-w1", (2.51, 3.52, 4.53))
    assert judge(read_records(made), OF["detach"]).verdict == "agree"
    assert list(figures.pictures(read_records(made)))


def test_records_from_before_a_measure_was_there_do_not_count(made, capsys):
    """Three seeds have it, two are older: an interval of three, and no reason to be undecided."""
    for seed in (4, 5):
        write_run(made, "msa", seed, old=True)
    records = read_records(made)
    local = compare(records, Check("msa", "msa", "local_rate", "higher", "chance"))
    assert list(local.seeds) == [1, 2, 3]
    assert local.verdict == "agree"
    assert compare(records, Check("msa", "msa", "first_block_rate", "higher",
                                  "chance")).interval.n == 5
    assert judge(records, OF["emergence"]).verdict == "agree"
    assert main([str(made), "--out", str(made.parent / "out")]) == 0
    assert ("note: local_rate and far_overlap are not in the runs msa/4, msa/5, which were recorded "
            "before they were measured") in capsys.readouterr().err


def test_without_any_record_of_a_measure_its_check_says_so(tmp_path):
    write_arm(tmp_path, "msa", (2.0, 2.0, 2.0), old=True)
    judged = judge(read_records(tmp_path), OF["emergence"])
    assert (judged.verdict, judged.reason) == ("undecided", "")
    row = claims.claims_markdown(read_records(tmp_path)).splitlines()[-1]
    assert "local_rate − chance, msa: –" in row
    assert row.count("not in these records") == 2


def test_groups_that_share_their_far_blocks_disagree(tmp_path):
    write_arm(tmp_path, "msa", (2.0, 2.0, 2.0))
    for path in tmp_path.glob("msa/*/curves.csv"):
        path.write_text(path.read_text().replace(",0.3\n", ",0.9\n"))
    judged = judge(read_records(tmp_path), OF["emergence"])
    assert [one.verdict for one in judged.found] == ["agree", "agree", "agree", "disagree"]


def test_heads_that_give_their_mass_to_one_place(made):
    write_run(made, "sink", 1, heads=[(0.9, 0.5, 0.0), (0.9, 0.0, 0.3), (0.0, 0.0, 0.2), (0.0, 0.0, 0.05)])
    write_run(made, "full-sink", 1, attention="full", heads=[(0.2, None, None), (0.0, None, None)])
    records = read_records(made)
    # Of MSA the sparse mass counts, the layer's own attention.
    assert records["sink"][1].values["heads on token 0"] == 0.25
    assert records["sink"][1].values["heads on the sink"] == 0.5
    assert records["full-sink"][1].values["heads on token 0"] == 0.5
    assert "heads on the sink" not in records["full-sink"][1].values
    assert "heads on token 0" not in records["msa"][1].values


def test_the_learnable_sink_by_layer_and_head(made):
    """The mean over seeds; beside it token 0, in the attention that the layer does."""
    write_run(made, "sink", 1, heads=[(0.9, 0.5, 0.0), (0.9, 0.0, 0.3), (0.0, 0.0, 0.2), (0.0, 0.0, 0.05)])
    write_run(made, "sink", 2, heads=[(0.9, 0.5, 0.5), (0.9, 0.0, 0.3), (0.0, 0.0, 0.2), (0.0, 0.25, 0.15)])
    write_run(made, "full-sink", 1, attention="full", heads=[(0.2, None, 0.125), (0.0, None, 0.25)])
    figure, table = dict(figures.pictures(read_records(made)))["pilot_sink_by_head"]
    assert [axes.get_title(loc="left") for axes in figure.axes[:4]] == [
        "full-sink: learnable sink", "full-sink: token 0", "sink: learnable sink", "sink: token 0"]
    own = table.where(arm="sink")
    np.testing.assert_allclose(own["learnable_sink"], [0.25, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(own["token_0"], [0.5, 0, 0, 0.125])
    np.testing.assert_allclose(figure.axes[2].images[0].get_array(), [[0.25, 0.3], [0.2, 0.1]])
    assert list(table.where(arm="full-sink").rows()) == [("full-sink", 0, 0, 0.125, 0.2), ("full-sink", 0, 1, 0.25, 0.0)]
    assert "pilot_sink_by_head" not in dict(figures.pictures({"msa": read_records(made)["msa"]}))


def test_a_run_that_never_learns_is_told(made):
    """ln 16 = 4 bits, half of what guessing pays."""
    write_run(made, "attached-w100", 1, loss=math.log(16) + 0.01, bits=6.0)
    write_run(made, "attached-w100", 2, loss=math.log(16) - 0.01, bits=6.0)
    records = read_records(made)
    assert [run.values["stalled"] for run in records["attached-w100"].values()] == [1, 0]
    assert [run.values["diverged"] for run in records["attached-w100"].values()] == [0, 0]
    rows = [line for line in claims.stability_markdown(records).splitlines()
            if line.startswith("| attached")]
    assert rows == ["| attached-w100 | 1 | no | yes | 2.783 | 2.783 | 6.000 |",
                    "| attached-w100 | 2 | no | no | 2.763 | 2.763 | 6.000 |"]


def test_chance_of_the_first_block():
    """Three blocks, two of them chosen, one of these the local one: of the queries that see all
    three, half choose block 0."""
    assert chance_of_first_block({"context": 48, "block_size": 16, "top_k": 2,
                                  "forced_local": 1}) == 0.5


def test_arms_of_other_contexts_are_read_and_not_compared(made):
    for path in (made / "window").glob("*/summary.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"context": 256', '"context": 128'), encoding="utf-8")
    records = read_records(made)
    check = claims.Check("window", "msa", "bits_per_byte", "higher")
    with pytest.raises(ResultsError, match="context is 128, must be 256 as in .*msa"):
        claims.differences(records, check)


def break_json(path, change):
    summary = json.loads(path.read_text(encoding="utf-8"))
    change(summary)
    path.write_text(json.dumps(summary), encoding="utf-8")


@pytest.mark.parametrize("name, old, new, message", [
    ("curves.csv", "step,group", "stop,group", "line 1 must be step,group,name,part,value"),
    ("curves.csv", "100,train,loss,,1.5", "100,train,loss,,much", "must be step,group"),
    ("curves.csv", "100,train,loss,,1.5", "100,train,loss", "must be step,group"),
    ("curves.csv", "100,train,loss,,1.5", "0,train,loss,,1.5", "must come after 0"),
    ("curves.csv", "train,gradient_norm", "train,norm", "has no gradient_norm"),
    ("curves.csv", "400,evaluation,bits_per_byte", "401,evaluation,bits_per_byte", "at step 401"),
    ("summary.json", '"last_step": 400', '"stops": 400', "is damaged: KeyError: 'last_step'"),
    ("summary.json", '"positions"', '"by"', "has no table positions"),
    ("summary.json", "{", "", "not a readable JSON file"),
    ("summary.json", "msa-report", "msa-other", 'must be "msa-report"'),
    ("summary.json", '"context": 256', '"context": 128', "context is 128, must be 256")])
def test_damaged_records_are_refused(made, capsys, name, old, new, message):
    path = made / "msa/seed-2" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1) if old != "train,gradient_norm"
                    else text.replace(old, new), encoding="utf-8")
    assert main([str(made), "--out", str(made / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"{path}: " in error
    assert not (made / "out").exists()


def test_arms_may_be_packed(made, capsys):
    want, archive = read_records(made)["msa"], made / "runs.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        for folder in sorted((made / "msa").iterdir()):
            tar.add(folder / "summary.json", f"msa/{folder.name}/summary.json")
            tar.add(folder / "curves.csv", f"msa/{folder.name}/curves.csv")
    with pytest.raises(ResultsError, match="runs.tar.xz: there is a folder msa as well"):
        read_records(made)
    shutil.rmtree(made / "msa")
    assert list(read_records(made)) == ["full", "msa", "window"]
    got = read_records(made)["msa"]
    assert {seed: run.values for seed, run in got.items()} == \
        {seed: run.values for seed, run in want.items()}
    assert got[2].path == archive / "msa/seed-2"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-20])
    assert main([str(made), "--out", str(made / "out")]) == 2
    assert f"{archive}: is damaged: " in capsys.readouterr().err
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(made / "full/seed-1/curves.csv", "msa/seed-1/curves.csv")
    assert main([str(made), "--out", str(made / "out")]) == 2
    assert f"{archive}/msa/seed-1/summary.json" in capsys.readouterr().err
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(made / "full/seed-1/curves.csv", "seed-1/curves.csv")
    with pytest.raises(ResultsError, match="has seed-1/curves.csv, must have files of ARM/seed-S"):
        read_records(made)


def test_missing_files_and_folders_are_refused(made, capsys):
    (made / "msa/seed-2/curves.csv").unlink()
    assert main([str(made), "--out", str(made / "out")]) == 2
    assert str(made / "msa/seed-2/curves.csv") in capsys.readouterr().err
    with pytest.raises(ResultsError, match="has no folder ARM/seed-S"):
        read_records(made / "none")
    (made / "msa/first").mkdir()
    with pytest.raises(ResultsError, match="msa/first: must be a folder seed-S"):
        read_records(made)


def test_an_unknown_arm_is_refused(made, capsys):
    assert main([str(made), "--out", str(made / "out"), "--arms", "full,best"]) == 2
    assert "no arm best; it has full, msa, window" in capsys.readouterr().err


def test_the_command_writes_numbers_and_pictures(made, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(made), "--out", str(out)]) == 0
    assert "**waits for runs**" in capsys.readouterr().out
    names = ("pilot_by_position", "pilot_gradient", "pilot_held_out", "pilot_index_msa",
             "pilot_loss", "pilot_probes", "pilot_retrieval")
    assert {path.name for path in out.iterdir()} == {"pilot.csv", "pilot.json"} | {
        f"{name}.{ending}" for name in names for ending in ("png", "svg", "csv")}
    with open(out / "pilot.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    assert (first["claim"], first["measure"], first["seeds"]) == (
        "training-dynamics-pt", "bits_per_byte", "3")
    assert float(first["mean"]) == pytest.approx(0.02)
    written = json.loads((out / "pilot.json").read_text(encoding="utf-8"))
    assert [one["claim"] for one in written["claims"]] == [claim.key for claim in CLAIMS]
    assert written["claims"][0]["checks"][0]["differences"]["3"] == pytest.approx(0.03)


def test_pictures_show_the_numbers_of_the_records(made):
    records = read_records(made)
    figure, table = figures.bits_by_position(records)
    lines = {line.get_label(): line.get_xydata() for line in figure.axes[1].lines}
    np.testing.assert_allclose(lines["msa"], [[128, 0.02], [256, 0.02]])
    of_seed = table.where(curve="bits_per_byte − full", arm="msa", seed=3)
    np.testing.assert_allclose(of_seed["value"], [0.03, 0.03])
    _, table = figures.training_loss(records)
    np.testing.assert_allclose(table.where(curve="loss − full", arm="msa")["value"], 0.5)
    assert table["megabytes"].max() == 400 * 512 / 1e6
    _, table = figures.retrieval_curves(records)
    assert table.where(task="recall", arm="msa", seed=1)["exact_match"].tolist() == [0, .6, .9, 1]
    _, table = figures.index_by_layer(records)
    assert set(table.where(measure="mass_kept")["value"]) == {0.8}
    _, table = figures.gradient_norms(records)
    assert table.where(arm="msa", seed=2)["value"].tolist() == [1, 1, 1, 4, 1]
    figure, table = figures.probed_curves(records)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "score recall", "mass kept", "entropy dense, nats", "mass on token 0", "block 0 rate",
        "local rate", "far overlap"]
    assert set(table.where(curve="far_overlap")["arm"]) == {"msa"}
    assert set(table.where(curve="sink_mass_dense")["arm"]) == {"full", "msa", "window"}
    _, table = figures.held_out_loss(records)
    assert table.where(arm="msa", seed=1)["value"].tolist() == [5.01, 4.01, 3.01, 2.01]


def test_the_page_has_the_numbers_of_the_records():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("from studies/pilot/records -->") == len(claims.DOC_TABLES)
    assert claims.with_tables(page, read_records(RECORDS)) == page
    changed = page.replace("+0.0181", "+0.0182")
    assert changed != page == claims.with_tables(changed, read_records(RECORDS))


def test_the_pages_links_lead_to_files():
    links = re.findall(r"\]\((\.\.[^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if not (PAGE.parent / link).exists()]


def test_files_and_positions_without_held_out_bytes_are_not_compared(made, tmp_path, capsys):
    for path in made.glob("*/*/summary.json"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        for table in ("positions", "files"):
            summary["tables"][table]["rows"][0]["bits_per_byte"] = None
        path.write_text(json.dumps(summary), encoding="utf-8")
    assert main([str(made), "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out/pilot.csv").open(newline="", encoding="utf-8") as file:
        measures = {row["measure"] for row in csv.DictReader(file)}
    assert {"bits_per_byte of english", "bits_per_byte 128-256"} < measures
    assert not {"bits_per_byte of c", "bits_per_byte 0-128"} & measures


def test_pictures_of_runs_that_did_not_learn_say_so(tmp_path):
    write_arm(tmp_path, "full", (2.0, 2.0), attention="full", loss=5.0)
    for draw in (figures.training_loss, figures.bits_by_position):
        figure, _ = draw(read_records(tmp_path))
        assert "no run has learned" in figure.axes[0].texts[0].get_text()
    write_arm(tmp_path, "msa", (2.0, 2.0))  # beside a reference that is not drawn
    assert len(list(figures.pictures(read_records(tmp_path)))) == 7
    assert not figures.training_loss(read_records(tmp_path))[0].axes[0].texts
