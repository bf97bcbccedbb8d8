# SPDX-License-Identifier: MIT
"""The rules that studies/pilot/README.md registered for Pilot II, on made-up records whose differences are
known; and that the page has what the records say."""

import json
import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
from make_runs import write_run

from studies.pilot import answers, page as page_of, registered
from studies.pilot.claims import Check
from studies.pilot.runs import read_records

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "studies/pilot/records_2", ROOT / "studies/pilot/README.md"
BEFORE = ROOT / "studies/pilot/records"
NOTEBOOK = ROOT / "notebooks/06_pilot.ipynb"
OF = {claim.says: claim for claim in registered.CLAIMS}


def write_block_a(folder, above, seeds=registered.SEEDS["A"], **more):
    """Every arm of block A; `above`: arm -> bits per byte above msa by seed."""
    for arm in ("msa", "full", *registered.FORKED):
        for place, seed in enumerate(seeds):
            bits = 2.0 + 0.1 * place + above.get(arm, lambda place: 0.0)(place)
            attention = {"full": "passive", "window": "window"}.get(arm, "msa")
            write_run(folder, arm, seed, bits=bits, attention=attention, **more)


def wave(size, mean=0.0):
    """Differences of this mean and standard deviation, of six seeds."""
    return lambda place: mean + size * math.sqrt(5 / 6) * (-1) ** place


def test_an_arm_and_a_seed_are_one_run_in_all_blocks():
    """They have one folder in results/pilot and in the records: another run of that name would be taken for it."""
    runs = {}
    for path in sorted(PAGE.parent.glob("block_*.json")):
        sweep = json.loads(path.read_text(encoding="utf-8"))
        for arm, words in sweep["arms"].items():
            if "--fork" in words:  # gives the bytes of a run without a trunk
                words = [word for word in words if word not in ("--fork", "--start-from") and "{out}" not in word]
            for seed in sweep["seeds"]:
                assert runs.setdefault((arm, seed), [*sweep["words"], *words]) == [*sweep["words"], *words], path.name


def test_spread_is_pooled_within_a_family(tmp_path):
    write_block_a(tmp_path, {"window": wave(0.03), "blocks-32": wave(0.01), "full": wave(0.5)})
    records = read_records(tmp_path)
    check = Check("window", "msa", "bits_per_byte", "higher")
    spread, freedom = registered.pooled(records, "A", check)
    assert freedom == 5 * len(registered.FORKED)
    assert spread == pytest.approx(math.sqrt((0.03**2 + 0.01**2) / len(registered.FORKED)))
    # full is no arm of the family: its differences to msa have a spread of their own.
    own = registered.pooled(records, "A", Check("msa", "full", "bits_per_byte", "near"))
    assert own == (pytest.approx(0.5), 5)


def test_an_interval_is_that_of_two_one_sided_tests(tmp_path):
    write_block_a(tmp_path, {"full": wave(0.02, -0.005)})
    found = registered.compare(read_records(tmp_path), "A",
                               Check("msa", "full", "bits_per_byte", "near"))
    half = 2.01505 * 0.02 / math.sqrt(6)  # the 0.95 quantile of 5 degrees of freedom
    assert (found.mean, found.low, found.high) == (
        pytest.approx(0.005), pytest.approx(0.005 - half, rel=1e-4),
        pytest.approx(0.005 + half, rel=1e-4))
    assert found.margin == pytest.approx(0.01 * 2.245) and found.verdict == "agree"


@pytest.mark.parametrize("mean, verdict", [
    (0.0, "agree"), (0.004, "agree"), (0.02, "undecided"), (0.06, "disagree")])
def test_near_is_decided_by_the_margin(tmp_path, mean, verdict):
    write_block_a(tmp_path, {"blocks-128": wave(0.02, mean)})
    assert registered.judge(read_records(tmp_path), OF["block size changes little"])[1] == verdict


def test_a_claim_disagrees_by_holms_correction(tmp_path):
    """One of four checks is beyond its margin at 5 %, not at 5 % / 4."""
    verdicts = {}
    for checks, beyond in ((1, 1.8), (4, 1.8), (4, 3.0)):
        folder = tmp_path / f"{checks}-{beyond}"
        spread = 0.02
        error = spread * math.sqrt(1 / len(registered.FORKED)) / math.sqrt(6)
        write_block_a(folder, {"blocks-128": wave(spread, 0.0225 + beyond * error)})
        of = OF["block size changes little"]
        claim = registered.Claim("A", of.says, of.checks if checks == 4 else of.checks[2:3])
        verdicts[checks, beyond] = registered.judge(read_records(folder), claim)[1]
    assert verdicts == {(1, 1.8): "disagree", (4, 1.8): "undecided", (4, 3.0): "disagree"}


