# SPDX-License-Identifier: MIT
"""From PyTorch to numpy, one sequence at a time, without rounding."""

import numpy as np
import torch

from .layer import bfloat16


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """bfloat16 stays bfloat16; the copy does not keep the model's memory."""
    tensor = tensor.detach().to("cpu", copy=True).contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(bfloat16)
    return tensor.numpy()


def of_one_sequence(tensor: torch.Tensor) -> np.ndarray:
    """[1, H, S, D] as attention gets it -> [S, H, D]"""
    return to_numpy(tensor[0].transpose(0, 1))
