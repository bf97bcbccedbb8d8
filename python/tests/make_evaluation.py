# SPDX-License-Identifier: MIT
"""A summary.json of msalab evaluate, with round numbers."""


def summary():
    interval = {"mean": 0.5, "low": 0.25, "high": None}
    configs = [{"config": "dense"}] + [
        {"config": f"{name}@{budget}", "selector": name, "budget": budget, "bits_per_token": 3.5,
         "excess": interval, "layer_error": [0.25, None]}
        for name in ("oracle", "mean-key") for budget in (64, 128)]
    names = [config["config"] for config in configs]
    return {"format": "msalab-evaluation", "format_version": 1, "model": "small", "tokens": 40,
            "sequences": 4, "documents": 2, "resampled": "documents", "definitions": {},
            "configs": configs, "layers": [0, 1],
            "by_position": [{"config": name, "first": first, "end": 2 * first, "tokens": 5,
                             "bits_per_token": 3.0, "excess": interval}
                            for name in names for first in (64, 128)],
            "retrieval": [{"task": "needle", "length": 256, "config": name, "answers": answers,
                           "exact_match": share}
                          for name in names for answers, share in ((1, 1.0), (3, 0.0))]}
