# SPDX-License-Identifier: MIT
"""bench/exact_ids.py, on the CPU: ids by an int8 copy beside those of the operands."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("msalab._msalab")
SIZES = ((160, 40, 16, 8, 4), (100, 1, 32, 16, 3))


@pytest.fixture
def exact_ids():
    spec = importlib.util.spec_from_file_location("exact_ids", Path(__file__).parents[2] / "bench/exact_ids.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_copy_changes_no_id(exact_ids):
    counts, answered = exact_ids.compare(1, 20261127, "cpu", SIZES, groups=2)
    assert sum(answered.values()) == len(SIZES) * len(exact_ids.KINDS)
    for count in counts.values():
        assert count == {"rows": 82, "ids": 2 * (40 * 4 + 3), "others": 0}  # no row has fewer than k blocks


def test_another_id_is_counted(exact_ids, monkeypatch):
    select = exact_ids.msalab.index_select
    monkeypatch.setattr(exact_ids.msalab, "index_select", lambda q, *given, coarse=None, **more:
                        select(-q if coarse else q, *given, **more))
    counts, _ = exact_ids.compare(1, 20261127, "cpu", SIZES, groups=2)
    assert all(0 < count["others"] < count["ids"] for count in counts.values())
