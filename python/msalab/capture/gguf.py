# SPDX-License-Identifier: MIT
"""Models in one GGUF file, which transformers reads: weights are made float32 of what quantised ones
say."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from .layer import CaptureError, require

WORD = re.compile("[▁Ġ][a-z]{3,}")  # of a vocabulary, behind a blank
WORDS, MOST_SPLIT = 1000, 0.5  # that are tried, those of lowest ids; the share of them that may be several tokens
READS = "pip install transformers==5.23.0, which reads Gemma 3, SmolLM2 and Qwen2.5 right"


def place_of(model: str) -> tuple[str, dict]:
    """What from_pretrained() takes for a model, and the options that go with it: a model's id or folder
    alone, of FILE.gguf its folder and its name."""
    path = Path(model)
    if path.suffix != ".gguf":
        name = str(model)
        is_id = name.count("/") <= 1 and not name.startswith(("/", ".", "~"))
        require(is_id or path.exists(), f"{model}: no such folder or file")
        return model, {}
    require(path.is_file(), f"{model}: no such file")
    for package in ("gguf", "accelerate"):
        require(find_spec(package), f"{model}: needs the package {package}, which is not installed: pip "
                f"install {package}")
    return str(path.parent), {"gguf_file": path.name}


def checked(tokenizer, name):
    """The tokenizer that transformers made of the GGUF file `name`. CaptureError where it splits more than half of the
    first 1000 words (three letters or more, a blank before them) that its own vocabulary has as one token. Its merges are
    wrong then, as those of Gemma in transformers 5.17: what it encodes is decoded as it was, but the model was trained on
    other tokens. One whose vocabulary has no such words passes. A token that is missing before a text is not seen."""
    import transformers

    words = sorted((at, word[1:]) for word, at in tokenizer.get_vocab().items() if WORD.fullmatch(word))[:WORDS]
    if not words:
        return tokenizer
    found = tokenizer([f"a {word}" for _, word in words], add_special_tokens=False)["input_ids"]
    split = [word for (at, word), ids in zip(words, found) if ids[-1:] != [at]]
    require(len(split) <= MOST_SPLIT * len(words),
            f"{name}: transformers {transformers.__version__} makes a tokenizer of it that splits {len(split)} of "
            f"{len(words)} words that its vocabulary has as one token, as {split[:3]}; at most half may be split. The model "
            f"would not know its text. Use another version: {READS}")
    return tokenizer


def not_loaded(model: str, error: Exception, what: str = "cannot be loaded") -> CaptureError:
    """Of an error of the library's. What it advises where a model brings code of its own is an argument that no
    command has."""
    if "trust_remote_code" in str(error):
        return CaptureError(f"{model} {what}: it has code of its own (auto_map in its configuration), which no command "
                            "runs; in Python, load it and give it to msalab.capture, or to a ModuleAdapter")
    return CaptureError(f"{model} {what}: {error}")


def storable(model):
    """A model that was read of quantised weights refuses to be saved; a new one with its weights does not."""
    if not hasattr(model.config, "quantization_config"):
        return model
    del model.config.quantization_config
    made = type(model)(model.config)
    made.load_state_dict(model.state_dict(), assign=True)  # what is no weight, as frequencies of RoPE, is not rounded
    made.tie_weights()
    return made
