# SPDX-License-Identifier: MIT
"""A summary.json of msalab evaluate, with round numbers."""


def summary():
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75, "units": 8}
    configs = [{"config": "dense"}] + [
        {"config": f"{name}@{budget}", "selector": name, "budget": budget, "forced_first": 0,
         "bits_per_token": 3.5, "excess": interval, "excess_beyond": interval,
         "layer_error": [0.25, None]}
        for name in ("oracle", "mean-key") for budget in (64, 128)]
    names = [config["config"] for config in configs]
    return {"format": "msalab-evaluation", "format_version": 2, "model": "small", "tokens": 40,
            "sequences": 4, "documents": 2, "resampled": "documents", "definitions": {},
            "configs": configs, "layers": [0, 1],
            "by_position": [{"config": name, "first": first, "end": 2 * first, "tokens": 5,
                             "bits_per_token": 3.0, "excess": interval}
                            for name in names for first in (64, 128)],
            "first_block": [], "sensitivity": [
                {"config": "oracle@64", "one": "dense", "layer": layer, "bits": interval}
                for layer in (1, 0)],
            "retrieval_total": [{"task": "needle", "length": 256, "config": name, "answers": 4,
                                 "exercises": 4, "exact_match": 0.25, "log_likelihood": -1.0,
                                 "exact_match_interval": [None, None]} for name in names],
            "retrieval": [{"task": "needle", "length": 256, "config": name, "answers": answers,
                           "exact_match": share}
                          for name in names for answers, share in ((1, 1.0), (3, 0.0))]}
