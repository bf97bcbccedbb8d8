# SPDX-License-Identifier: MIT
"""What `msalab evaluate` prints of its answer, a Report."""

from ..arguments import counted
from .intervals import interval_of, interval_text, opposite

WORST = 8  # layers of a setting that a table names


def _resampled(answer) -> str:
    return answer["evaluated"]["resampled"].item()


def table(answer) -> str:
    """Of the text: a line for each setting."""
    width = _width(answer)
    lines = [f"{'config':<{width}}{'bits/token':>11}{'bits/byte':>11}{'excess':>9}{'beyond':>9}  "
             "interval of 95 % of the excess"]
    for config in answer["configs"].records() if len(answer["by_position"]) else ():
        line = f"{config['config']:<{width}}{config['bits_of_text']:>11.4f}{_number(config['bits_of_bytes'], '.4f'):>11}"
        if config["selector"]:
            line += f"{config['excess']:>+9.4f}{_number(config['excess_beyond'], '+.4f'):>9}"
            line += f"  {interval_text(interval_of(config, 'excess'), _resampled(answer))}"
        lines.append(line)
    if len(lines) == 1:
        return ""
    lines.append("excess: bits a token above dense; beyond: of the tokens whose position is beyond the "
                 "budget alone")
    return "\n".join(lines)


def _number(value: float, form: str) -> str:
    return "-" if value != value else format(value, form)


def differences_table(answer) -> str:
    """For each budget, the paired difference of every setting to the one that loses least; the oracle, which no
    running model can have, is not a candidate for it."""
    parts, width, differences = [], _width(answer), answer["differences"].records()
    for budget in dict.fromkeys(row["token_budget"] for row in differences):
        here = answer["configs"].where(token_budget=budget).records()
        best = min((config for config in here if config["selector"] != "oracle" and not config["element"]), default=None,
                   key=lambda config: config["excess"])
        if best is None:
            continue
        lines = [f"{'budget ' + str(budget):<{width}}{'above':>9}  interval of 95 % of the paired difference from "
                 f"{best['config']}"]
        for row in differences:
            if best["config"] not in (row["config"], row["above"]) or row["token_budget"] != budget:
                continue
            other, bits = row["config"], interval_of(row, "more_bits")
            if other == best["config"]:
                other, bits = row["above"], opposite(bits)
            lines.append(f"{other:<{width}}{bits['mean']:>+9.4f}  {interval_text(bits, _resampled(answer))}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def element_table(answer) -> str:
    """For each element type, the paired difference of every setting in it to the same one in the model's own."""
    parts, width, configs = [], _width(answer), answer["configs"].records()
    own = {config["config"] for config in configs if not config["element"]}
    for element in dict.fromkeys(config["element"] for config in configs if config["element"]):
        lines = [f"{element:<{width}}{'above':>9}  interval of 95 % of the paired difference from the model's own type"]
        for row in answer["differences"].records():
            if row["config"] == f"{row['above']},{element}" and row["above"] in own:
                bits = interval_of(row, "more_bits")
                lines.append(f"{row['above']:<{width}}{bits['mean']:>+9.5f}  "
                             f"{interval_text(bits, _resampled(answer), 5)}")
        parts.append("\n".join(lines) if len(lines) > 1 else "")
    return "\n\n".join(part for part in parts if part)


def _width(answer) -> int:
    return max(20, *(len(config) + 2 for config in answer["configs"]["config"]))


def first_block_table(answer) -> str:
    """What forcing the first block is worth to a selector."""
    lines = [f"{'selector':<16}{'budget':>7}{'excess':>9}{'forced':>9}{'gain':>9}  interval of 95 % of "
             "the gain"]
    rows = answer["first_block"].records()
    for row in rows:
        lines.append(f"{row['selector']:<16}{row['token_budget']:>7}{row['excess']:>+9.4f}{row['forced_excess']:>+9.4f}"
                     f"{row['first_block_gain']:>+9.4f}  {interval_text(interval_of(row, 'first_block_gain'), _resampled(answer))}")
    sure = [f"{row['selector']}@{row['token_budget']}" for row in rows if row["first_block_gain_low"] > 0]
    if sure:
        lines.append(f"Force the first block (--forced-first 1): {', '.join(sure)} would drop it at a "
                     "loss")
    return "The first block, not forced and forced:\n" + "\n".join(lines) if len(lines) > 1 else ""


def sensitivity_table(answer) -> str:
    """The layers that matter most to each setting."""
    found: dict[str, list] = {}
    for row in answer["sensitivity"].records():
        found.setdefault(row["config"], []).append(row)
    parts = []
    for config, rows in found.items():
        what = ("sparse alone, bits a token above dense" if rows[0]["one"] == "sparse" else
                "dense beside the sparse others, bits a token gained")
        lines = [f"  layer {row['layer']:>3}  {row['layer_bits']:+.4f}  interval of 95 %: "
                 f"{interval_text(interval_of(row, 'layer_bits'), _resampled(answer))}" for row in rows[:WORST]]
        rest = sum(row["layer_bits"] for row in rows[WORST:])
        if rows[WORST:]:
            lines.append(f"  the other {len(rows) - WORST}: {rest:+.4f} together")
        parts.append("\n".join([f"{config}, one layer {what}:", *lines]))
    return "\n".join(parts)


def retrieval_table(answer) -> str:
    """Share of right answers over all depths, a line for each task, length and setting."""
    width = _width(answer)
    lines = [f"{'task':<12}{'length':>7}  {'config':<{width}}{'exact match':>12}{'log-lik.':>10}"
             f"{'above dense':>13}  interval of 95 % of the difference"]
    for row in answer["retrieval_total"].records():
        line = (f"{row['task']:<12}{row['exercise_tokens']:>7}  {row['config']:<{width}}"
                f"{row['right_answers']:>12.4f}{row['log_likelihood']:>10.3f}")
        more = interval_of(row, "right_answers_above", "exercises")
        line += (f"{more['mean']:>+13.4f}  {interval_text(more, 'exercises')}" if more["mean"] == more["mean"] else
                 f"{'':>13}  {counted(row['exercises'], 'exercises')}, {counted(row['answers'], 'answers')}")
        lines.append(line)
    return "\n".join(lines) if len(lines) > 1 else ""


def print_tables(answer) -> None:
    parts = (table(answer), differences_table(answer), element_table(answer), first_block_table(answer), sensitivity_table(answer),
             retrieval_table(answer))
    print("\n\n".join(part for part in parts if part))
