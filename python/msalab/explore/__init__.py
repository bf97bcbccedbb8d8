# SPDX-License-Identifier: MIT
"""The block microscope: one HTML page from a token to the blocks that it chose."""

from .activations import Activations
from .data import Microscope, make_microscope, most_telling
from .page import as_elements, write_page

__all__ = ["Activations", "Microscope", "as_elements", "make_microscope", "most_telling", "write_page"]
