# SPDX-License-Identifier: MIT
"""From a results file to pictures: pure functions, each returning (figure, table)."""

from ..table import Table
from .advice import cost_front, read_advice
from .by_layer import mass_by_layer, sink_by_layer
from .cache import cache_curves, read_cache
from .comparison import mass_kept_versus_budget, mass_kept_versus_cost, read_comparison
from .cost import (efficiency_triple, loop_orders, predicted_over_measured,
                   predicted_over_measured_bars, read_bench, read_cost, read_speedups, roofline,
                   union_blocks)
from .entropy import entropy_per_layer
from .evaluation import read_evaluation
from .fit import FitResults
from .heat_map import selection_heat_map
from .lorenz import lorenz_curve
from .mass_kept import mass_kept_curve, recall_by_k
from .needle import needle_depth_map
from .overlap import overlap_map
from .popularity import queries_per_block
from .precision import loss_by_bits, read_precision
from .results import Results, ResultsError
from .reuse import loss_by_distance, read_sharing, sharing_patterns
from .sink import sink_bars
from .style import save
from .summary import summary_table
from .torch_times import (absent_table, host_table, layer_table, read_torch_times, rival_bars,
                          rival_table, rival_title)
from .traffic import bytes_by_context
from .training import training_curves

__all__ = ["FitResults", "Results", "ResultsError", "Table", "absent_table",
           "bytes_by_context", "cache_curves", "cost_front", "efficiency_triple",
           "entropy_per_layer", "host_table", "layer_table", "loop_orders", "lorenz_curve",
           "loss_by_bits", "loss_by_distance",
           "mass_by_layer", "mass_kept_curve", "mass_kept_versus_budget", "mass_kept_versus_cost",
           "needle_depth_map", "overlap_map",
           "predicted_over_measured",
           "predicted_over_measured_bars", "queries_per_block", "read_advice", "read_bench",
           "read_cache", "read_comparison", "read_cost", "read_evaluation", "read_precision",
           "read_sharing", "read_speedups", "read_torch_times", "rival_bars",
           "rival_table", "rival_title", "roofline", "save", "selection_heat_map",
           "recall_by_k", "sharing_patterns", "sink_bars",
           "sink_by_layer", "summary_table", "training_curves", "union_blocks"]
