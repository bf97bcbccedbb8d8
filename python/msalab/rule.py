# SPDX-License-Identifier: MIT
"""How many blocks a selector keeps, and which ones always."""

from dataclasses import dataclass

from .operations import InputError

MOST = 2 ** 31 - 1  # tokens or blocks; numbers of blocks are int32

@dataclass(frozen=True)
class Rule:
    """What is kept beside the blocks of highest score; top_k counts all of them."""

    block_size: int = 128
    top_k: int = 16
    forced_first: int = 0
    forced_local: int = 1

    def __post_init__(self):
        for name, least in (("block_size", 1), ("top_k", 1), ("forced_first", 0),
                            ("forced_local", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(f"{name} is {value!r}, must be an integer of at least {least}")
            if value > MOST:
                raise InputError(f"{name} is {value}, must be at most {MOST}")
        forced = self.forced_first + self.forced_local
        if forced > self.top_k:
            raise InputError(f"forced_first + forced_local is {forced}, must be at most "
                             f"top_k = {self.top_k}")

    @property
    def tokens(self) -> int:
        """That a query reads: the budget."""
        return self.block_size * self.top_k
