# SPDX-License-Identifier: MIT
"""msalab train on a tiny Llama of bytes with random weights. Needs PyTorch, transformers and the compiled
module."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

from make_indexer import make_indexer  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import msalab.transformers as mt  # noqa: E402
from msalab import results, selectors  # noqa: E402
from msalab.capture import fitted  # noqa: E402
from studies.pilot.runs import read_points  # noqa: E402
from msalab.training import attention as attentions  # noqa: E402
from msalab.training import data, learner  # noqa: E402
from msalab.training.__main__ import main  # noqa: E402
from msalab.training.run import alone_in  # noqa: E402

torch.set_num_threads(1)
CONTEXT, BLOCK, TOP_K, ALL = 64, 8, 3, 8  # ALL: blocks of a row
SIZES = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.1,
         "max_position_embeddings": 512, "tie_word_embeddings": True}
# Two correct runs differ by roundings alone. A loss is made by sums behind each other: products of a layer
# (hidden size, heads, keys, products of the MLP), the logits and their normaliser, tokens of the batch. A sum
# of n terms in another order is off by at most n roundoffs; what is kept in bfloat16 is off by one of its own.
DEPTH = SIZES["num_hidden_layers"] * (2 * SIZES["hidden_size"] + SIZES["intermediate_size"] + CONTEXT
                                      + 2 * SIZES["head_dim"]) + SIZES["vocab_size"] + 2 * CONTEXT
KEPT = 2 * SIZES["num_hidden_layers"] + 2  # roundings of a token's state: two of a layer, embedding, last norm
IN_ANOTHER_ORDER = {"float32": 2 * DEPTH * 2 ** -24, "bfloat16": KEPT * 2 ** -8}
COMMON = ["--bytes", "--context", CONTEXT, "--batch", 2, "--block-size", BLOCK, "--top-k", TOP_K,
          "--index-dim", 16, "--lr", 1e-2, "--lr-warmup", 1, "--probe-every", 0]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def make_model(**changes):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | changes))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a model and a text of a few words."""
    folder = tmp_path_factory.mktemp("tiny")
    make_model().save_pretrained(folder / "model")
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(2, 7))) for _ in range(30)]
    texts = [" ".join(rng.choice(words, rng.integers(4, 60))) for _ in range(20)]
    (folder / "text.txt").write_text("\0".join(texts))
    return folder


def command(tiny, out, *words, model="model", text="text.txt"):
    return list(map(str, [tiny / model, "--data", tiny / text, "--out", out, *COMMON, *words]))


def train(tiny, out, *words, **of):
    return main(command(tiny, out, *words, **of))


def values_of(out, name, part="", group="train"):
    rows = [line.split(",") for line in (out / "curves.csv").read_text().splitlines()]
    return [float(row[4]) for row in rows if row[1:4] == [group, name, part]]


def first_batch(tiny):
    rows = rows_of(tiny)
    return rows.batch(rows.order(0, 2, 0))


def assert_first_loss(out, model, tokens, cu):
    """The loss of a run's first step is the model's on each document by itself."""
    nats, count = 0.0, 0
    for begin, end in zip(cu, cu[1:]):
        if end - begin > 1:
            ids = torch.from_numpy(tokens[begin:end])[None]
            with torch.no_grad():
                nats += float(model(ids, labels=ids).loss.double()) * (end - begin - 1)
            count += end - begin - 1
    # Sums of `count` float32 numbers in another order.
    assert values_of(out, "loss")[0] == pytest.approx(nats / count, rel=count * 2 ** -24)


def weights_of(out):
    return load_file(out / "model.safetensors")


