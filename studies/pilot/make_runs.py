# SPDX-License-Identifier: MIT
"""Tiny records of a pilot sweep, by hand: a run in which every number is known."""

import json

STEPS = (0, 100, 200, 300, 400)
TASKS = ("needle", "recall")
HEADS = ("head_sink_mass_dense", "head_sink_mass_sparse", "head_learned_sink_mass")
TYPES = {int: "integer", float: "real", str: "text"}


def answer(options, tables):
    """A summary.json. tables: {name: (columns with their types, rows)}."""
    return {"format": "msa-report", "format_version": 1, "program": "msa-pretrain", "run": {"options": options},
            "title": "", "verdict": {"reached": None, "text": ""}, "notes": {},
            "columns": {key: {"type": TYPES[of], "unit": "", "definition": key}
                        for columns, _ in tables.values() for key, of in columns.items()},
            "tables": {name: {"about": name, "key": [], "columns": list(columns),
                              "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
                       for name, (columns, rows) in tables.items()}}


def write_run(folder, arm, seed, *, bits=2.0, recall=(0.0, 0.6, 0.9, 1.0), loss=1.0, spike=1.0,
              attention="msa", old=False, heads=(), **options):
    """`loss` in all steps; `spike` the largest gradient norm, where all others are 1. `old`: as
    records were before the probe had local rate and far overlap. `heads`: the last look, of each head
    its HEADS, two heads a layer."""
    path = folder / arm / f"seed-{seed}"
    path.mkdir(parents=True)
    summary = answer(
        {"files": ["text"], "held_out_text": ["held"], "context": 256, "sequences": 2, "attention": attention,
         "block_size": 16, "top_k": 4, "forced_local": 1, "lr_warmup": 100, "warmup_steps": 150, **options},
        {"trained": ({"last_step": int, "bits_per_byte": float}, [(STEPS[-1], bits)]),
         "tasks": ({"task": str, "answers": int, "exact_match": float, "log_likelihood": float},
                   [(task, 10, recall[-1], -1.0) for task in TASKS]),
         "positions": ({"first_position": int, "end_position": int, "bits_per_byte": float},
                       [(0, 128, bits + 0.5), (128, 256, bits - 0.5)]),
         "files": ({"file": str, "bits_per_byte": float}, [("c", bits - 0.25), ("english", bits + 0.25)]),
         "heads": ({"layer": int, "head": int, **dict.fromkeys(HEADS, float)},
                   [(*divmod(number, 2), *values) for number, values in enumerate(heads)])})
    rows = []
    for place, step in enumerate(STEPS):
        rows += [(step, "train", "loss", "", loss),
                 (step, "train", "gradient_norm", "", spike if step == 300 else 1.0),
                 (step, "train", "kl_loss", "0", 0.5 - place / 10)]
        if place:
            rows.append((step, "evaluation", "bits_per_byte", "", bits + 4 - place))
            rows += [(step, "evaluation", "exact_match", task, recall[place - 1])
                     for task in TASKS]
            rows += [(step, "probe", "sink_mass_dense", "0", 0.5),
                     (step, "probe", "entropy_dense", "0", 3.0)]
            if attention == "msa":
                rows += [(step, "probe", name, layer, value) for layer in "01" for name, value in
                         (("score_recall", 0.9), ("mass_kept", 0.8), ("first_block_rate", 1.0),
                          *(() if old else (("local_rate", 0.9), ("far_overlap", 0.3))))]
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    lines = ["step,group,name,part,value", *(",".join(map(str, row)) for row in rows)]
    (path / "curves.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_arm(folder, arm, bits, **more):
    """One run for each seed from 1 on, ending at these bits per byte."""
    for seed, value in enumerate(bits, 1):
        write_run(folder, arm, seed, bits=value, **more)
