# SPDX-License-Identifier: MIT
"""What `msalab evaluate` prints of a summary."""

from ..arguments import counted
from .intervals import interval_text, opposite

WORST = 8  # layers of a setting that a table names


def table(summary) -> str:
    """Of the text: a line for each setting."""
    width = _width(summary)
    lines = [f"{'config':<{width}}{'bits/token':>11}{'bits/byte':>11}{'excess':>9}{'beyond':>9}  "
             "interval of 95 % of the excess"]
    for config in summary["configs"]:
        if "bits_per_token" not in config:
            continue
        per_byte, excess = config["bits_per_byte"], config.get("excess")
        line = (f"{config['config']:<{width}}{config['bits_per_token']:>11.4f}"
                f"{'-' if per_byte is None else format(per_byte, '.4f'):>11}")
        if excess:
            beyond = config["excess_beyond"]["mean"]
            line += f"{excess['mean']:>+9.4f}{'-' if beyond is None else format(beyond, '+.4f'):>9}"
            line += f"  {interval_text(excess, summary['resampled'])}"
        lines.append(line)
    if len(lines) == 1:
        return ""
    lines.append("excess: bits a token above dense; beyond: of the tokens whose position is beyond the "
                 "budget alone")
    return "\n".join(lines)


def differences_table(summary) -> str:
    """For each budget, the paired difference of every setting to the one that loses least; the oracle, which no
    running model can have, is not a candidate for it."""
    parts, width = [], _width(summary)
    for budget in dict.fromkeys(row["budget"] for row in summary["differences"]):
        here = [config for config in summary["configs"] if config.get("budget") == budget]
        best = min((config for config in here if config["selector"] != "oracle"), default=None,
                   key=lambda config: config["excess"]["mean"])
        if best is None:
            continue
        lines = [f"{'budget ' + str(budget):<{width}}{'above':>9}  interval of 95 % of the paired difference from "
                 f"{best['config']}"]
        for row in summary["differences"]:
            if best["config"] not in (row["config"], row["above"]) or row["budget"] != budget:
                continue
            other, bits = row["config"], row["bits"]
            if other == best["config"]:
                other, bits = row["above"], opposite(bits)
            lines.append(f"{other:<{width}}{bits['mean']:>+9.4f}  {interval_text(bits, summary['resampled'])}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _width(summary) -> int:
    return max(20, *(len(config["config"]) + 2 for config in summary["configs"]))


def first_block_table(summary) -> str:
    """What forcing the first block is worth to a selector."""
    lines = [f"{'selector':<16}{'budget':>7}{'excess':>9}{'forced':>9}{'gain':>9}  interval of 95 % of "
             "the gain"]
    for row in summary["first_block"]:
        gain = row["gain"]
        lines.append(f"{row['selector']:<16}{row['budget']:>7}{row['excess']['mean']:>+9.4f}"
                     f"{row['forced']['mean']:>+9.4f}{gain['mean']:>+9.4f}  "
                     f"{interval_text(gain, summary['resampled'])}")
    sure = [f"{row['selector']}@{row['budget']}" for row in summary["first_block"]
            if row["gain"]["low"] is not None and row["gain"]["low"] > 0]
    if sure:
        lines.append(f"Force the first block (--forced-first 1): {', '.join(sure)} would drop it at a "
                     "loss")
    return "The first block, not forced and forced:\n" + "\n".join(lines) if len(lines) > 1 else ""


def sensitivity_table(summary) -> str:
    """The layers that matter most to each setting."""
    found: dict[str, list] = {}
    for row in summary["sensitivity"]:
        found.setdefault(row["config"], []).append(row)
    parts = []
    for config, rows in found.items():
        what = ("sparse alone, bits a token above dense" if rows[0]["one"] == "sparse" else
                "dense beside the sparse others, bits a token gained")
        lines = [f"  layer {row['layer']:>3}  {row['bits']['mean']:+.4f}  interval of 95 %: "
                 f"{interval_text(row['bits'], summary['resampled'])}" for row in rows[:WORST]]
        rest = sum(row["bits"]["mean"] for row in rows[WORST:])
        if rows[WORST:]:
            lines.append(f"  the other {len(rows) - WORST}: {rest:+.4f} together")
        parts.append("\n".join([f"{config}, one layer {what}:", *lines]))
    return "\n".join(parts)


def retrieval_table(summary) -> str:
    """Share of right answers over all depths, a line for each task, length and setting."""
    width = _width(summary)
    lines = [f"{'task':<12}{'length':>7}  {'config':<{width}}{'exact match':>12}{'log-lik.':>10}"
             f"{'above dense':>13}  interval of 95 % of the difference"]
    for row in summary["retrieval_total"]:
        line = (f"{row['task']:<12}{row['length']:>7}  {row['config']:<{width}}"
                f"{row['exact_match']:>12.4f}{row['log_likelihood']:>10.3f}")
        more = row.get("exact_match_difference")
        line += (f"{more['mean']:>+13.4f}  {interval_text(more, 'exercises')}" if more else
                 f"{'':>13}  {counted(row['exercises'], 'exercises')}, {counted(row['answers'], 'answers')}")
        lines.append(line)
    return "\n".join(lines) if len(lines) > 1 else ""


def print_tables(summary) -> None:
    parts = (table(summary), differences_table(summary), first_block_table(summary), sensitivity_table(summary),
             retrieval_table(summary))
    print("\n\n".join(part for part in parts if part))
