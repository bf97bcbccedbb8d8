# SPDX-License-Identifier: MIT
"""What a run of msalab train leaves: killed at any point of a save, damaged, on a full disk, and that its model has
every tensor of the checkpoint."""

import argparse
import hashlib
import json
import os
import pickle
import shutil
import sys
import types

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_train import SIZES, make_model, start, tiny, torch, train, transformers  # noqa: F401

# test_train skips where PyTorch is not
from safetensors.torch import load_file as load_tensors, save_file as save_tensors  # noqa: E402, I001

from msalab.capture.layer import CaptureError
from msalab.training import checkpoint, learner

HOW = ["--steps", 3, "--warmup-steps", 1, "--save-every", 2, "--index-lr", 1e-2, "--deterministic"]
_WRITES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")
_watch = []  # of one that is told of each file operation before it is made


def _told(event, arguments):
    if _watch and event in _WRITES:
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        watch = _watch.pop()  # what it does itself is not told
        watch()
        _watch.append(watch)


sys.addaudithook(_told)


def files_of(folder):
    """Path -> bytes; of curves without how fast it was."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[str(path.relative_to(folder))] = path.read_bytes()
    if "curves.csv" in found:
        found["curves.csv"] = [line for line in found["curves.csv"].splitlines() if b"per_second" not in line]
    if "summary.json" in found:
        summary = json.loads(found["summary.json"])
        summary["tables"]["trained"]["rows"][0].pop("last_tokens_per_second")
        found["summary.json"] = summary
    return found


def moments_of(out, kept, run):
    """A copy of `out` as it was before each file operation of run(), of equal ones the first."""
    seen = set()

    def keep():
        if not out.exists():
            return
        names = [(str(path.relative_to(out)), path.is_file() and path.read_bytes()) for path in out.rglob("*")]
        digest = hashlib.sha256(repr(sorted(names)).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            shutil.copytree(out, kept / str(len(seen)))

    _watch.append(keep)
    try:
        assert run() == 0
    finally:
        _watch.clear()
    return sorted(kept.iterdir(), key=lambda path: int(path.name))


def test_killed_before_any_file_operation_it_goes_on_to_the_same_bytes(tiny, tmp_path):  # noqa: F811
    whole = tmp_path / "whole"
    moments = moments_of(whole, tmp_path / "killed", lambda: train(tiny, whole, *HOW))
    expected = files_of(whole)
    assert {"model/model.safetensors", "state-3/part-0.safetensors", "summary.json"} <= expected.keys()
    assert json.loads((whole / "model/msalab_train.json").read_text())["step"] == 3
    held = {name for moment in moments for name in os.listdir(moment)}
    assert {"state-2.partial", "state-2", "state-3.partial", "model.partial", "model.old", "state-2.old"} <= held
    for moment in moments:
        was = sorted(files_of(moment))
        assert train(tiny, moment, *HOW, "--resume") == 0, was
        found = files_of(moment)
        assert found.keys() == expected.keys(), was
        assert not [name for name in found if found[name] != expected[name]], was


def test_killed_while_it_replaces_a_run_it_begins_anew(tiny, tmp_path):  # noqa: F811
    whole, other = tmp_path / "whole", [*HOW, "--lr", 2e-2]
    assert train(tiny, whole, *HOW) == 0
    expected = files_of(whole)
    assert train(tiny, tmp_path / "a", *other) == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moments = moments_of(tmp_path / "b", tmp_path / "killed", lambda: train(tiny, tmp_path / "b", *HOW, "--overwrite"))
    early = [moment for moment in moments if not (moment / "state-2.partial").exists()]
    for moment in early[1:10]:
        assert train(tiny, moment, *HOW, "--overwrite") == 0
        assert files_of(moment) == expected


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):  # noqa: F811
    """A run that was stopped behind its first step."""
    out = tmp_path_factory.mktemp("stopped") / "a"
    assert train(tiny, out, *HOW, "--seconds", 0) == 130
    return out


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def sealed(state):
    """As one who means harm seals it."""
    names = [*sorted(path.name for path in state.glob("part-*")), "progress.json"]
    (state / "SHA256SUMS").write_text("".join(f"{hashlib.sha256((state / name).read_bytes()).hexdigest()}  {name}\n"
                                              for name in names))


def told(content):
    """Sealed, with that progress."""
    def damage(state):
        (state / "progress.json").write_text(content)
        sealed(state)
    return damage


def other_weights(state):
    made = load_file(state / "part-0.safetensors")
    save_file({name: one[:1] if one.ndim else one for name, one in made.items()}, state / "part-0.safetensors")
    sealed(state)


PART, PROGRESS, SUMS = "part-0.safetensors", "progress.json", "SHA256SUMS"
DAMAGES = [
    *[(f"{name}, bit at {at}", lambda state, name=name, at=at: flipped(state / name, at), f"state-1/{name}: is damaged")
      for name, ats in ((PART, (3, 40, 5000, -1)), (PROGRESS, (0, 12))) for at in ats],
    ("SHA256SUMS, bit of a sum", lambda state: flipped(state / SUMS, 3), f"state-1/{PART}: is damaged"),
    ("SHA256SUMS, bit of a name", lambda state: flipped(state / SUMS, 68), "SHA256SUMS: is damaged: it must name part-0"),
    *[(f"{name} cut", lambda state, name=name: os.truncate(state / name, 40), "is damaged") for name in (PART, PROGRESS, SUMS)],
    *[(f"{name} empty", lambda state, name=name: os.truncate(state / name, 0), "is damaged") for name in (PART, PROGRESS, SUMS)],
    *[(f"no {name}", lambda state, name=name: (state / name).unlink(), f"it has no file {name}") for name in (PART, PROGRESS, SUMS)],
    ("[]", told("[]"), "progress.json: must have smooth, least and step 1"),
    ("step 99", told('{"step": 99, "smooth": 1.0, "least": 1.0}'), "progress.json: must have smooth, least and step 1"),
    ("step as text", told('{"step": "1", "smooth": 1.0, "least": 1.0}'), "must have smooth, least and step 1"),
    ("another key", told('{"step": 1, "smooth": 1.0, "least": 1.0, "more": 1}'), "must have smooth, least and step 1"),
    ("smooth NaN", told('{"step": 1, "smooth": NaN, "least": 1.0}'), "smooth is nan, must be a number"),
    ("smooth null", told('{"step": 1, "smooth": null, "least": 1.0}'), "smooth is None, must be a number"),
    ("nested", told("[" * 300000), "progress.json: is damaged, and no JSON"),
    ("other weights", other_weights, "state-1: does not hold the weights of this model"),
    ("a newer, empty one", lambda state: (state.parent / "state-2").mkdir(), "state-2: is damaged, or was written by"),
    ("a file as state", lambda state: (state.parent / "state-2").write_text(""), "state-2: is a file, must be a folder"),
    ("behind the last step", lambda state: (state.rename(state.parent / "state-9"),
                                            told('{"step": 9, "smooth": 1.0, "least": 1.0}')(state.parent / "state-9")),
     "state-9: is behind --steps = 3"),
    ("curves.csv, a line", lambda state: (state.parent / "curves.csv").write_text("step,group,name,part,value\nabc\n"),
     "curves.csv: line 2 is damaged: 'abc\\n' is no step,group,name,part,value"),
    ("curves.csv binary", lambda state: (state.parent / "curves.csv").write_bytes(b"\xff\xfe"), "curves.csv: is damaged"),
    ("no curves.csv", lambda state: (state.parent / "curves.csv").unlink(), "it has no loss of step 0"),
    ("run.json []", lambda state: (state.parent / "run.json").write_text("[]"), "run.json: must be a JSON object"),
]


@pytest.mark.parametrize("damage, why", [one[1:] for one in DAMAGES], ids=[one[0] for one in DAMAGES])
def test_a_damaged_state_is_refused_by_name(tiny, stopped, tmp_path, capsys, damage, why):  # noqa: F811
    out = tmp_path / "a"
    shutil.copytree(stopped, out)
    damage(out / "state-1")
    was = files_of(out)
    capsys.readouterr()
    assert train(tiny, out, *HOW, "--resume") == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and why in said[0], said
    assert files_of(out) == was


def test_what_is_no_state_is_left_alone(tiny, stopped, tmp_path):  # noqa: F811
    out = tmp_path / "a"
    shutil.copytree(stopped, out)
    for name in ("state-abc", "state-", "state-02", "mine.old"):
        (out / name).mkdir()
    assert train(tiny, out, *HOW, "--resume") == 0
    assert {"state-abc", "state-", "state-02", "mine.old", "state-3"} <= set(os.listdir(out))


class Trap:
    def __reduce__(self):
        return os.mkdir, (os.environ["TRAP"],)


def test_no_pickle_of_a_state_is_run(tiny, stopped, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    for number, name in enumerate((".metadata", "__0_0.distcp", PART, PROGRESS, SUMS)):
        out = tmp_path / str(number)
        shutil.copytree(stopped, out)
        (out / "state-1" / name).write_bytes(pickle.dumps(Trap()))
        if name in (PART, PROGRESS):
            sealed(out / "state-1")
        assert train(tiny, out, *HOW, "--resume") == (0 if name in (".metadata", "__0_0.distcp") else 2)
        assert not (tmp_path / "sprung").exists()


# A process whose files may have so many bytes: writes beyond fail, as on a full disk.
def test_curves_are_on_the_device_before_a_state_is(tiny, tmp_path, monkeypatch):  # noqa: F811
    synced, own_fsync, own_save, saved = {}, os.fsync, checkpoint.save, []

    def fsync(file):
        own_fsync(file)
        synced[os.fstat(file).st_ino] = os.fstat(file).st_size

    def save(out, *given):
        curves = (out / "curves.csv").stat()
        saved.append(synced.get(curves.st_ino) == curves.st_size)
        own_save(out, *given)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(checkpoint, "save", save)
    assert train(tiny, tmp_path / "a", *HOW) == 0
    assert saved == [True, True]


LIMITED = """
import resource, signal, sys
import msalab.training.run
from msalab.training.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[1].split(",")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert main(sys.argv[2:]) == 2, limit
"""


def test_a_full_disk_is_a_message_and_the_run_goes_on_with_room(tiny, tmp_path):  # noqa: F811
    whole, out = tmp_path / "whole", tmp_path / "a"
    assert train(tiny, whole, *HOW) == 0
    sizes = {path.name: path.stat().st_size for path in whole.rglob("*") if path.is_file()}
    assert sizes["model.safetensors"] < sizes["part-0.safetensors"]
    limits = (0, 100, 900, 2000, 50000, sizes["part-0.safetensors"] - 1)
    code, errors = start(["-c", LIMITED, ",".join(map(str, limits))], tiny, out, *HOW, "--resume")
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code == 0 and len(said) == len(limits) and "Traceback" not in errors, errors
    assert all(line.startswith(f"error: {out}/") and line.endswith(": File too large") for line in said), said
    assert train(tiny, out, *HOW, "--resume") == 0
    assert files_of(out) == files_of(whole)


def test_a_full_disk_is_named_while_the_model_is_written(tiny, tmp_path, monkeypatch, capsys):  # noqa: F811
    from safetensors import SafetensorError

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    whole, out = tmp_path / "whole", tmp_path / "a"
    assert train(tiny, whole, *HOW) == 0
    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedModel, "save_pretrained", full)
        assert train(tiny, out, *HOW) == 2
    assert f"error: {out}/model: cannot be written: " in capsys.readouterr().err
    assert train(tiny, out, *HOW, "--resume") == 0
    assert files_of(out) == files_of(whole)


def test_what_torchrun_would_set_is_named(monkeypatch):
    whole = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    learner.check_launcher(whole, False)
    whole["LOCAL_RANK"] = "0"
    learner.check_launcher(whole, True)
    for name, value, why in (("WORLD_SIZE", "x", "WORLD_SIZE is 'x' in the environment"), ("WORLD_SIZE", "0", "at least 1"),
                             ("RANK", None, "RANK is not: torchrun sets both"), ("RANK", "-1", "RANK is '-1'"),
                             ("RANK", "2", "RANK is 2 in the environment, must be less than WORLD_SIZE = 2"),
                             ("LOCAL_RANK", None, "LOCAL_RANK is not"), ("LOCAL_RANK", "x", "LOCAL_RANK is 'x'"),
                             ("MASTER_ADDR", None, "MASTER_ADDR is not")):
        with pytest.raises(CaptureError, match=why):
            learner.check_launcher({one: text for one, text in (whole | {name: value}).items() if text is not None}, True)


def make_glm(**changes):
    """Its router has a buffer, and keeps it in float32 whatever the weights are."""
    torch.manual_seed(0)
    of = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
          "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    model = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**SIZES | of | changes))
    for name, one in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            one.copy_(torch.linspace(-1, 1, len(one)) / 3)  # no number of bfloat16
    return model


def test_the_model_has_every_tensor_of_the_checkpoint_in_its_own_type(tiny, tmp_path):  # noqa: F811
    how = ["--steps", 1, "--warmup-steps", 1]  # the model does not change
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).partition(".")[2]
        model = make_glm().to(dtype)
        for router in (layer.mlp.gate for layer in model.model.layers[1:]):
            router.e_score_correction_bias = torch.linspace(-1, 1, 4) / 3
        model.save_pretrained(tiny / name)
        assert train(tiny, tmp_path / name, *how, model=name) == 0
        own, made = (load_tensors(folder / "model.safetensors") for folder in (tiny / name, tmp_path / name / "model"))
        assert "model.layers.1.mlp.gate.e_score_correction_bias" in own and own.keys() == made.keys()
        assert {key: one.dtype for key, one in own.items()} == {key: one.dtype for key, one in made.items()}
        assert all(torch.equal(own[key], made[key]) for key in own)
        assert json.loads((tmp_path / name / "model/config.json").read_text())["dtype"] == name
        tokens = torch.arange(32)[None]
        first, second = (transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
                         for folder in (tiny / name, tmp_path / name / "model"))
        assert first.dtype == dtype and torch.equal(first, second)


def test_what_the_model_has_no_place_for_stays_as_it_is(tiny, tmp_path, monkeypatch):  # noqa: F811
    """Of a head that foretells several tokens, which the class names (layer 46), and of nobody's; layer 1, which it
    names too, is one of this model's, whose experts it reads as one tensor."""
    patterns = transformers.Glm4MoeForCausalLM._keys_to_ignore_on_load_unexpected
    monkeypatch.setattr(transformers.Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected",
                        [*patterns, r"model\.layers\.1\."])
    others = {"model.layers.46.eh_proj.weight": torch.linspace(-1, 1, 32 * 64).view(32, 64).bfloat16(),
              "model.layers.46.enorm.weight": torch.arange(32.0), "value_head.weight": torch.ones(1, 32)}
    for name, size in (("one", "1GB"), ("many", "20KB")):
        make_glm().save_pretrained(tiny / name, max_shard_size=size)
        save_tensors(others, tiny / name / "model-of-others.safetensors")
        index = tiny / name / "model.safetensors.index.json"
        if index.is_file():
            told = json.loads(index.read_text())
            told["weight_map"] |= dict.fromkeys(others, "model-of-others.safetensors")
            index.write_text(json.dumps(told))
        else:
            save_tensors(others | load_tensors(tiny / name / "model.safetensors"), tiny / name / "model.safetensors",
                         {"format": "pt"})
            (tiny / name / "model-of-others.safetensors").unlink()
        own = all_tensors(tiny / name)
        assert train(tiny, tmp_path / name, "--steps", 1, "--warmup-steps", 1, model=name) == 0
        made = all_tensors(tmp_path / name / "model")
        assert own.keys() == made.keys() >= others.keys()
        assert all(own[key].dtype == one.dtype and torch.equal(own[key], one) for key, one in made.items())
        tokens = torch.arange(32)[None]
        first, second = (transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
                         for folder in (tiny / name, tmp_path / name / "model"))
        assert torch.equal(first, second)


