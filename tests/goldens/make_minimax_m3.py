#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cuts small goldens from captures of the transformers implementation of MiniMax-M3.

Input: a file with layers/<l>/{x,q,k,v,index_q,index_k,weights/,expected/} and the attribute
`config`, written by transformers (eager, float32, random weights). Kept: one layer, the first
TOKENS keys, of the queries the rows from FIRST on (attention is causal, so a prefix is exact), the
first G groups (a group never reads another one), and hidden states with weights when --weights is
given.
usage: make_minimax_m3.py INPUT.h5 OUTPUT.h5 --tokens N [--first-query M] [--groups G | --weights]
"""

import argparse
import json

import h5py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--first-query", type=int, default=0)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--groups", type=int)
    choice.add_argument("--weights", action="store_true")
    options = parser.parse_args()
    keys, queries = slice(0, options.tokens), slice(options.first_query, options.tokens)
    with h5py.File(options.input) as source, \
            h5py.File(options.output, "w", libver=("v110", "v110")) as target:
        target.attrs["source"] = source.attrs["source"]
        config = json.loads(source.attrs["config"])
        heads = config["num_query_heads"] // config["num_kv_heads"]
        groups = options.groups or config["num_kv_heads"]
        config |= {"num_query_heads": groups * heads, "num_kv_heads": groups}
        target.attrs["config"] = json.dumps(config)
        target.attrs["first_query"] = options.first_query
        layer = source["layers/0"]

        def keep(name, values):
            target.create_dataset(name, data=values, shuffle=True, compression=9,
                                  chunks=values.shape)

        keep("index_k", layer["index_k"][keys])
        for name in ("k", "v"):
            keep(name, layer[name][keys, :groups])
        for name, count in (("q", groups * heads), ("index_q", groups),
                            ("expected/selected_blocks", groups),
                            ("expected/attn_out", groups * heads)):
            keep(name, layer[name][queries, :count])
        if options.weights:
            keep("x", layer["x"][keys])
            for name, values in layer["weights"].items():
                if name != "w_o":
                    keep(f"weights/{name}", values[:])


if __name__ == "__main__":
    main()
