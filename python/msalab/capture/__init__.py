# SPDX-License-Identifier: MIT
"""Activations of PyTorch models, and of files of other formats, as `msa-activations` files.

Reading and converting files needs numpy and h5py alone; PyTorch and transformers are imported
with the names that need them.
"""

from .capture import Model, capture
from .layer import CaptureError, Layer
from .writer import ActivationsWriter

__all__ = ["ActivationsWriter", "CaptureError", "Layer", "Model", "ModuleAdapter",
           "TransformersModel", "capture", "to_numpy"]


def __getattr__(name: str):
    from importlib import import_module

    homes = {"ModuleAdapter": "module_adapter", "TransformersModel": "transformers_model",
             "to_numpy": "tensors"}
    if name not in homes:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f".{homes[name]}", __name__), name)
