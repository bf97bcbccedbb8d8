# SPDX-License-Identifier: MIT
"""The tables of studies/pilot/README.md, each between marks that name it."""

from __future__ import annotations

import re

from . import attached, registered
from .runs import Records

TABLES = {**registered.TABLES, **attached.TABLES}
_MARKED = re.compile(r"(<!-- table ([\w-]+) from studies/pilot/records_2 -->\n).*?(<!-- end -->)",
                     re.DOTALL)


def with_tables(text: str, records: Records, before: Records) -> str:
    """A page with these tables as the records have them."""
    return _MARKED.sub(lambda at: at[1] + TABLES[at[2]](records, before) + at[3], text)
