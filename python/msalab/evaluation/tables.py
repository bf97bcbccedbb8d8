# SPDX-License-Identifier: MIT
"""What `msalab evaluate` prints of a summary."""


def table(summary) -> str:
    """Of the text: a line for each setting."""
    lines = [f"{'config':<20}{'bits/token':>11}{'bits/byte':>11}{'excess':>9}  interval of 95 %"]
    for config in summary["configs"]:
        if "bits_per_token" not in config:
            continue
        per_byte, excess = config["bits_per_byte"], config.get("excess", {})
        line = (f"{config['config']:<20}{config['bits_per_token']:>11.4f}"
                f"{'-' if per_byte is None else format(per_byte, '.4f'):>11}")
        if excess:
            line += f"{excess['mean']:>+9.4f}"
        if excess.get("low") is not None:
            line += f"  {excess['low']:+.4f} to {excess['high']:+.4f}"
        lines.append(line)
    return "\n".join(lines) if len(lines) > 1 else ""


def retrieval_table(summary) -> str:
    """Share of right answers over all depths, a line for each task, length and setting."""
    found: dict[tuple, list] = {}
    for row in summary["retrieval"]:
        found.setdefault((row["task"], row["length"], row["config"]), []).append(row)
    lines = [f"{'task':<12}{'length':>7}  {'config':<20}{'exact match':>12}{'log-lik.':>10}"]
    for (task, length, config), rows in found.items():
        answers = sum(row["answers"] for row in rows)
        match, likelihood = (sum(row[name] * row["answers"] for row in rows) / answers
                             for name in ("exact_match", "log_likelihood"))
        lines.append(f"{task:<12}{length:>7}  {config:<20}{match:>12.4f}{likelihood:>10.3f}")
    return "\n".join(lines) if found else ""


def print_tables(summary) -> None:
    print("\n\n".join(part for part in (table(summary), retrieval_table(summary)) if part))