def test_a_difference_below_the_margin_is_not_higher(tmp_path):
    write_block_a(tmp_path, {"window": wave(0.001, 0.01)})
    found = registered.compare(read_records(tmp_path), "A",
                               Check("window", "msa", "bits_per_byte", "higher"))
    assert found.low > 0 and found.verdict == "undecided" and found.p < 0.05


def test_a_verdict_needs_every_seed(tmp_path):
    write_block_a(tmp_path, {"window": wave(0.01, 0.5)}, seeds=range(11, 16))
    found, verdict = registered.judge(read_records(tmp_path), OF["also along training"])
    assert verdict == "waits for runs" and found[0].missing == (16,)


def test_runs_of_other_blocks_seeds_change_nothing(tmp_path):
    """A2 asks on seeds of its own: they join neither the differences of A nor its spread or margin."""
    above = {"full": wave(0.02), "window": wave(0.01, 0.5)}
    write_block_a(tmp_path, above)
    alone = registered.judge(read_records(tmp_path), OF["MSA follows full attention"])
    for seed in registered.SEEDS["A2"]:
        write_run(tmp_path, "msa", seed, bits=3.0)
        write_run(tmp_path, "full", seed, bits=2.5, attention="passive")
    records = read_records(tmp_path)
    assert registered.judge(records, OF["MSA follows full attention"]) == alone
    found, verdict = registered.judge(records, OF["MSA follows full attention, asked again"])
    assert found[0].mean == pytest.approx(0.5) and verdict == "disagree"


def test_an_answer_is_the_check_that_decides(tmp_path):
    write_block_a(tmp_path, {"blocks-128": wave(0.02, 0.06)})
    lines = registered.answers_markdown(read_records(tmp_path), {}).splitlines()
    [size] = [line for line in lines if line.startswith("| block size changes little |")]
    assert "bits_per_byte, blocks-128" in size
    assert size.endswith("| **disagree** | at 4 blocks (2 of 128): disagrees; at the paper's 16 (block B2): agrees |")


def test_an_interval_by_the_own_spread_stands_beside_the_pooled_one(tmp_path):
    write_block_a(tmp_path, {"blocks-32": wave(0.002, 0.01), "window": wave(0.05, 0.3)})
    lines = registered.claims_markdown(read_records(tmp_path), {}).splitlines()
    [row] = [line for line in lines if "bits_per_byte, blocks-32 − msa" in line]
    half = 2.01505 * 0.002 / math.sqrt(6)
    assert f"| {0.01 - half:+.4f} to {0.01 + half:+.4f} |" in row
    [missing] = [line for line in lines if "bits_per_byte, blocks-32-8k − msa-8k" in line]
    assert "| none | none |" in missing


def test_no_verdict_before_copying_has_emerged(tmp_path):
    write_block_a(tmp_path, {}, recall=(0.0, 0.1, 0.2, 0.3))
    assert registered.judge(read_records(tmp_path),
                            OF["block size changes little"])[1] == "undecided"


def test_a_seed_of_a_run_that_failed_is_left_out(tmp_path):
    write_block_a(tmp_path, {})
    for seed, left, verdict in ((11, 5, "agree"), (12, 4, "undecided")):
        folder = tmp_path / "blocks-32" / f"seed-{seed}"
        for file in folder.iterdir():
            file.unlink()
        (folder / "diverged.json").write_text(json.dumps({"diverged_after": 7}))
        found = registered.compare(read_records(tmp_path), "A",
                                   Check("blocks-32", "msa", "bits_per_byte", "near"))
        assert (len(found.seeds), found.verdict) == (left, verdict)


def test_a_large_kl_weight_fails_where_its_twin_learns(tmp_path):
    fails, regresses = (OF["without detaching, a large KL weight fails"],
                        OF["and a stable one regresses"])
    assert registered.judge({}, regresses)[1] == "waits for runs"
    for failing, verdict in ((2, "agree"), (1, "undecided"), (0, "disagree")):
        folder = tmp_path / str(failing)
        for place, seed in enumerate(registered.SEEDS["D"]):
            write_run(folder, "attached-w10", seed, loss=3.5 if place < failing else 1.0)
            for arm in registered.ATTACHED[:4]:
                write_run(folder, arm, seed, bits=2.1)
            write_run(folder, "detached-w10", seed)
        records = read_records(folder)
        assert registered.judge(records, fails)[1] == verdict
        [found], _ = registered.judge(records, regresses)
        assert found.check.arm == ("attached-w5" if failing else "attached-w10")
        if failing:
            assert found.mean == pytest.approx(0.1) and found.verdict == "agree"