def test_the_loss_falls_and_the_model_is_an_ordinary_folder(tiny, tmp_path):
    assert train(tiny, tmp_path / "a", "--steps", 16, "--warmup-steps", 4, "--probe-every", 8, "--log-every", 1) == 0
    loss, kl = values_of(tmp_path / "a", "loss"), values_of(tmp_path / "a", "kl_loss", "0")
    assert len(loss) == 16 and loss[-1] < loss[0] - 1
    assert kl[3] < kl[0]  # of the warm-up, on full support
    for name in ("block_recall", "mass_kept", "entropy_dense", "entropy_sparse"):
        assert len(values_of(tmp_path / "a", name, "1", "probe")) == 3
    assert len(list(read_points(tmp_path / "a/curves.csv"))) > 100
    trained = results.open(tmp_path / "a", "msalab train")["trained"].row()
    assert (trained["last_step"], trained["trained_tokens"]) == (16, 16 * 2 * CONTEXT)
    for name, of, values in (("loss", "train", loss[14:]),
                             *((name, of, [value for layer in "01" for value in values_of(tmp_path / "a", name, layer, of)[-at:]])
                               for name, of, at in (("kl_loss", "train", 2), ("mass_kept", "probe", 1)))):
        assert trained[f"last_{name}"] == pytest.approx(np.mean(values)), of
    made, own = weights_of(tmp_path / "a/model"), weights_of(tiny / "model")
    assert {name: one.shape for name, one in made.items()} == {name: one.shape for name, one in own.items()}
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a/model")
    assert type(read).__name__ == "LlamaForCausalLM" and read.config.architectures == ["LlamaForCausalLM"]
    names = load_file(tmp_path / "a/model/indexer.safetensors")
    assert "model.layers.1.self_attn.indexer.q_norm.weight" in names


@pytest.mark.parametrize("how", [[], ["--index-norm", "none", "--index-rotary", 8, "--forced-first", 1]])
def test_the_loss_is_that_of_the_model_that_runs_the_folder(tiny, tmp_path, how):
    """Nothing is learned (the rates round to 0): the folder holds what the first step has computed with."""
    rates = ["--lr", 1e-30, "--index-lr", 1e-30]
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0, *rates, *how) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a/model")
    mt.register()
    mt.configure(model, indexer=tmp_path / "a/model")
    model.set_attn_implementation(mt.NAME)
    tokens, cu, _ = first_batch(tiny)
    assert_first_loss(tmp_path / "a", model, tokens, cu)


def rows_of(tiny):
    from msalab.evaluation import text
    return data.read([tiny / "text.txt"], text.Bytes, CONTEXT, print)


def attached(model, kind, top_k, detach=True, branches=True):
    options = Namespace(dense_layers=[], attention=kind, indexer=None, index_dim=16, index_rotary=None, index_norm="rms",
                        seed=0)
    modules, windows, layers = attentions.trainable(model, options)
    made = {}
    if kind == "msa":
        made = {number: attentions.branch_of(form).to(model.dtype)
                for number, form in attentions.forms_of(model, layers, options).items()}
    attention = attentions.Attention(kind, selectors.Rule(BLOCK, top_k), frozenset(), detach)
    attentions.attach(modules, windows, model, attention, made)
    return attention


def gradients(model, attention, tokens, kl_weight=0.0):
    """Of the model, from its loss over one sequence."""
    if attention is not None:
        attention.begin([0, len(tokens)], torch.arange(len(tokens)), False)
    loss = model(tokens[None], labels=tokens[None], use_cache=False).loss
    if kl_weight:
        loss = loss + kl_weight * sum(attention.kl.values())
    model.zero_grad()
    loss.backward()
    return {name: one.grad.double() for name, one in model.named_parameters() if "indexer" not in name}


def test_with_all_blocks_gradients_are_those_of_dense_attention():
    """No gradient is farther from that in double precision than four times the model's own in single."""
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 256, CONTEXT))
    exact = gradients(make_model().double(), None, tokens)
    own = gradients(make_model(), None, tokens)

    def error(kind, top_k):
        model = make_model()
        found = gradients(model, attached(model, kind, top_k), tokens)
        return {name: (found[name] - exact[name]).norm() for name in exact}

    bound = {name: 4 * (own[name] - exact[name]).norm() for name in exact}
    for kind in ("msa", "dense", "window"):
        assert all(value <= bound[name] for name, value in error(kind, ALL).items()), kind
    assert any(value > 100 * bound[name] for name, value in error("msa", 1).items())


@pytest.mark.parametrize("detach", [True, False])
def test_detached_the_kl_has_no_gradient_in_the_model(detach):
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 256, CONTEXT))
    model = make_model()
    attention = attached(model, "msa", TOP_K, detach)
    without, with_kl = (gradients(model, attention, tokens, weight) for weight in (0.0, 1.0))
    same = [torch.equal(without[name], with_kl[name]) for name in without]
    assert all(same) if detach else not all(same)
    assert all(one.grad.norm() > 0 for name, one in model.named_parameters() if "indexer" in name)


