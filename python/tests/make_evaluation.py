# SPDX-License-Identifier: MIT
"""The answer of msalab evaluate, with round numbers."""

from pathlib import Path

from msalab.evaluation.columns import SHAPES
from msalab.report import content
from msalab.results import Report


def estimate(key, value=0.5, low=0.25, high=0.75):
    return {key: value, f"{key}_low": low, f"{key}_high": high}


def made(rows) -> dict:
    """The content of a summary.json with these rows by table; tables that are not named are empty."""
    record = {"program": "msalab evaluate", "commit": "", "compiler": "", "seed": 0, "options": {}}
    return content(record, "of a model", SHAPES, {shape.name: [] for shape in SHAPES} | rows, {"intervals": "none"})


def answer(rows) -> Report:
    return Report(Path("summary.json"), made(rows))


def rows_of():
    configs = [{"config": "dense"}] + [
        {"config": f"{name}@{budget}", "selector": name, "token_budget": budget, "forced_first": 0,
         "bits_of_text": 3.5, "units": 8, "beyond_units": 8, "beyond_tokens": 4} | estimate("excess")
        | estimate("excess_beyond") for name in ("oracle", "mean-key") for budget in (64, 128)]
    names = [config["config"] for config in configs]
    return {"configs": configs,
            "layer_errors": [{"config": name, "layer": layer, "layer_error": error}
                             for name in names[1:] for layer, error in ((0, 0.25), (1, None))],
            "by_position": [{"config": name, "first_position": first, "end_position": 2 * first, "foretold_tokens": 5,
                             "bits_of_text": 3.0, "units": 8} | estimate("excess")
                            for name in names for first in (64, 128)],
            "sensitivity": [{"config": "oracle@64", "one": "dense", "layer": layer, "units": 8} | estimate("layer_bits")
                            for layer in (1, 0)],
            "retrieval_total": [_answers(name, 4, 0.25) for name in names],
            "retrieval": [_answers(name, answers, share) | {"shallowest": share}
                          for name in names for answers, share in ((1, 1.0), (3, 0.0))],
            "evaluated": [{"model": "small", "foretold_tokens": 40, "text_sequences": 4, "documents": 2,
                           "resampled": "documents", "context": 256, "model_layers_run": "0 1"}]}


def _answers(name, answers, share):
    return {"task": "needle", "exercise_tokens": 256, "config": name, "answers": answers, "exercises": 4,
            "log_likelihood": -1.0, "right_answers": share, "shallowest": 0.0, "deepest": 1.0}
