# SPDX-License-Identifier: MIT
"""The tables of the programs in Python stand in data/FORMAT.md; on a difference the new text is left beside it as
FORMAT.md.new, to be looked at and moved over it."""

from pathlib import Path

import pytest

from msalab.evaluation.columns import SHAPES as EVALUATE
from msalab.training.columns import SHAPES as TRAIN

FORMAT_PAGE = Path(__file__).parents[2] / "data/FORMAT.md"
PROGRAMS = {"msalab evaluate": EVALUATE, "msalab train": TRAIN}


def tables_as_described(shapes) -> str:
    """The generated part of data/FORMAT.md, as that of the other programs."""
    lines = ["| table | a row | row key | other columns |", "|---|---|---|---|"]
    for shape in shapes:
        names = [f"`{key}`" for key in shape.columns]
        lines.append(f"| `{shape.name}` | {shape.about} | {', '.join(names[:shape.keys]) or 'one row'} | "
                     f"{', '.join(names[shape.keys:])} |")
    lines += ["", "| column | type | unit | definition |", "|---|---|---|---|"]
    columns = {key: column for shape in reversed(shapes) for key, column in shape.columns.items()}
    for key, column in sorted(columns.items()):
        definition = column.definition.replace("|", "\\|") + (f"; null: {column.null}" if column.null else "")
        lines.append(f"| `{key}` | {column.type} | {column.unit} | {definition} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_format_page_has_the_tables(program):
    begin, end = f"<!-- tables of {program} -->\n", f"<!-- end of {program} -->\n"
    page = FORMAT_PAGE.read_text("utf-8")
    before, mark, rest = page.partition(begin)
    found, other, behind = rest.partition(end)
    assert mark and other, f"{FORMAT_PAGE} has no part for {program}"
    wanted = before + begin + tables_as_described(PROGRAMS[program]) + end + behind
    if page != wanted:
        FORMAT_PAGE.with_suffix(".md.new").write_text(wanted)
    assert page == wanted


def test_columns_mean_the_same_in_all_programs():
    page = FORMAT_PAGE.read_text("utf-8").partition("<!-- tables -->")[2].partition("<!-- end -->")[0]
    known = {cells[0]: tuple(cells[1:]) for cells in (line.strip("|").replace("`", "", 2)[1:-1].split(" | ")
                                                      for line in page.splitlines()) if len(cells) == 4}
    assert {"selector", "token_budget", "first_position", "answers", "model", "last_step"} <= known.keys()
    for program, shapes in PROGRAMS.items():
        ours = {key: column for shape in shapes for key, column in shape.columns.items()}
        for key, column in ours.items():
            means = (column.type, column.unit, column.definition)
            kind, unit, definition = known.setdefault(key, means)
            assert means == (kind, unit, definition.partition("; null: ")[0]), f"{key} of {program}"
