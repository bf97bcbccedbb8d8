#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cuts a small msa-activations file from a larger one: some layers, the first tokens and their text.

A prefix is exact: attention is causal, so its rows do not depend on what was cut off.
usage: make_sample.py INPUT.h5 OUTPUT.h5 --layers 10,20 --tokens 1792 --set licence=Apache-2.0
"""

import argparse

import h5py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--layers", required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of the first sequence")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=TEXT",
                        help="an attribute of the file, in place of the capture's or beside them")
    options = parser.parse_args()
    with h5py.File(options.input) as source, h5py.File(options.output, "w") as target:
        for name, value in source.attrs.items():
            target.attrs[name] = value
        target.attrs.update(text.split("=", 1) for text in options.set)
        target.attrs["note"] = (
            f"Layers {options.layers}, first {options.tokens} tokens, cut by data/make_sample.py.")
        if options.tokens > source["cu_seqlens"][1]:
            parser.error(f"--tokens is {options.tokens}, the first sequence has {source['cu_seqlens'][1]}")
        target["cu_seqlens"] = [0, options.tokens]
        for name in ("tokens", "token_ends"):
            if name in source:
                target[name] = source[name][: options.tokens]
        if "text" in source:
            target["text"] = source["text"][: target["token_ends"][-1]]
        for number in options.layers.split(","):
            layer = source[f"layers/{number}"]
            group = target.create_group(f"layers/{number}")
            group.attrs.update(layer.attrs)
            for name, values in layer.items():
                shape = (options.tokens,) + values.shape[1:]
                chunk = (min(1024, options.tokens),) + (1,) * (len(shape) - 2) + shape[-1:]
                made = group.create_dataset(name, data=values[: options.tokens], chunks=chunk,
                                            shuffle=True, compression=9, fletcher32=True)
                made.attrs.update(values.attrs)


if __name__ == "__main__":
    main()
