# SPDX-License-Identifier: MIT
"""`msalab paper --gpu` and `--model`, with records and programs in place of a GPU and a model."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("h5py")
pytest.importorskip("matplotlib")
from msalab.results import ResultsError  # noqa: E402
from studies.paper import anew, published  # noqa: E402
from studies.paper.__main__ import main  # noqa: E402
from studies.paper.measured import Tree  # noqa: E402

BENCH = Path(__file__).parents[2] / "data/bench"


def fake(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "gpu"
    folder.mkdir()
    for name, of in (("top-k", "top-k"), ("prefill", "128k"), ("decode", "decode-1m")):
        shutil.copy(BENCH / f"cuda-h100-{of}.json", folder / f"{name}.json")
    return tmp_path


def test_times_of_records_stand_beside_the_paper(records):
    head, *rows = anew.gpu_rows(records)
    assert [row[1] for row in rows[:4]] == [f"{own} us" for *_, own in published.TOP_K]
    assert all("x less than torch.topk" in row[2] for row in rows[:4])
    assert {"7.6x"} == {row[1] for row in rows if row[0].startswith("decode at 1M")}
    assert [row for row in rows if row[0].startswith("prefill at 128K")]


def test_what_a_record_lacks_is_said(records):
    path = records / "gpu/top-k.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["tables"]["baselines"]["rows"] = []
    path.write_text(json.dumps(record), encoding="utf-8")
    assert all(row[2].startswith("not measured") for row in anew.gpu_rows(records)[1:5])


def test_each_record_is_measured_by_msa_bench(tmp_path, monkeypatch):
    fake(tmp_path / "tools/nvidia-smi", "echo A card")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"), prepend=":")
    fake(tmp_path / "bin/msa-bench", 'echo "$@" >>"$0.calls"')
    said = []
    tree = Tree(tmp_path, tmp_path / "bin")  # without bench/baselines.py: it fails, and that is said
    for step in anew.gpu_steps(tree, tmp_path, said.append):
        step.run()
    calls = (tmp_path / "bin/msa-bench.calls").read_text().splitlines()
    assert [call.split()[:4] for call in calls] == [["--backend", "cuda", "--cases", name]
                                                    for name in ("top-k", "square", "decode")]
    assert len(said) == 3 and all("no times of PyTorch beside it" in line for line in said)


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--out", str(tmp_path / "out"), "--gpu"]) == 2
    assert "--gpu: there is no nvidia-smi here" in capsys.readouterr().err
    fake(tmp_path / "nvidia-smi", "echo no devices; exit 9")
    with pytest.raises(ResultsError, match="no NVIDIA GPU answers nvidia-smi: no devices"):
        anew.gpu_name()


@pytest.mark.parametrize("words", [["--gpu"], ["--model", "m", "--text", "t"], ["--model", "m", "--out", "o"]])
def test_words_that_belong_together(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words if "--out" in words else [*words, "--page", "x"])
    assert ended.value.code == 2