def all_tensors(folder):
    """Of all files; no name is in two of them, and an index that is there names the file of each."""
    found, index = {}, folder / "model.safetensors.index.json"
    told = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    for path in sorted(set(folder.glob("*.safetensors")) - {folder / "indexer.safetensors"}):
        of_file = load_tensors(path)
        assert not found.keys() & of_file.keys()
        assert not told or all(told[name] == path.name for name in of_file)
        found |= of_file
    return found


def test_a_model_of_quantised_weights_keeps_what_is_of_no_weight():
    """Frequencies of RoPE stay float32, and so does what the model keeps in that type."""
    from msalab.capture.gguf import storable

    model = make_model().to(torch.bfloat16)
    frequencies = model.model.rotary_emb.inv_freq = 1 / 1e4 ** (torch.arange(0, 16, 2) / 16)
    model.model.norm.float()
    model.config.quantization_config = {"quant_method": "gguf"}
    made = storable(model)
    assert torch.equal(made.model.rotary_emb.inv_freq, frequencies)
    assert made.model.norm.weight.dtype == torch.float32 and made.dtype == torch.bfloat16
    assert made.lm_head.weight is made.model.embed_tokens.weight
    assert all(torch.equal(one, made.state_dict()[name]) for name, one in model.state_dict().items())


