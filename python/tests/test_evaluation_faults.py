# SPDX-License-Identifier: MIT
"""`msalab evaluate` with tokenizers that put something around or before a text, with damaged results and advice, on
a full disk, and what its settings differ by. Needs PyTorch, transformers and the compiled module."""

import json
import re
import resource
import signal

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_advice import make_advice  # noqa: E402
from make_indexer import make_indexer  # noqa: E402
from test_capture_models import SIZES, Looped, make_model  # noqa: E402
from test_evaluation import BLOCK, TEXT, evaluate, folder, summary_of, text_file  # noqa: E402, F401
from tokenizers import Tokenizer as Made, models, pre_tokenizers, processors  # noqa: E402

import msalab  # noqa: E402
import msalab.evaluation.__main__  # noqa: E402
from msalab import advice, results  # noqa: E402
from msalab.capture.layer import CaptureError  # noqa: E402
from msalab.evaluation import exercises, files, scoring  # noqa: E402
from msalab.evaluation.tables import differences_table  # noqa: E402
from msalab.evaluation.text import Tokenizer, cut, read_documents  # noqa: E402
from msalab.selectors import Choice, Rule  # noqa: E402

DOCUMENTS = ["Blocks of keys are chosen one by one. " * 40, "another text, in other words; " * 9]
SPECIAL = {"[gMASK]": 0, "<sop>": 1, "</s>": 2, "<unk>": 3}