def test_the_warm_up_leaves_the_model_as_it_is(tiny, tmp_path):
    assert train(tiny, tmp_path / "a", "--steps", 3, "--warmup-steps", 3) == 0
    made, own = weights_of(tmp_path / "a/model"), weights_of(tiny / "model")
    assert all(made[name].tobytes() == own[name].tobytes() for name in own)
    assert train(tiny, tmp_path / "b", "--steps", 1, "--warmup-steps", 1, "--index-lr", 1e-30) == 0
    first, last = (fitted.read(tmp_path / run / "model")[0].w_q for run in "ba")
    assert not np.array_equal(first, last)


def start(launch, tiny, out, *words, **of):
    process = subprocess.run([sys.executable, *launch, *command(tiny, out, *words, **of)], stderr=subprocess.PIPE,
                             text=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path),
                                                          "OMP_NUM_THREADS": "1"})
    return process.returncode, process.stderr


# Killed behind the state of step 4, before its model is written.
KILLED = """
import os, signal, sys
from msalab.training import __main__, checkpoint
whole = checkpoint.save_model
checkpoint.save_model = lambda out, *others: (
    os.kill(os.getpid(), signal.SIGKILL) if (out / "state-4").exists() else whole(out, *others))
__main__.main(sys.argv[1:])
"""


def kept(path):
    """Lines of the curves that do not say how fast it was."""
    return [line for line in (path / "curves.csv").read_text().splitlines() if "per_second" not in line]


def test_resumed_after_a_kill_it_writes_the_same_bytes(tiny, tmp_path):
    how = ["--steps", 9, "--warmup-steps", 3, "--save-every", 2, "--deterministic", "--probe-every", 3]
    assert train(tiny, tmp_path / "whole", *how) == 0
    code, errors = start(["-c", KILLED], tiny, tmp_path / "killed", *how)
    assert code == -signal.SIGKILL, errors
    assert [path.name for path in tmp_path.glob("killed/state-*")] == ["state-4"]
    assert train(tiny, tmp_path / "killed", *how, "--resume") == 0
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole")
    for name in ("model.safetensors", "indexer.safetensors", "config.json"):
        assert (tmp_path / "killed/model" / name).read_bytes() == (tmp_path / "whole/model" / name).read_bytes()


def test_stopped_by_time_it_goes_on(tiny, tmp_path):
    how = ["--steps", 3, "--warmup-steps", 0]
    assert train(tiny, tmp_path / "whole", *how) == 0
    for _ in range(2):
        assert train(tiny, tmp_path / "parts", *how, "--resume", "--seconds", 0) == 130
    assert train(tiny, tmp_path / "parts", *how, "--resume") == 0
    assert kept(tmp_path / "parts") == kept(tmp_path / "whole")
    assert [path.name for path in tmp_path.glob("parts/state-*")] == ["state-3"]


UNITS = """
import sys
from msalab.ending import leave
from msalab.training import __main__, learner
learner.units_of = lambda layers: [layers[:2], layers[2:4]]
leave(__main__.main(sys.argv[1:]))
"""


def test_two_processes_take_the_steps_of_one(tiny, tmp_path):
    rate = 1e-3
    how = ["--steps", 3, "--warmup-steps", 1, "--lr", rate, "--index-lr", rate, "--log-every", 1]
    make_model(num_hidden_layers=5).save_pretrained(tiny / "five")  # two units of two, the last one in the root
    assert train(tiny, tmp_path / "one", *how, model="five") == 0
    (tmp_path / "train.py").write_text(UNITS)
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    code, errors = start(two, tiny, tmp_path / "two", *how, model="five")
    assert code == 0, errors
    one, two = (values_of(tmp_path / run, "loss") for run in ("one", "two"))
    assert one[:2] == two[:2]  # the same rows by themselves, before the model has changed
    assert one[2] == pytest.approx(two[2], rel=IN_ANOTHER_ORDER["float32"])
    # Gradients are added in another order. AdamW divides each by its own size: a step is at most its rate
    # (but for the second one's bias correction), and only where a gradient is nothing but rounding it differs.
    for name in ("model.safetensors", "indexer.safetensors"):
        made = [load_file(tmp_path / run / "model" / name) for run in ("one", "two")]
        apart = np.concatenate([np.abs(made[0][each] - made[1][each]).ravel() for each in made[0]])
        assert apart.max() <= 3 * 2 * rate and np.mean(apart > 1e-2 * rate) < 0.01


