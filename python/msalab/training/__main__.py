# SPDX-License-Identifier: MIT
"""Continued training of a model with MSA in place of its attention: first the Index Branches alone learn,
beside full attention (the warm-up), then the model attends to what they select."""

import argparse
import os
import sys

from ..arguments import INDEX_DIM, CommandLine, integers, parse_run
from ..ending import ended, leave


def parser() -> CommandLine:
    top = CommandLine(prog="msalab train", description=__doc__, example="msalab train MODEL --data texts/ --block-size 64 "
                      "--top-k 16 --steps 1000 --out results/train", usual=(
                          "--data", "--out", "--attention", "--indexer", "--block-size", "--top-k", "--steps",
                          "--context", "--device", "--resume"))
    top.add_argument("model", help="id on the hub, folder, or FILE.gguf")
    top.add_argument("--data", nargs="+", required=True, metavar="PATH",
                     help="UTF-8 text, documents separated by the byte 0; .jsonl with a string \"text\" a line; "
                          ".parquet, or a folder by save_to_disk of datasets, with a column \"text\"; folders of "
                          ".txt, .md, .jsonl and .parquet; or one .safetensors of tokens (--tokens-out)")
    top.add_argument("--out", metavar="DIR", help="gets model/, curves.csv, and the state to go on from")
    top.add_argument("--tokens-out", metavar="FILE", help="write the text as tokens, and train nothing")
    how = top.add_argument_group("attention")
    how.add_argument("--attention", default="msa", metavar="KIND",
                     help="msa (default); dense; or what selects without an Index Branch: window (the first "
                          "block and the newest ones), mean-key, quest, oracle"
                     ).offered = ("msa", "dense", "window", "mean-key", "quest", "oracle")
    how.add_argument("--indexer", metavar="FIT", help="Index Branches to begin with: results.h5 of "
                     "msa-fit-indexer, a .safetensors file, or the folder of one of them (default: random)")
    how.add_argument("--block-size", type=int, metavar="N", help="tokens (default: 128, or the fit's)")
    how.add_argument("--top-k", type=int, metavar="N", help="blocks (default: 16, or the fit's)")
    how.add_argument("--forced-first", type=int, metavar="N",
                     help="oldest blocks that are always kept (default: 0, or the fit's)")
    how.add_argument("--forced-local", type=int, metavar="N",
                     help="newest ones, the query's own among them (default: 1, or the fit's)")
    how.add_argument("--dense-layers", type=integers, default=[], metavar="0,1",
                     help="layers that attend to everything")
    how.add_argument("--index-dim", type=int, default=INDEX_DIM, metavar="N",
                     help="channels of a random Index Branch (default: %(default)s, as msa-fit-indexer's)")
    how.add_argument("--index-norm", choices=("rms", "none"), default="rms", help="of its heads (default: rms)")
    how.add_argument("--index-rotary", type=int, metavar="N", help="channels of it that RoPE turns, with the "
                     "frequencies of the layer (default: as many as it turns there)")
    recipe = top.add_argument_group("recipe")
    recipe.add_argument("--steps", type=int, default=1000, metavar="N", help="the warm-up included "
                        "(default: 1000)")
    recipe.add_argument("--warmup-steps", dest="warmup", type=int, metavar="N",
                        help="steps in which only Index Branches learn (default: a tenth; 0 without Index Branches)")
    recipe.add_argument("--kl-weight", type=float, default=1.0, metavar="W",
                        help="of the sum of all layers' KL beside the loss (default: 1)")
    recipe.add_argument("--kl-support", choices=("selected", "full"), default="selected", help="keys that the KL is over "
                        "behind the warm-up: of the selected blocks (default), or all, from which blocks that were "
                        "missed learn, too, at the price of dense attention")
    recipe.add_argument("--detach", action=argparse.BooleanOptionalAction, default=True,
                        help="keep the gradient of the KL out of the model (default)")
    recipe.add_argument("--lr", type=float, default=5e-5, help="highest rate of the model (default: 5e-5)")
    recipe.add_argument("--index-lr", type=float, default=1e-3, help="of Index Branches (default: 1e-3)")
    recipe.add_argument("--lr-warmup", type=int, default=20, metavar="N",
                        help="steps of each stage in which rates rise (default: 20)")
    recipe.add_argument("--weight-decay", type=float, default=0.0, help="weight decay (default: 0)")
    recipe.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient of the model, and "
                        "of that of the Index Branches (default: 1)")
    size = top.add_argument_group("batches")
    size.add_argument("--context", type=int, default=2048, metavar="N", help="tokens of a row (default: 2048)")
    size.add_argument("--batch", type=int, default=8, metavar="N", help="rows of a step (default: 8)")
    size.add_argument("--rows", type=int, default=1, metavar="N", help="rows that a process holds at once; "
                      "gradients of the others are added up (default: 1)")
    size.add_argument("--checkpointing", action="store_true",
                      help="keep no activations within a layer, compute them again")
    run = top.add_argument_group("how")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of rows and of random Index "
                     "Branches")
    run.add_argument("--device", default="cpu", help="cpu (default), cuda; torchrun starts a process on each GPU")
    run.add_argument("--dtype", choices=("float32", "bfloat16"), help="that the model computes in; weights are "
                     "kept in float32 (default: bfloat16 on a GPU, else float32)")
    run.add_argument("--compile", action="store_true", help="torch.compile fuses what is around the attentions, and "
                     "the loss; roundings are others, and each stage's first step takes longer")
    run.add_argument("--cuda-graph", action="store_true", help="with --compile, on one GPU: a CUDA graph runs forward "
                     "and backward where micro-batches in a row have documents of the same lengths, in memory of its own: "
                     "for small ones, whose kernels the host starts too slowly (SmolLM2-135M, 16K tokens: 82 ms for 116 "
                     "and more on an H200); packed documents of unlike lengths get none")
    run.add_argument("--deterministic", action="store_true", help="the same bits each time, on a GPU as well")
    run.add_argument("--diverged", type=float, default=1.0, metavar="NATS",
                     help="rise of the smoothed loss at which the run stops (default: 1)")
    run.add_argument("--log-every", type=int, default=10, metavar="STEPS", help="(default: 10)")
    run.add_argument("--probe-every", type=int, default=100, metavar="STEPS",
                     help="recall and entropy of every layer; 0: never (default: 100)")
    run.add_argument("--save-every", type=int, default=500, metavar="STEPS", help="(default: 500)")
    run.add_argument("--seconds", type=float, default=float("inf"), metavar="S",
                     help="save, and stop with exit code 130, after so many; --resume goes on")
    run.add_argument("--bytes", action="store_true", help="a model of bytes, without a tokenizer")
    run.add_argument("--revision", help="of the model on the hub")
    run.add_argument("--resume", action="store_true", help="go on with a run that was stopped, or begin it")
    run.add_argument("--overwrite", action="store_true", help="replace a run, or the file of --tokens-out")
    return top


def main(arguments=None) -> int:
    options = parse_run(parser(), arguments)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.dtype is None:
        options.dtype = "bfloat16" if options.device.startswith("cuda") else "float32"
    return ended(lambda: _work(options), options, less="--rows 1, --checkpointing and more processes need less")


def _work(options) -> int:
    from .run import run, write_tokens

    work = write_tokens if options.tokens_out else run
    return work(options, lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    leave(main())