def test_quantiles_and_probabilities_agree():
    for freedom in (1, 5, 35):
        t = registered.student_t(freedom, 0.9)
        assert registered.p_of_disagreement("no higher", 1 + t, 1, 1, freedom) == \
            pytest.approx(0.05)
        assert registered.p_of_disagreement("no higher", 1 - t, 1, 1, freedom) == \
            pytest.approx(0.95)


def test_emergence_is_judged_against_chance(tmp_path):
    """k 4 of 16 blocks of 16 tokens; a query chooses the block before its own at a rate of 0.9."""
    write_block_a(tmp_path, {})
    claim = OF["the first block is chosen without being forced; heads differ"]
    found, verdict = registered.judge(read_records(tmp_path), claim)
    by_bar = {one.check.other: one for one in found}
    free = sum((3 - 0.9) / (seen - 2) for seen in range(5, 17)) / 12
    assert by_bar["chance given the neighbour"].mean == pytest.approx(1 - free)
    assert by_bar["one half"].mean == pytest.approx(0.3 - 0.5)
    assert verdict == "agree"


def test_the_sink_needs_no_run_of_its_own(tmp_path):
    """Its differences are those of the exploratory part; their spread is that of family A."""
    write_block_a(tmp_path / "now", {arm: wave(0.004) for arm in registered.FORKED})
    for seed in (1, 2, 3):
        for arm in ("msa", "full", "sink", "full-sink"):
            write_run(tmp_path / "before", arm, seed, bits=2.0 + 0.001 * seed * arm.endswith("sink"))
    claim = OF["a learnable sink gains nothing"]
    now, before = read_records(tmp_path / "now"), read_records(tmp_path / "before")
    found, verdict = registered.judge(now, claim, before)
    half = 1.68957 * 0.004 / math.sqrt(3)  # the 0.95 quantile of 35 degrees of freedom
    assert (found[0].mean, found[0].high) == (pytest.approx(0.002),
                                              pytest.approx(0.002 + half, rel=1e-4))
    assert verdict == "agree"
    assert registered.judge(now, claim)[1] == "waits for runs"
    assert registered.judge({}, claim, before)[1] == "waits for runs"


def test_pictures_of_what_is_there(tmp_path):
    write_block_a(tmp_path, {arm: wave(0.01, 0.02) for arm in registered.FORKED})
    for seed in registered.SEEDS["D"]:
        for weight, arm in enumerate(registered.ATTACHED):
            write_run(tmp_path, arm, seed, bits=2 + weight / 10, loss=3.5 if weight == 4 else 1.0)
        write_run(tmp_path, "detached-w10", seed)
    records = read_records(tmp_path)
    drawn = dict(answers.pictures(records, {}))
    assert list(drawn) == ["pilot_forest", "pilot_difference", "pilot_kinds", "pilot_spread",
                           "pilot_first_steps", "pilot_weights"]
    for figure, _ in drawn.values():
        for axes in figure.axes:
            lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
            assert len(lines) <= 6
            assert len({line.get_color() for line in lines}) == len(lines)
    spread = drawn["pilot_spread"][1]
    assert np.asarray(spread["difference"]) == pytest.approx(0.01)
    kinds = drawn["pilot_kinds"][1]
    assert np.asarray(kinds["mean"])[2] == pytest.approx(0.02)  # blocks-32 on C, behind two of msa


def test_the_sink_by_head_is_of_block_g_where_that_has_run(tmp_path):
    for folder, seed, mass in (("before", 1, 0.125), ("now", 11, 0.5)):
        write_run(tmp_path / folder, "sink", seed, heads=[(0.1, 0.1, mass)] * 4)
    now, before = read_records(tmp_path / "now"), read_records(tmp_path / "before")
    for records, mass in ((now, 0.5), ({}, 0.125)):
        _, table = dict(answers.pictures(records, before))["pilot_sink_by_head"]
        assert set(table["learnable_sink"]) == {mass}


def test_the_page_has_the_numbers_of_the_records():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("from studies/pilot/records_2 -->") == len(page_of.TABLES)
    records = read_records(RECORDS) if RECORDS.exists() else {}
    before = read_records(BEFORE)
    assert page_of.with_tables(page, records, before) == page
    spoilt = page.replace("| margin | seeds |", "| margin | seed |")
    assert spoilt != page == page_of.with_tables(spoilt, records, before)


def test_the_notebook_is_stored_with_the_numbers_of_the_records():
    shown = [output["data"]["text/markdown"]
             for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"
             for output in cell.outputs if "text/markdown" in output.get("data", {})]
    assert shown == [registered.answers_markdown(read_records(RECORDS), read_records(BEFORE))]