def test_units_have_neighbours_until_they_are_large(monkeypatch):
    layers = [torch.nn.Linear(4, width, bias=False) for width in (2, 1, 3, 1)]
    monkeypatch.setattr(learner, "UNIT", 12)
    assert learner.units_of(layers) == [layers[:2], layers[2:3]]


def test_a_run_that_diverges_at_once_leaves_what_was_there(tiny, tmp_path, monkeypatch):
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0) == 0
    was = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    monkeypatch.setattr(learner, "cross_entropy", lambda logits, targets: logits.sum() * float("nan"))
    assert train(tiny, tmp_path / "a", "--steps", 2, "--warmup-steps", 0, "--overwrite") == 3
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == was
    assert train(tiny, tmp_path / "b", "--steps", 1, "--warmup-steps", 0) == 3
    monkeypatch.undo()
    assert train(tiny, tmp_path / "b", "--steps", 1, "--warmup-steps", 0) == 0


def test_a_run_that_diverges_keeps_the_last_good_state(tiny, tmp_path, capsys):
    how = ["--steps", 40, "--warmup-steps", 0, "--lr", 30, "--lr-warmup", 1000, "--save-every", 1, "--clip", 1e9]
    assert train(tiny, tmp_path / "a", *how) == 3
    told = json.loads((tmp_path / "a/diverged.json").read_text())
    assert told["kept"] and f"behind step {told['kept']}, the last good ones" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "a").glob("state-*")] == [f"state-{told['kept']}"]
    good = weights_of(tmp_path / "a/model")
    assert all(np.isfinite(one).all() for one in good.values())
    losses = values_of(tmp_path / "a", "loss")
    assert losses[told["kept"] - 1] < min(losses[:told["kept"]]) + 0.5 < losses[-1]


def test_gradients_add_up_over_micro_batches_and_checkpointing_changes_nothing(tiny, tmp_path):
    how = ["--steps", 2, "--warmup-steps", 0, "--lr", 1e-3, "--index-lr", 1e-3]
    assert train(tiny, tmp_path / "a", *how) == 0
    assert train(tiny, tmp_path / "b", *how, "--checkpointing") == 0
    assert kept(tmp_path / "a") == kept(tmp_path / "b")
    assert train(tiny, tmp_path / "c", *how, "--rows", 2) == 0
    for name in ("gradient_norm", "index_gradient_norm", "loss"):
        assert values_of(tmp_path / "a", name) == pytest.approx(values_of(tmp_path / "c", name),
                                                                rel=IN_ANOTHER_ORDER["float32"])


@pytest.mark.parametrize("kind", ["dense", "window", "mean-key"])
def test_controls_have_no_index_branch(tiny, tmp_path, kind):
    assert train(tiny, tmp_path / "a", "--attention", kind, "--steps", 4) == 0
    loss = values_of(tmp_path / "a", "loss")
    assert loss[-1] < loss[0] and not (tmp_path / "a/model/indexer.safetensors").exists()


def test_it_starts_from_a_fit(tiny, tmp_path):
    fit = make_indexer(tmp_path / "results.h5", [0, 1], groups=2, dim=16, model_dim=32)
    words = [word for word in COMMON if word not in ("--block-size", BLOCK, "--top-k", TOP_K)]
    arguments = [tiny / "model", "--data", tiny / "text.txt", "--out", tmp_path / "a", *words, "--indexer", fit,
                 "--steps", 1, "--warmup-steps", 0, "--index-lr", 1e-30, "--dense-layers", 0]
    assert main(list(map(str, arguments))) == 0
    made, given = fitted.read(tmp_path / "a/model"), fitted.read(fit)
    assert list(made) == [1] and np.array_equal(made[1].w_q, given[1].w_q)
    assert np.allclose(made[1].norm_k, given[1].norm_k, atol=2 ** -23)  # less 1 in the file
    assert fitted.rule(tmp_path / "a/model") == fitted.rule(fit)


