# SPDX-License-Identifier: MIT
"""A report (data/FORMAT.md) as the programs write it, from rows that a test gives."""


def estimate(value, width=0.01):
    return {"value": value, "low": value - width, "high": value + width}


def _type(values) -> str:
    known = [value for value in values if value is not None]
    kinds = {bool: "truth", int: "integer", float: "real", str: "text", dict: "estimate"}
    found = {kinds[type(value)] for value in known}
    return "real" if found == {"integer", "real"} or not found else found.pop()


def report(program, tables, options=None, definitions=None, reached=None, text="", notes=None) -> dict:
    """tables: {name: (number of columns of the row key, rows)}; a row is a dict, an estimate in it
    one of estimate()'s. A column has the type of its values."""
    columns, made = {}, {}
    for name, (keys, rows) in tables.items():
        names = list(rows[0]) if rows else []
        for key in names:
            columns[key] = {"type": _type([row[key] for row in rows]), "unit": "",
                            "definition": (definitions or {}).get(key, f"what {key} means")}
        flat = [{f"{key}{end}": None if value is None else value[part] if isinstance(value, dict) else value
                 for key, value in row.items()
                 for end, part in ((("", "value"), ("_low", "low"), ("_high", "high"))
                                   if columns[key]["type"] == "estimate" else (("", ""),))}
                for row in rows]
        made[name] = {"about": f"rows of {name}", "key": names[:keys], "columns": names, "rows": flat}
    return {"format": "msa-report", "format_version": 1, "program": program,
            "run": {"commit": "", "compiler": "", "seed": 0, "options": options or {}}, "title": "",
            "verdict": {"reached": reached, "text": text}, "notes": notes or {}, "columns": columns,
            "tables": made}