def test_a_run_goes_on_with_another_number_of_processes(tiny, tmp_path):  # noqa: F811
    """Two begin it, one goes on, two end it."""
    rate = 1e-3
    how = ["--steps", 3, "--warmup-steps", 1, "--lr", rate, "--index-lr", rate]
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "msalab.training"]
    assert train(tiny, tmp_path / "one", *how) == 0
    code, errors = start(two, tiny, tmp_path / "a", *how, "--seconds", 0)
    assert sorted(os.listdir(tmp_path / "a/state-1")) == [SUMS, PART, "part-1.safetensors", PROGRESS], errors
    assert train(tiny, tmp_path / "a", *how, "--resume", "--seconds", 0) == 130
    assert sorted(os.listdir(tmp_path / "a/state-2")) == [SUMS, PART, PROGRESS]
    code, errors = start(two, tiny, tmp_path / "a", *how, "--resume")
    assert code == 0, errors
    # Gradients are added in another order: see test_two_processes_take_the_steps_of_one.
    for name in ("model.safetensors", "indexer.safetensors"):
        made = [load_file(tmp_path / run / "model" / name) for run in ("one", "a")]
        apart = np.concatenate([np.abs(made[0][each] - made[1][each]).ravel() for each in made[0]])
        assert apart.max() <= 3 * 2 * rate and np.mean(apart > 1e-2 * rate) < 0.01


