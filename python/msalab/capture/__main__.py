# SPDX-License-Identifier: MIT
"""Activations of a model's attention layers as an msa-activations file."""

import json
import signal
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np

from ..arguments import CommandLine, integers, interrupt
from ..ending import ended
from .capture import capture, token_ids
from .layer import STATES, CaptureError, require
from .partial_file import PartialFile


def read_sequences(options, tokenize) -> list:
    """Of every token file, then of every text: token ids, and the text's bytes with where each token ends in them, or
    None where it is not known."""
    def read_tokens(path):
        is_array = path.endswith(".npy")
        try:
            if is_array:
                with open(path, "rb") as file:
                    tokens = np.lib.format.read_array(file, allow_pickle=False)
            else:
                tokens = json.loads(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise CaptureError(f"{path}: token ids must be a .npy file or a JSON list, and this is no "
                               f"{'array of numbers' if is_array else 'JSON'}: {error}") from error
        return token_ids(tokens, path), None

    def read_text(path):
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        ids, ends = tokenize(content.decode())
        require(len(ids), f"{path}: no tokens come of its text")
        return ids, None if ends is None else (content, ends)

    sequences = []
    for read, paths in ((read_tokens, options.tokens), (read_text, options.text)):
        for path in paths:
            try:
                sequences.append(read(path))
            except (ValueError, EOFError, MemoryError, RecursionError, zipfile.BadZipFile) as error:
                raise CaptureError(f"{path}: {error}") from error
    require(sequences, "nothing to run the model on: --text or --tokens names files")
    return sequences


def run_capture(options):
    from ..evaluation import text
    from . import fitted
    from .transformers_model import TransformersModel
    from .with_indexer import WithIndexBranches

    require(options.overwrite or not Path(options.out).exists(),
            f"{options.out}: exists; --overwrite replaces it")
    require(options.max_tokens is None or options.max_tokens >= 1, f"--max-tokens is {options.max_tokens}, must be at "
            "least 1")

    vocabulary = text.vocabulary_of(options, f"{text.OF_BYTES}, --tokens takes token ids")
    if options.bytes:
        vocabulary()  # says where the model is none of bytes
    fits = None if options.indexer is None else fitted.read(options.indexer)
    lacking = [number for number in options.layers or () if fits and number not in fits]
    require(not lacking, f"{options.indexer}: has no Index Branch of layers {lacking}; it has those of "
            f"{fits and sorted(fits)}")
    sequences, texts = zip(*read_sequences(options, lambda content: vocabulary().whole_with_ends(content)))
    model = TransformersModel.load(options.model, device=options.device, dtype=options.dtype,
                                   attention=options.attention, revision=options.revision)
    for path, tokens in zip(options.tokens, sequences):
        model.require_known(tokens[:options.max_tokens], f"{path}: ")
    most, longest, positions = options.max_tokens, max(map(np.size, sequences)), model.positions
    if fits is not None:
        model = WithIndexBranches(model, fits, options.indexer)
        if model.lacking and options.layers is None:
            print(f"layers {model.lacking} have no Index Branch of their own in {options.indexer}: left out",
                  file=sys.stderr)
    if min(longest, longest if most is None else most) > (positions or longest):
        print(f"a sequence has {longest} tokens, the model {positions} positions: what is beyond them is "
              f"{'cut off' if most is None else 'captured, since --max-tokens asks for it'}", file=sys.stderr)
        most = most or positions
    capture(model, sequences, options.out, options.layers, texts=texts, max_tokens=most,
            overwrite=options.overwrite, note=note_to_stderr)


def note_to_stderr(text: str):
    print(text, file=sys.stderr)


# What only import, and only rotation, looks at.
IMPORT = ("names", "layout", "lengths", "state", "softmax_scale", "model_id", "model_config")
ROTATION = ("apply_rope",)


def refuse_unused(options, unused, why: str):
    command = parser().parse_args(["convert", "source", "--out", "out"])
    for name in unused:
        require(getattr(options, name) == getattr(command, name),
                f"--{name.replace('_', '-')} has no effect here: {why}")


def read_config(path) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: {error}") from error
    require(isinstance(config, dict), f"{path}: must be a JSON object, as a config.json is")
    return text


def is_fit(path) -> bool:
    """Results of msa-fit-indexer?"""
    try:
        with h5py.File(path, "r") as file:
            return file.attrs.get("format") in ("msa-results", b"msa-results") and "fit" in file
    except (OSError, KeyError, RuntimeError, ValueError):
        return False  # what else it is, its reader says


def export_indexer(options, path):
    """The fitted Index Branches under MiniMax-M3's names in transformers."""
    from .fitted import as_safetensors

    refuse_unused(options, (*IMPORT, *ROTATION, "interleaved", "rotary_dim", "rope_theta"),
                  f"{path} holds fitted weights")
    require(options.out.endswith(".safetensors"), f"{options.out}: fitted weights become "
            ".safetensors")
    content = as_safetensors(path, options.layers)
    with PartialFile(options.out, options.overwrite) as file:
        file.write(content)
        file.finish()


def export_checkpoint(options, path):
    """A model of msa-pretrain as a folder of transformers."""
    from .checkpoint import export_model

    refuse_unused(options, (*IMPORT, *ROTATION, "interleaved", "rotary_dim", "rope_theta", "layers"),
                  f"{path} holds a trained model")
    export_model(path, options.out, options.overwrite)


def run_convert(options):
    from .checkpoint import is_checkpoint
    from .convert import ImportOptions, export_safetensors, import_arrays, rotate

    first = options.source[0]
    if not first.endswith((".h5", ".hdf5")):
        refuse_unused(options, ROTATION, f"{first} is imported; RoPE is applied to the activations "
                      "file that comes of it")
        config = options.model_config and read_config(options.model_config)
        import_arrays(options.source, options.out, ImportOptions(
            names=options.names, layers=options.layers, layout=options.layout,
            lengths=options.lengths, state=options.state, softmax_scale=options.softmax_scale,
            rotary_dim=options.rotary_dim, rope_theta=options.rope_theta, interleaved=options.interleaved,
            model_id=options.model_id, model_config=config), options.overwrite, note_to_stderr)
        return
    require(len(options.source) == 1, "one activations file is converted at a time")
    if is_fit(first):
        export_indexer(options, first)
        return
    if is_checkpoint(first):
        export_checkpoint(options, first)
        return
    refuse_unused(options, IMPORT, f"{first} is an activations file and says so itself")
    if options.apply_rope:
        rotate(first, options.out, rotary_dim=options.rotary_dim, rope_theta=options.rope_theta,
               interleaved=options.interleaved, layers=options.layers,
               overwrite=options.overwrite)
    else:
        refuse_unused(options, ("interleaved", "rotary_dim", "rope_theta"),
                      "it goes with --apply-rope")
        require(options.out.endswith(".safetensors"),
                f"{options.out}: an activations file becomes .safetensors, or .h5 by --apply-rope")
        export_safetensors(first, options.out, options.layers, options.overwrite)


def parser() -> CommandLine:
    top = CommandLine(prog="msalab", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("capture", help="run a transformers model and record its layers",
                                  example="msalab capture MODEL --text FILE --max-tokens 4096 --out mine.h5",
                                  usual=("--text", "--max-tokens", "--device", "--dtype", "--indexer", "--layers",
                                         "--out", "--overwrite"))
    command.set_defaults(run=run_capture)
    command.add_argument("model", help="id on the hub, folder, or FILE.gguf")
    command.add_argument("--text", action="extend", nargs="+", default=[], metavar="FILE",
                         help="UTF-8 texts, each a sequence; - is standard input")
    command.add_argument("--tokens", action="extend", nargs="+", default=[], metavar="FILE",
                         help="token ids, each file a sequence: .npy or a JSON list")
    command.add_argument("--bytes", action="store_true", help="a model of bytes, without a tokenizer")
    command.add_argument("--max-tokens", type=int, metavar="N",
                         help="of each sequence, the rest is cut off; default: the positions of the model")
    command.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, auto")
    command.add_argument("--dtype", default="auto",
                         choices=("auto", "float32", "bfloat16", "float16"),
                         help="that the model runs in, and its activations are stored in; auto "
                              "(default): that of the weights, of a GGUF file bfloat16")
    command.add_argument("--attention", metavar="NAME",
                         help="eager, sdpa, flash_attention_2, ...; default: the library's choice")
    command.add_argument("--revision", help="of the model on the hub")
    command.add_argument("--indexer", metavar="PATH",
                         help="results of msa-fit-indexer, or the model folder of msalab train: index_q and "
                              "index_k of its Index Branches are recorded, too, of the layers that have one; "
                              "the model attends as ever")

    command = commands.add_parser("convert", help="from .safetensors, .npz or .npy; to "
                                                  ".safetensors, fitted weights too; apply RoPE; a "
                                                  "checkpoint of msa-pretrain to a folder",
                                  example="msalab convert arrays.npz --state post_rope --out mine.h5",
                                  usual=("--names", "--layout", "--lengths", "--state", "--model-config",
                                         "--apply-rope", "--layers", "--out", "--overwrite"))
    command.set_defaults(run=run_convert)
    command.add_argument("source", nargs="+", help="file to read; several .npy files")
    command.add_argument("--names", default="layers.{layer}.{field}",
                         help="names of the arrays (stems of .npy files); fields are x, q, k, v, "
                              "index_q, index_k (default: %(default)s)")
    command.add_argument("--layout", choices=("bhsd", "bshd", "packed"), default="packed",
                         help="[B,H,S,D], [B,S,H,D] or [N,H,D] (default)")
    command.add_argument("--lengths", type=integers, metavar="100,80",
                         help="tokens of each sequence; default: the whole array, or cu_seqlens")
    command.add_argument("--state", choices=STATES, help="of q and k; must be given on import")
    command.add_argument("--softmax-scale", type=float,
                         help="default: as --model-config says, else 1/sqrt(head dim)")
    command.add_argument("--rotary-dim", type=int,
                         help="channels that RoPE turns; default: all, or as --model-config says")
    command.add_argument("--rope-theta", type=float)
    command.add_argument("--model-id")
    command.add_argument("--model-config", metavar="FILE",
                         help="config.json of the model, which may say scale, soft cap and windows")
    command.add_argument("--apply-rope", action="store_true",
                         help="rotate queries and keys stored before RoPE")
    command.add_argument("--interleaved", action="store_true",
                         help="RoPE turns channels 2c and 2c+1 (default: c and c + rotary_dim/2)")
    for command in commands.choices.values():
        command.set_defaults(command=command)
        command.add_argument("--layers", type=integers, metavar="3,6", help="default: all")
        command.add_argument("--out", required=True, metavar="FILE", help="file to write")
        command.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    return top


def main(arguments=None) -> int:
    options, unknown = parser().parse_known_args(arguments)
    if unknown:  # said with the usage of the command
        options.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    signal.signal(signal.SIGTERM, interrupt)
    return ended(lambda: options.run(options), options)


if __name__ == "__main__":
    sys.exit(main())
