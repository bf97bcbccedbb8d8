# SPDX-License-Identifier: MIT
"""The paper, figure by figure: what it says, and what the records of this repository say of it."""
