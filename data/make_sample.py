#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cuts a small msa-activations file from a larger one: one layer, the first tokens, no token ids.

A prefix is exact: attention is causal, so its rows do not depend on what was cut off.
usage: make_sample.py INPUT.h5 OUTPUT.h5 --layer 3 --tokens 2304
"""

import argparse

import h5py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--layer", default="3")
    parser.add_argument("--tokens", type=int, default=2304)
    options = parser.parse_args()
    with h5py.File(options.input) as source, h5py.File(options.output, "w") as target:
        for name, value in source.attrs.items():
            target.attrs[name] = value
        target.attrs["note"] = (
            f"layer {options.layer}, first {options.tokens} tokens, cut by data/make_sample.py")
        target["cu_seqlens"] = [0, options.tokens]
        layer = source[f"layers/{options.layer}"]
        group = target.create_group(f"layers/{options.layer}")
        for name, value in layer.attrs.items():
            group.attrs[name] = value
        for name, values in layer.items():
            shape = (options.tokens,) + values.shape[1:]
            chunk = (min(1024, options.tokens),) + (1,) * (len(shape) - 2) + shape[-1:]
            group.create_dataset(name, data=values[: options.tokens], chunks=chunk, shuffle=True,
                                 compression=9, fletcher32=True)


if __name__ == "__main__":
    main()