def test_rows_end_at_documents_and_at_the_context():
    rows = data.Rows(np.arange(12, dtype=np.int32), np.array([0, 3, 8, 11]), 5)
    assert len(rows) == 2
    tokens, cu, targets = rows.batch([1, 0])
    assert tokens.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4] and cu == [0, 3, 5, 8, 10]
    assert targets.tolist() == [6, 7, -100, 9, -100, 1, 2, -100, 4, -100]
    drawn = [rows.order(step, 1, 7)[0] for step in range(6)]
    assert all(sorted(drawn[at:at + 2]) == [0, 1] for at in (0, 2, 4))
    assert rows.order(0, 6, 7) == drawn


def test_text_comes_of_files_folders_and_tokens(tiny, tmp_path):
    lines = [{"text": "one, two"}, {"text": "thrée"}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "in/b.txt").write_text("one, two\0thrée")
    (tmp_path / "in/no.bin").write_bytes(b"\xff")
    out = tmp_path / "tokens.safetensors"
    assert main([str(tiny / "model"), "--data", str(tmp_path / "in"), "--bytes", "--context", "4",
                 "--tokens-out", str(out)]) == 0
    rows = data.read([out], None, 4, print)
    assert bytes(rows.tokens.tolist()).decode() == "one, twothrée" * 2
    assert rows.begins.tolist() == [0, 8, 14, 22]


def test_tokens_that_are_there_are_replaced_where_that_is_asked_for(tiny, tmp_path, capsys):
    out = tmp_path / "tokens.safetensors"
    out.write_text("mine")
    arguments = [str(tiny / "model"), "--data", str(tiny / "text.txt"), "--bytes", "--tokens-out", str(out)]
    assert main([*arguments, "--context", "64"]) == 2
    assert f"error: {out}: exists; --overwrite replaces it\n" in capsys.readouterr().err and out.read_text() == "mine"
    assert main([*arguments, "--context", "64", "--overwrite"]) == 0
    assert len(data.read([out], None, 64, print).tokens) > 64
    assert main([*arguments, "--context", "100000", "--overwrite"]) == 2  # the text is shorter
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_text_comes_of_datasets_on_disk(tiny, tmp_path, capsys):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: .ci/torch-requirements.txt")
    pyarrow = pytest.importorskip("pyarrow", reason="it comes with datasets")
    import pyarrow.parquet

    documents = ["one, two", "thrée"]
    chosen = datasets.Dataset.from_dict({"text": ["dropped", *documents]}).select([1, 2])
    chosen.with_format("arrow").save_to_disk(tmp_path / "in/saved")
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "text": documents}), tmp_path / "b.parquet")
    rows = data.read([tmp_path / "in", tmp_path / "b.parquet"], data.text.Bytes, 4, print)
    assert bytes(rows.tokens.tolist()).decode() == "one, twothrée" * 2
    assert rows.begins.tolist() == [0, 8, 14, 22]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/state.json").write_text("{}")
    (tmp_path / "plain/a.txt").write_text("read")
    assert bytes(data.read([tmp_path / "plain"], data.text.Bytes, 4, print).tokens.tolist()) == b"read"

    def refused(why, path):
        assert train(tiny, tmp_path / "a", text=path) == 2
        assert why in capsys.readouterr().err

    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": documents})}).save_to_disk(tmp_path / "splits")
    refused(f"name the folders of those to read, as {tmp_path}/splits/train", tmp_path / "splits")
    for name, table in (("none", {"id": [1]}), ("other", {"text": ["a", None]})):
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / f"{name}.parquet")
    refused("none.parquet: has no column text", tmp_path / "none.parquet")
    refused("other.parquet: text of row 1 is no string", tmp_path / "other.parquet")


def test_index_branches_come_back_from_their_file(tmp_path):
    form = fitted.Fitted(2, np.ones((8, 6), np.float32), np.ones((4, 6), np.float32), None, None,
                         np.array([0.5, 0.1]), None)
    rule = {"block_size": 64, "top_k": 8, "forced_first": 1, "forced_local": 2}
    path = tmp_path / "indexer.safetensors"
    path.write_bytes(fitted.packed({3: form}, rule, "here"))
    found = fitted.read(tmp_path)[3]
    assert fitted.rule(path) == rule and found.norm_q is None and found.theta is None
    assert np.array_equal(found.frequencies, form.frequencies)


