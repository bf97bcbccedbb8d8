# SPDX-License-Identifier: MIT
"""docs/terms.md explains every metric that the programs write, and its tables are in order."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/terms.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^(?:\|.*\n)+", PAGE, re.MULTILINE)
METRICS = re.findall(r'^    \{"(\w+)", "', (ROOT / "analysis/metrics.cpp").read_text(encoding="utf-8"),
                     re.MULTILINE)


def terms(table: str) -> list[str]:
    return [re.sub(r"[`\\]", "", row.split(" | ")[0].removeprefix("| ")).lower()
            for row in table.splitlines()[2:]]


def test_every_metric_is_explained():
    assert len(METRICS) > 20
    assert [name for name in METRICS if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: terms(table)[0])
def test_tables_are_in_order_and_say_a_thing_once(table):
    assert [pair for pair in pairwise(terms(table)) if pair[0] >= pair[1]] == []


def test_no_term_stands_twice():
    every = [term for table in TABLES for term in terms(table)]
    assert sorted({term for term in every if every.count(term) > 1}) == []