@pytest.fixture
def tokenizer_of(tmp_path):
    """A folder with a model and a tokenizer of letters with this template around a text; of Llama 2's kind where a
    word begins with the space before it, and so does every text."""
    def make(template, prepend="never"):
        letters = sorted(set("".join(DOCUMENTS) + "abcdefghijklmnopqrstuvwxyz.TF ") - {" "}) + ["▁", "\n"]
        known = SPECIAL | {letter: at for at, letter in enumerate(letters, len(SPECIAL))}
        made = Made(models.BPE(known, [], unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
        if template:
            made.post_processor = processors.TemplateProcessing(template, special_tokens=list(SPECIAL.items())[:3])
        transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path / "tokens")
        return Tokenizer(tmp_path / "tokens")
    return make


@pytest.mark.parametrize("template, prefix", [
    ("[gMASK] <sop> $A", [0, 1]), ("<sop> $A </s>", [1]), ("$A </s>", []), ("", [])])
def test_all_that_a_tokenizer_puts_before_a_text(tokenizer_of, template, prefix):
    vocabulary = tokenizer_of(template)
    assert vocabulary.prefix == prefix
    sequence = cut(["a text"], vocabulary, 100, 1)[0]
    assert sequence.ids.tolist() == [*prefix, *vocabulary.encode("a text")]
    # All tokens of the text are foretold, and none that stands before it; the first of all cannot be.
    assert sequence.foretold.tolist() == list(range(max(1, len(prefix)), len(sequence.ids)))
    assert sequence.bytes.sum() == len("a text") - (not prefix)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    """For Gemma 3 the library makes one of special tokens, to which every text is unknown."""
    transformers.Gemma3TextConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(CaptureError, match="has no tokenizer that"):
        Tokenizer(tmp_path)


def test_the_tokens_before_a_text_are_read_and_not_foretold(tokenizer_of, tmp_path):
    vocabulary = tokenizer_of("[gMASK] <sop> $A")
    model = make_model("llama", vocab_size=100).eval()
    model.save_pretrained(tmp_path / "tokens")
    (tmp_path / "a.txt").write_text(DOCUMENTS[1])
    assert msalab.evaluation.__main__.main(
        [str(tmp_path / "tokens"), "--text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--context", "80",
         "--block-size", "16", "--budgets", "32", "--selectors", "window", "--tasks", "", "--sequences", "1"]) == 0
    ids = torch.tensor([[0, 1, *vocabulary.encode(DOCUMENTS[1])[:78]]])
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(model(ids).logits[0, 1:-1], ids[0, 2:], reduction="none")
    with h5py.File(tmp_path / "out/results.h5") as file:
        np.testing.assert_allclose(file["evaluate/text/nats"][0], nats, rtol=1e-4)
        assert file["evaluate/text/position"][()].tolist() == list(range(1, 79))
    found = summary_of(tmp_path / "out")
    assert found["evaluated"][0]["foretold_tokens"] == 78 and found["configs"][1]["beyond_tokens"] == 79 - 32
    assert [row["foretold_tokens"] for row in found["by_position"][:2]] == [63, 63]


@pytest.mark.parametrize("prepend", ["always", "first", "never"])
@pytest.mark.parametrize("task", exercises.TASKS)
def test_an_exercise_has_the_ids_of_its_whole_text(tokenizer_of, monkeypatch, task, prepend):
    vocabulary, texts = tokenizer_of("[gMASK] <sop> $A", prepend), []
    monkeypatch.setattr(exercises, "_text", lambda *given, own=exercises._text: texts.append(own(*given)) or texts[-1])
    made = exercises.make_exercise(task, vocabulary, DOCUMENTS, 700, 0.3, 3, [1])
    ids = made.ids.tolist()
    whole, answers = next(one for one in texts if vocabulary.encode_whole(one[0]) == ids)
    assert len(ids) == 700
    letters = vocabulary._tokenizer.convert_ids_to_tokens(ids)
    assert "▁▁" not in "".join(letters) and len(answers) == len(made.answers)
    for (begin, end), (first, last) in zip(made.answers, answers):
        assert "".join(letters[begin:end]) == whole[first:last].replace(" ", "▁")
    assert made.answers[-1][1] == 700


def test_the_index_runs_with_and_without_the_first_block(folder, text_file, tmp_path, capsys):  # noqa: F811
    make_indexer(tmp_path / "results.h5", range(4), groups=2, dim=16, model_dim=SIZES["hidden_size"])
    words = [str(folder), "--text", str(text_file), "--bytes", "--context", "200", "--sequences", "2", "--tasks", "",
             "--indexer", str(tmp_path / "results.h5"), "--out", str(tmp_path / "out")]
    assert msalab.evaluation.__main__.main(words) == 0
    summary, printed = summary_of(tmp_path / "out"), capsys.readouterr().out
    assert [c["config"] for c in summary["configs"][1:]] == [
        "index@48", "index@48,first=1", "mean-key@48", "mean-key@48,first=1", "window@48,first=1", "oracle@48",
        "oracle@48,first=1"]
    assert [row["selector"] for row in summary["first_block"]] == ["index", "mean-key", "oracle"]
    assert "\nindex                48" in printed


def test_settings_of_one_budget_are_compared_in_pairs(folder, text_file, tmp_path, capsys):  # noqa: F811
    text_file.write_text("\0".join(f"Document {number} has words of its own. " * (3 + number) for number in range(7)))
    assert evaluate(folder, text_file, tmp_path / "out", "--selectors", "mean-key,quest,oracle", "--tasks", "") == 0
    summary, printed = summary_of(tmp_path / "out"), capsys.readouterr().out
    with h5py.File(tmp_path / "out/results.h5") as file:
        bits = file["evaluate/text/nats"][()].astype(float) / np.log(2)
        document = file["evaluate/text/document"][()][file["evaluate/text/sequence"][()]]
    names = [config["config"] for config in summary["configs"]]
    rows = {(row["config"], row["above"]): row for row in summary["differences"]}
    assert {row["token_budget"] for row in rows.values()} == {32, 208} and len(rows) == 2 * 3
    for (config, above), row in rows.items():
        more = bits[names.index(config)] - bits[names.index(above)]
        assert row["more_bits"] == pytest.approx(more.mean(), rel=1e-9, abs=1e-12)
        means = [more[document == number].mean() for number in range(7)]
        assert min(means) - 1e-12 <= row["more_bits_low"] <= row["more_bits_high"] <= max(means) + 1e-12
        assert row["units"] == 7
    best = min((c for c in summary["configs"][1:] if c["token_budget"] == 32 and c["selector"] != "oracle"),
               key=lambda c: c["excess"])["config"]
    lines = differences_table(results.open(tmp_path / "out")).split("\n\n")[0].splitlines()
    assert lines[0].endswith(f"paired difference from {best}") and lines[0] in printed
    for line in lines[1:]:
        name, mean = line.split()[:2]
        own = {c["config"]: c["excess"] for c in summary["configs"][1:]}
        assert float(mean) == pytest.approx(own[name] - own[best], abs=1e-4) and "7 documents" in line
    assert len(lines) == 3


def test_line_ends_are_those_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\rthree\n\0four\r\n")
    assert read_documents([path]) == ["one\r\ntwo\rthree\n", "four\r\n"]


@pytest.fixture
def complete(folder, text_file, tmp_path):  # noqa: F811
    """A finished run, and what the same command says and returns."""
    words = (folder, text_file, tmp_path / "out", "--selectors", "window", "--tasks", "", "--sequences", "1")
    assert evaluate(*words) == 0
    return tmp_path / "out", lambda capsys: (capsys.readouterr(), evaluate(*words), capsys.readouterr())[1:]


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unsealed(path, damage):
    content = path.read_bytes()
    path.write_bytes(content[:content.rindex(files.MARK)])
    with h5py.File(path, "r+") as file:
        damage(file)


@pytest.mark.parametrize("name, damage, said", [
    ("results.h5", flipped, "is damaged, its bytes do not match the checksum at its end"),
    ("results.h5", lambda path: path.write_bytes(b"no HDF5"), "is no result of msalab evaluate"),
    ("results.h5", lambda path: unsealed(path, lambda file: file.__delitem__("run")), "is no result of msalab evaluate"),
    ("summary.json", lambda path: path.write_text("{}"), 'format is "None", must be "msa-report"; it is not of this run'),
    ("summary.json", lambda path: path.write_text("[]"), 'format is "None", must be "msa-report"; it is not of this run'),
    ("summary.json", lambda path: path.write_text("[" * 300000), "not a readable JSON file"),
    ("summary.json", lambda path: path.unlink(), "no such file; --overwrite begins anew")])
def test_results_that_are_damaged_are_not_taken_as_complete(complete, capsys, name, damage, said):
    out, again = complete
    damage(out / name)
    code, (_, errors) = again(capsys)
    assert code == 2 and f"error: {out / name}: {said}" in errors


def test_results_without_a_checksum_are_taken(complete, capsys):
    """As the programs take them: HDF5 drops it when a file changes."""
    out, again = complete
    unsealed(out / "results.h5", lambda file: file.attrs.__setitem__("note", "mine"))
    assert again(capsys)[0] == 0


@pytest.mark.parametrize("damage, said", [
    (lambda tables: tables["layers"]["rows"].append({"layer": "x"}), "table layers, row 2: layer is 'x', must be"),
    (lambda tables: tables["layers"]["rows"].append({"layer": -1}), r"layers are \[0, 1, -1\], must be numbers"),
    (lambda tables: tables["layers"]["rows"].append({"layer": 1}), r"layers are \[0, 1, 1\], must be .* each once"),
    (lambda tables: tables["own_settings"]["columns"].remove("top_k"), "own_settings lacks 'top_k'"),
    (lambda tables: tables["own_settings"]["rows"][0].update(layer=7), "own_settings has layer 7, which layers"),
    (lambda tables: tables.pop("layers"), "has no table layers")])
def test_advice_that_is_damaged(tmp_path, damage, said):
    path = make_advice(tmp_path / "summary.json", {0: None, 1: ("quest", 16, 2, 0, 1)})
    content = json.loads(path.read_text())
    damage(content["tables"])
    path.write_text(json.dumps(content))
    with pytest.raises(msalab.InputError, match=f"{path}: {said}"):
        advice.read(path)


def test_advice_of_other_sizes_depths_and_versions(tmp_path):
    def refused(said, **change):
        path = make_advice(tmp_path / "summary.json", {0: ("quest", 16, change.pop("top_k", 2), 0, 1)})
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(msalab.InputError, match=f"^{path}: {said}"):
            advice.read(path)

    refused("layer 0: top_k is 1000000000000, must be at most 2147483647", top_k=10 ** 12)
    refused("is damaged", tables={"own_settings": 5})
    refused("format_version is 99, must be 1", format_version=99)
    (tmp_path / "summary.json").write_text("[" * 300000)
    with pytest.raises(msalab.InputError, match="not a readable JSON file"):
        advice.read(tmp_path)


@pytest.mark.parametrize("more, said", [
    (["--top-k", "99999999999"], "--top-k is 99999999999, must be at most 2147483647"),
    (["--top-k", "2147483647"], "not enough memory: an array of .* int32 cannot be had")])
def test_budgets_beyond_all_memory(folder, text_file, tmp_path, capsys, more, said):  # noqa: F811
    words = [str(folder), "--text", str(text_file), "--bytes", "--out", str(tmp_path / "out"), "--context", "200",
             "--tasks", "", "--sequences", "1", "--selectors", "window", "--block-size", str(BLOCK), *more]
    assert msalab.evaluation.__main__.main(words) == 2
    assert re.search(f"error: {said}", capsys.readouterr().err)


def test_a_full_disk_is_named_with_its_file(folder, text_file, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(files.os, "fsync", lambda file: None)
    words = (folder, text_file, tmp_path / "out", "--selectors", "window", "--tasks", "", "--sequences", "1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for limit, where in ((300, "units/run.json"), (5000, "units/text-0.json"), (40000, "loss_by_")):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            code = evaluate(*words, "--overwrite")
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            said = capsys.readouterr().err
            assert code == 2 and f"{tmp_path / 'out' / where}" in said and "File too large" in said, (limit, said)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert evaluate(*words) == 0


def make_looped():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.model = Looped(model.config)
    return model


def make_modern():
    """Its get_decoder() is a part of the language head."""
    of = {"global_rope_theta": 1e4, "layer_types": ["full_attention"] * 4, "hidden_size": 128,
          "cls_token_id": 0, "sep_token_id": 0}
    return transformers.ModernBertDecoderForCausalLM(transformers.ModernBertDecoderConfig(**SIZES | of))


@pytest.mark.parametrize("make", [make_looped, make_modern])
def test_layers_that_run_twice_and_decoders_of_another_name_are_scored(make):
    torch.manual_seed(0)
    model, ids = make().eval(), np.random.default_rng(0).integers(0, 97, 80)
    settings = [scoring.Setting(f"mean-key@{blocks * BLOCK}", "mean-key", Choice("mean-key", Rule(BLOCK, blocks)), ())
                for blocks in (5, 2)]
    scores = scoring.Scorer(model, settings, None)(ids)
    with torch.no_grad():
        logits = model(torch.as_tensor(ids)[None]).logits[0, :-1]
    nats = torch.nn.functional.cross_entropy(logits, torch.as_tensor(ids[1:]), reduction="none")
    dense, whole, sparse = scores.nats
    np.testing.assert_allclose(dense, nats, rtol=1e-4)
    np.testing.assert_allclose(whole, nats, rtol=1e-4)  # of all blocks
    assert np.abs(sparse - dense).max() > 1e-3 and (scores.layer_error[1] > 1e-3).any()