def assert_losses_of_the_cpu(tiny, tmp_path, model="model"):
    how = ["--steps", 3, "--warmup-steps", 1, "--lr", 1e-3, "--index-lr", 1e-3, "--log-every", 1]
    assert train(tiny, tmp_path / "cpu", *how, model=model) == 0
    for dtype, bound in IN_ANOTHER_ORDER.items():
        assert train(tiny, tmp_path / dtype, *how, "--device", "cuda", "--dtype", dtype, model=model) == 0
        for name, part in (("loss", ""), ("kl_loss", "0"), ("gradient_norm", "")):
            cpu, gpu = (values_of(tmp_path / run, name, part) for run in ("cpu", dtype))
            assert gpu == pytest.approx(cpu, rel=bound if name == "loss" else 10 * bound), (dtype, name)


@needs_gpu
def test_on_a_gpu_the_losses_are_those_of_the_cpu(tiny, tmp_path):
    assert_losses_of_the_cpu(tiny, tmp_path)


REFUSED = [
    (["--context", 600], "must be at most 512"),
    (["--context", 512, "--batch", 100], "fewer than --batch = 100"),
    (["--rows", 3], "must be a multiple of 1 process times --rows = 3"),
    (["--attention", "flash"], "there are: msa, dense, oracle"),
    (["--attention", "dense", "--warmup-steps", 3], "--warmup-steps and --indexer are of --attention msa"),
    (["--dense-layers", "0,1"], "no layer is left to select"),
    (["--dense-layers", "7"], "--dense-layers names [7]; layers with attention are [0, 1]"),
    (["--index-rotary", 6], "--index-rotary is 6, must be even"),
    (["--warmup-steps", 5000], "--warmup-steps is 5000, must be from 0 to --steps"),
    (["--lr", 0], "--lr is 0.0, must be above 0"),
    (["--dtype", "bfloat16"], "--dtype must be float32 on the CPU"),
    (["--indexer", "/nowhere"], "/nowhere: no such file"),
    (["--top-k", 1, "--forced-first", 1], "--forced-first + --forced-local is 2, must be at most --top-k = 1"),
]


@pytest.mark.parametrize("words, why", REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_wrong_is_named(tiny, tmp_path, capsys, words, why):
    assert train(tiny, tmp_path / "a", *words) == 2
    assert why in capsys.readouterr().err


def test_text_and_folders_that_will_not_do_are_named(tiny, tmp_path, capsys):
    def refused(why, *words, **of):
        assert train(tiny, tmp_path / "a", *words, **of) == 2
        assert why in capsys.readouterr().err

    (tiny / "short.txt").write_text("short")
    refused("the text has 5 tokens, fewer than --context = 64", text="short.txt")
    (tiny / "bad.jsonl").write_text('{"text": "a"}\n{"txt": 1}\n')
    refused('bad.jsonl: line 2 must be an object with a string "text"', text="bad.jsonl")
    refused("no such file", text="nothing.txt")
    (tiny / "empty").mkdir(exist_ok=True)
    refused("holds no file that ends in .txt, .md, .jsonl, .parquet", text="empty")
    words = [word for word in command(tiny, tmp_path / "a") if word != "--bytes"]
    assert main(words) == 2 and "has no tokenizer" in capsys.readouterr().err
    with alone_in(tmp_path / "a"):
        refused("another run is writing there")
    (tmp_path / "a/mine.txt").write_text("mine")
    refused("exists, and holds no run of msalab train")
    (tmp_path / "a/mine.txt").unlink()
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0) == 0
    refused("holds a run; --resume goes on with it, --overwrite replaces it", "--steps", 1, "--warmup-steps", 0)
    refused("run.json: options clip was 1.0, is 2.0, options lr was 0.01, is 0.5; --resume needs the "
            "options and the build of msalab as recorded, --overwrite begins anew", "--steps", 1, "--warmup-steps", 0, "--lr",
            0.5, "--clip", 2, "--resume")
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0, "--lr", 0.5, "--overwrite") == 0


