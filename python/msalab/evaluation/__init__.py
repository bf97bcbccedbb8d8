# SPDX-License-Identifier: MIT
"""How well a language model does with MSA in place of its attention: loss on text and retrieval of
planted facts, dense against sparse on the same tokens, the error carried through all layers."""
