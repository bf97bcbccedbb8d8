# SPDX-License-Identifier: MIT
"""docs/shared_ids.md has the numbers of the records."""

from pathlib import Path

import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_tables_of_the_records():
    text = (ROOT / "docs/shared_ids.md").read_text()
    assert page.written(text) == text
    assert page.written(text.replace("0.875", "0.876")) == text