def test_models_of_tokens_are_no_models_of_bytes(tiny, tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    make_model(vocab_size=600).save_pretrained(tiny / "tokens")
    make_model().save_pretrained(tiny / "words")
    words = Tokenizer(models.WordLevel({"a": 0, "text": 1, "?": 2}, "?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tiny / "words")
    for model, why in (("tokens", "has a vocabulary of 600 tokens: must be from 256 to 512"),
                       ("words", "has a tokenizer of other tokens: leave out --bytes")):
        for words in ([], ["--tokens-out", tmp_path / "tokens.safetensors"]):
            assert train(tiny, tmp_path / "a", *words, model=model) == 2
            assert f"--bytes is for models of bytes, and {tiny / model} {why}" in capsys.readouterr().err
    assert not (tmp_path / "a/run.json").exists() and not (tmp_path / "tokens.safetensors").exists()


def test_a_run_that_goes_on_names_what_is_asked_and_takes_another_cadence_of_the_log(tiny, tmp_path, capsys):
    def refused(why, *words):
        assert train(tiny, tmp_path / "a", *words, "--resume") == 2
        assert f"run.json: {why}; --resume needs the options and the build of msalab" in capsys.readouterr().err

    assert train(tiny, tmp_path / "a", "--steps", 10, "--seconds", 0) == 130
    refused("options steps was 10, is 20", "--steps", 20)
    refused("options warmup was 1, is 2", "--steps", 10, "--warmup-steps", 2)
    refused("options steps was 10, is 20, options warmup was 1, is 3", "--steps", 20, "--warmup-steps", 3)
    assert train(tiny, tmp_path / "a", "--steps", 10, "--log-every", 1, "--resume") == 0
    assert results.open(tmp_path / "a").run["options"]["log_every"] == 1
    assert train(tiny, tmp_path / "b", "--steps", 10, "--log-every", 1) == 0
    assert values_of(tmp_path / "a", "loss") == values_of(tmp_path / "b", "loss")


def test_the_record_says_of_what_build_it_is_and_where_it_ran(tiny, tmp_path, monkeypatch):
    def record():
        return json.loads((tmp_path / "a/run.json").read_text())

    from msalab import _msalab
    from msalab.training import run

    monkeypatch.setattr(_msalab, "commit", "0123456789ab")
    how = ["--steps", 3, "--warmup-steps", 0]
    assert train(tiny, tmp_path / "a", *how, "--seconds", 0) == 130
    assert (record()["device"], record()["commit"]) == ("cpu", "0123456789ab")
    for device in ("another GPU", "another GPU", "cpu"):
        monkeypatch.setattr(run, "device_name", lambda _, device=device: device)
        assert train(tiny, tmp_path / "a", *how, "--resume", "--seconds", 0) in (0, 130)
        assert record()["device"] == "cpu, another GPU"
    assert results.open(tmp_path / "a").run["device"] == "cpu, another GPU"


def test_each_head_its_own_group_is_noted_and_latent_attention_refused(tiny, tmp_path, capsys):
    make_model(num_key_value_heads=4).save_pretrained(tiny / "heads")
    assert train(tiny, tmp_path / "a", "--steps", 1, "--warmup-steps", 0, model="heads") == 0
    assert "the model has no grouped queries" in capsys.readouterr().err
    latent = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8,
                   "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                   "first_k_dense_replace": 2, "num_experts_per_tok": 2, "head_dim": 8}))
    latent.save_pretrained(tiny / "latent")
    assert train(tiny, tmp_path / "b", model="latent") == 2
    assert "latent attention (MLA)" in capsys.readouterr().err


def test_the_kl_may_be_over_all_keys_behind_the_warmup():
    """In the first layer, whose input is that of the warm-up, it is the warm-up's; over the selected blocks it is not."""
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 256, CONTEXT))
    found = []
    for warming, full in ((True, False), (False, True), (False, False)):
        model = make_model()
        attention = attached(model, "msa", 1)
        attention.warming, attention.kl_full_support = warming, full
        attention.begin([0, CONTEXT], torch.arange(CONTEXT), False)
        model(tokens[None], use_cache=False)
        found.append(float(attention.layers[0].kl.detach()))
    assert found[1] == pytest.approx(found[0], rel=1e-5) and abs(found[2] - found[0]) > 0.01 * found[0]


def test_a_plain_kernel_of_dense_attention_is_noted(monkeypatch):
    module = Namespace(num_key_value_groups=2, head_dim=16)
    said = []
    attentions.note_if_plain({0: module}, torch.float32, torch.device("cpu"), said.append)
    assert not said
    monkeypatch.setattr(attentions, "backend_of", lambda _: Namespace(
        answered_by="dense_attention_any; cuDNN: built without its headers"))
    attentions.note_if_plain({0: module}, torch.float32, torch.device("cpu"), said.append)
    assert said == ["note: dense attention runs by the plain kernel, many times slower than another would (cuDNN: built "
                    "without its headers)"]
