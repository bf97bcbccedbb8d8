# SPDX-License-Identifier: MIT
"""From a results file to pictures: pure functions, each returning (figure, table)."""

from .fit import FitResults
from .heat_map import selection_heat_map
from .mass_kept import mass_kept_curve
from .popularity import queries_per_block
from .results import Results, ResultsError
from .sink import sink_bars
from .style import save
from .summary import summary_table
from .table import Table
from .training import training_curves

__all__ = ["FitResults", "Results", "ResultsError", "Table", "mass_kept_curve",
           "queries_per_block", "save", "selection_heat_map", "sink_bars", "summary_table",
           "training_curves"]
