# SPDX-License-Identifier: MIT
"""The rule of block E, on made-up records whose differences are known."""

import math

import pytest
from make_runs import write_run

from studies.pilot import attached
from studies.pilot.claims import NOT_RUN, UNDECIDED
from studies.pilot.runs import read_records

BEST = "attached-w0_1-lr1"


def write_rates(folder, fails=()):
    """At 1e-3 all are best; `fails`: (arm, seed) of a run that learns nothing."""
    for arms in attached.RATES.values():
        for rate, arm in arms.items():
            for seed in attached.RATE_SEEDS:
                write_run(folder, arm, seed, bits={"0.5": 2.0, "1": 1.9, "2": 2.1}[rate],
                          loss=3.9 if (arm, seed) == fails else 1.0)


def write_block(folder, above, noise=0.002, seeds=attached.SEEDS, copied=None):
    """E2; `above`: arm -> bits per byte above the attached arm, at every evaluation."""
    for place, seed in enumerate(seeds):
        for arm in (BEST, "full-lr1", "msa", *attached.CONTROLS):
            bits = 2.0 + 0.1 * place
            if arm != BEST:
                bits += above.get(arm, 0.05) + noise * (-1) ** place
            write_run(folder, arm, seed, bits=bits,
                      **({"recall": copied(arm)} if copied else {}))


def verdict(folder):
    return attached.verdict(attached.gains(read_records(folder)))


def test_the_best_rate_is_that_of_the_lowest_mean(tmp_path):
    write_rates(tmp_path)
    assert attached.best_rates(read_records(tmp_path)) == {
        "full": "full-lr1", "msa": "msa", "attached": BEST}


def test_a_rate_with_a_run_that_failed_is_not_chosen(tmp_path):
    write_rates(tmp_path, fails=("full-lr1", 12))
    assert attached.best_rates(read_records(tmp_path))["full"] == "full-lr0_5"


def test_without_a_run_no_rate_is_chosen_and_nothing_is_decided(tmp_path):
    write_rates(tmp_path)
    write_block(tmp_path, {})
    (tmp_path / BEST / "seed-13" / "summary.json").unlink()
    (tmp_path / BEST / "seed-13" / "curves.csv").unlink()
    (tmp_path / BEST / "seed-13").rmdir()
    records = read_records(tmp_path)
    assert "attached" not in attached.best_rates(records) and attached.gains(records) == []
    assert verdict(tmp_path) == NOT_RUN
    assert "(2 of 3)" in attached.rates_markdown(records, {})


def test_the_interval_is_that_of_the_pooled_spread(tmp_path):
    write_rates(tmp_path)
    write_block(tmp_path, {"msa": 0.03}, noise=0.01)
    row = next(row for row in attached.gains(read_records(tmp_path))
               if row.against == "msa" and not row.aligned)
    spread = 0.01 * math.sqrt(6 / 5)
    half = 1.6896 * spread / math.sqrt(6)  # 7 families of 5 degrees of freedom
    assert (row.mean, row.high) == (pytest.approx(-0.03), pytest.approx(-0.03 + half, rel=1e-3))


@pytest.mark.parametrize("above, expected", [
    ({}, UNDECIDED),  # accepted but for the control that has no kernel
    ({"full-lr1": 0.001}, attached.NOT_CONFIRMED), ({"msa": -0.05}, attached.NOT_CONFIRMED),
    ({"control-teacher": 0.0}, attached.NOT_CONFIRMED)])
def test_every_comparison_must_be_lower(tmp_path, above, expected):
    write_rates(tmp_path)
    write_block(tmp_path, above)
    assert verdict(tmp_path) == expected


def test_a_gain_that_is_gone_where_copying_is_as_old_is_one_of_time(tmp_path):
    """One bit less at each evaluation: the attached arm copies one evaluation sooner."""
    write_rates(tmp_path)
    write_block(tmp_path, {}, copied=lambda arm: (0.6, 0.9, 1.0, 1.0) if arm == BEST else
                (0.0, 0.6, 0.9, 1.0))
    aligned = [row for row in attached.gains(read_records(tmp_path)) if row.aligned]
    assert [row.mean for row in aligned] == [pytest.approx(0.95)] * 2
    assert verdict(tmp_path) == attached.SOONER


def test_holms_correction_is_over_the_controls():
    def rows(*ps):
        return [attached.Gain("control", False, 6, -1, -2, -0.1, p) for p in ps]
    assert attached._lower_by_holm(rows(0.009, 0.012, 0.016, 0.024, 0.049))
    assert not attached._lower_by_holm(rows(0.011, 0.012, 0.016, 0.024, 0.049))
    assert not attached._lower_by_holm(rows(0.001, 0.001, 0.001, 0.001, 0.051))


def test_a_seed_that_is_missing_twice_waits(tmp_path):
    write_rates(tmp_path)
    write_block(tmp_path, {}, seeds=range(14, 18))
    assert verdict(tmp_path) == NOT_RUN
