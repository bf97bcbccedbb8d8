# SPDX-License-Identifier: MIT
"""A plain nn.Module as a Model (capture.py): say where its attention modules are, and how each
makes queries, keys and values of its arguments.

    class Mine(ModuleAdapter):
        def attention_modules(self):
            return {i: block.attn for i, block in enumerate(self.model.blocks)}

        def layer(self, attn, x, cos, sin):  # the arguments of attn.forward
            q, k, v = attn.qkv(x)  # here [1, S, H, dh]
            return Layer(q=to_numpy(rotate(q, cos, sin)[0]), k=to_numpy(rotate(k, cos, sin)[0]),
                         v=to_numpy(v[0]), x=to_numpy(x[0]), softmax_scale=attn.scale)

    capture(Mine(model, "my-model"), [token_ids], "mine.h5", layers=[3, 6])
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import ExitStack

import torch

from .layer import Layer


class ModuleAdapter(ABC):
    producer = f"msalab capture, torch {torch.__version__}"

    def __init__(self, model: torch.nn.Module, model_id: str, model_config: dict | None = None):
        self.model = model.eval()
        self.model_id = model_id
        self.model_config = json.dumps(model_config or {})
        self.layers = sorted(self.attention_modules())

    @abstractmethod
    def attention_modules(self) -> dict[int, torch.nn.Module]:
        """Layer number -> the module whose arguments layer() gets."""

    @abstractmethod
    def layer(self, module: torch.nn.Module, *args, **kwargs) -> Layer:
        """What attention gets, from the arguments of the module's forward()."""

    def forward(self, tokens: torch.Tensor):
        """Runs the model on token ids [1, S]."""
        self.model(tokens)

    @torch.no_grad()
    def run(self, tokens, layers, record):
        with ExitStack() as stack:
            for number in layers:
                def hook(module, args, kwargs, number=number):
                    record(number, self.layer(module, *args, **kwargs))

                module = self.attention_modules()[number]
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            device = next(self.model.parameters()).device
            self.forward(torch.as_tensor(tokens, device=device)[None])
