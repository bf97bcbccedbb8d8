# SPDX-License-Identifier: MIT
"""Cases of MiniMax Sparse Attention with exact answers, for any kernel or engine (docs/conformance.md). numpy is all
that this folder imports, outside of adapters/; a copy of the folder runs by itself."""
