# SPDX-License-Identifier: MIT
"""Activations of a model of transformers with random weights whose layers differ in key-value heads and head
dim, as Gemma 4's do: a layer with a window has 2 groups of 16 channels, a full one 4 of 32."""

import sys

import numpy as np
import torch
import transformers

from msalab.capture import TransformersModel, capture

TOKENS, WINDOW = 48, 16


def main(out: str):
    torch.manual_seed(1)
    config = transformers.Gemma4TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=4, attention_k_eq_v=True,
        num_kv_shared_layers=0, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=64, initializer_range=0.25)
    model = transformers.Gemma4ForCausalLM(config).to(torch.bfloat16).eval()
    capture(TransformersModel(model, "tiny random Gemma 4"), [np.arange(TOKENS) * 7 % 64], out, overwrite=True)


if __name__ == "__main__":
    main(sys.argv[1])