@pytest.mark.parametrize("words", ["", "checkpointing"])
def test_one_process_takes_the_steps_that_fsdp2_takes(monkeypatch, words):
    """With bfloat16, by the same bits: losses, gradients, norms and weights."""
    def steps(alone):
        monkeypatch.setattr(learner, "ALONE", alone)
        model, attention = make_model(attn_implementation="eager"), types.SimpleNamespace(warming=False, kl={}, keeps=True)
        if words:
            learner.keep_no_activations(model, attention)
        made = learner.Learner(model, attention).train()
        learner.shard(made, group, torch.bfloat16)
        optimizer = learner.make_optimizer(made, argparse.Namespace(lr=1e-2, index_lr=1e-2, weight_decay=0.1))
        found, tokens, positions = [], torch.arange(24) * 7 % 256, torch.arange(24)
        for step in range(3):
            for micro in range(2):
                nats, _ = made(tokens + step, positions, tokens.roll(-1 - micro))
                assert (model.model.norm.weight.dtype == torch.bfloat16) or not alone
                nats.backward()
                found.append(nats.detach())
            with torch.no_grad():
                made(tokens, positions, tokens)
            assert all(one.dtype == torch.float32 for one in model.state_dict().values())
            found += [one.grad.clone() for one in made.parameters()]
            found.append(torch.tensor(list(learner.clip(optimizer, 0.5).values())))
            optimizer.step()
            optimizer.zero_grad()
        return [one.full_tensor() if hasattr(one, "full_tensor") else one
                for one in (*found, *(weight.detach() for weight in made.parameters()))]

    group = learner.Group("cpu")
    try:
        ours, theirs = steps(1 << 31), steps(0)
    finally:
        group.close()
    assert len(ours) == len(theirs) > 60
    assert all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(ours, theirs))
