# SPDX-License-Identifier: MIT
"""New tokens a second of examples/serve_torch.py, whose options these are: python bench/time_example.py --dense"""

import importlib.util
from pathlib import Path

import torch
from timer import step_ms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

spec = importlib.util.spec_from_file_location(
    "serve_torch", Path(__file__).resolve().parents[1] / "examples/serve_torch.py")
serve_torch = importlib.util.module_from_spec(spec)

if __name__ == "__main__":
    spec.loader.exec_module(serve_torch)
    raise SystemExit(not serve_torch.main(seconds_of=lambda serve: step_ms(serve, DEVICE, 1)[0] / 1e3)[1])
