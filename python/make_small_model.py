#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small Qwen3 (GQA, 8 query heads in 2 groups) with a tokenizer of its own on text files
and saves it as a folder, so that `msalab capture` can be tried without a download.
A minute on a GPU; a CPU takes seconds for each step.

usage: make_small_model.py OUT TEXT... [--steps 700]
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

CONTEXT, BATCH, VOCABULARY, SEED = 2048, 16, 512, 1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read_tokens(paths, out: Path) -> np.ndarray:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(path) for path in paths], VOCABULARY, show_progress=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(out)
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in paths)
    return np.concatenate([encoded.ids for encoded in tokenizer.encode_batch(list(texts))])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=700)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    draw = np.random.default_rng(SEED)
    tokens = read_tokens(options.text, options.out)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=2, head_dim=32, max_position_embeddings=32768,
        tie_word_embeddings=True)).to(DEVICE)
    print(f"{model.num_parameters()} parameters, {len(tokens)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps)
    began = time.time()
    for step in range(options.steps):
        starts = draw.integers(0, len(tokens) - CONTEXT, BATCH)
        batch = torch.as_tensor(np.stack([tokens[start:start + CONTEXT] for start in starts]))
        batch = batch.to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.time() - began:.0f} s", flush=True)
    model.to(torch.bfloat16).save_pretrained(options.out)


if __name__ == "__main__":
    main()
