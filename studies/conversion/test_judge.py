# SPDX-License-Identifier: MIT
"""The experiment of studies/conversion/README.md: studies/conversion/judge.py on made records, by the rule of that page, and
studies/conversion/gpu.sh with a small model."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS, TOKENS, EXERCISES = 8, 50, 100
sys.path.insert(0, str(ROOT / "studies/conversion"))
import records  # noqa: E402

from msalab.report import content  # noqa: E402
from msalab.training.columns import SHAPES  # noqa: E402


def make_record(folder, arm, seed, config, more, right, steps=10, scale=1.0, first=None, warmup=0, weights="w",
                forced=None):
    """Of an arm whose tokens cost the share `more` more than with dense attention, by document from half of it to
    one and a half, and behind each bin of as many tokens, `first` more in the first bin (default: the same). right:
    of each length. scale: what they cost with dense attention, as a share of the arm dense. forced: what the tokens cost
    above that, as a share, and the right answers, where the first block is forced."""
    rng = np.random.default_rng(7)  # the same text everywhere
    nats = scale * rng.uniform(1, 3, (DOCUMENTS, 2, TOKENS)).sum(2)
    shares = np.array([more if first is None else first, more]) * np.linspace(0.5, 1.5, DOCUMENTS)[:, None]
    rows = [nats, nats * (1 + shares)][:1 if config == "dense" else 2]
    rights = [right if isinstance(right, dict) else {2048: right}] * len(rows)
    configs = ["dense", config][:len(rows)]
    if forced:
        rows.append(rows[1] * (1 + forced[0] * np.linspace(0.5, 1.5, DOCUMENTS)[:, None]))
        rights.append({length: forced[1] for length in rights[0]})
        configs.append(f"{config},first=1")
    evaluation = {
        "configs": configs, "document": list(range(DOCUMENTS)),
        "tokens": [[TOKENS, TOKENS]] * DOCUMENTS, "nats": [row.tolist() for row in rows], "layer_error": [],
        "retrieval": {f"needle@{length}": {"exercise": list(range(EXERCISES)), "right": [
            "".join("1" if number < one[length] else "0" for number in range(EXERCISES)) for one in rights]}
                      for length in rights[0]}}
    run = content({"program": "msalab train", "model": {"model.safetensors": weights, "config.json": f"{seed}"},
                   "inputs": {"tokens": "t"},
                   "options": {"context": 64, "batch": 2, "steps": steps, "warmup": warmup}}, "a run", SHAPES,
                  {"trained": [{"last_step": steps, "trained_tokens": steps * 128}]}, {})
    pack(folder / f"{arm}-seed-{seed}.tar.xz",
         {"summary.json": json.dumps(run), "evaluation.json": json.dumps(evaluation)})


def pack(path, texts):
    with tarfile.open(path, "w:xz") as tar:
        for name, text in texts.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def run_script(program, *arguments):
    done = subprocess.run([sys.executable, ROOT / "studies/conversion" / program, *arguments], text=True,
                          capture_output=True, env={"PYTHONPATH": ":".join(sys.path)})
    return done.returncode, done.stdout, done.stderr


def judged(folder, *words):
    return run_script("judge.py", folder, *words)


def curve(loss):
    rows = [f"{step},train,loss,,{loss(step)}\n{step},train,lr,,1\n" for step in range(46)]
    return "step,group,name,part,value\n" + "".join(rows)


def test_curves_tell_how_far_an_arm_is_behind(tmp_path):
    def dense(step):
        return 2 + 0.1 * (step % 7)

    for arm, loss in (("dense", dense), ("msa-512", lambda step: dense(step) * (1.02 if step < 20 else 1.01))):
        pack(tmp_path / f"{arm}-seed-1.tar.xz", {"curves.csv": curve(loss)})
    code, out, err = run_script("curves.py", tmp_path, "1", tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["msa-512, seeds: 1, steps 0 to 19: +2.00 %, 95 %: +2.00 to +2.00, 20 steps",
                                "msa-512, seeds: 1, steps 20 to 39: +1.00 %, 95 %: +1.00 to +1.00, 20 steps",
                                "msa-512, seeds: 1, steps 40 to 45: +1.00 %, 95 %: +1.00 to +1.00, 6 steps"]
    assert (tmp_path / "conversion_curves.png").exists()
    assert run_script("curves.py", tmp_path, "1,2")[2] == f"{tmp_path}: has no dense-seed-2.tar.xz\n"


def test_curves_tell_what_the_index_branches_learn(tmp_path):
    names = ("block_recall", "score_recall", "mass_kept", "oracle_mass", "entropy_dense", "entropy_sparse")

    def learned(value):
        return curve(lambda step: 2) + "".join(f"{step},{group},{name},{layer},{value + layer}\n" for step in (0, 40)
                                               for group, name in (("train", "kl_loss"), *(("probe", name) for name in names))
                                               for layer in (0, 1))

    for seed, value in ((1, 0.5), (2, 1.0)):
        pack(tmp_path / f"dense-seed-{seed}.tar.xz", {"curves.csv": curve(lambda step: 2)})
        pack(tmp_path / f"msa-512-seed-{seed}.tar.xz", {"curves.csv": learned(value)})
    code, out, err = run_script("curves.py", tmp_path, "1,2", tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [f"msa-512, step {step}: " + ", ".join(f"{name} 1.250" for name in ("kl_loss", *names))
                                     for step in (0, 40)]  # the mean over layers and seeds
    assert (tmp_path / "conversion_dynamics.png").exists()


def test_curves_of_several_seeds_are_averaged(tmp_path):
    for arm, seed, loss in (("dense", 1, 2), ("dense", 2, 3), ("msa-512", 1, 2.1), ("msa-512", 2, 3.5),
                            ("window-512", 2, 3.3)):
        pack(tmp_path / f"{arm}-seed-{seed}.tar.xz", {"curves.csv": curve(lambda step: loss)})
    code, out, err = run_script("curves.py", tmp_path, "1,2")
    assert (code, err) == (0, "")
    assert out.splitlines()[::3] == ["msa-512, seeds: 2, steps 0 to 19: +12.00 %, 95 %: +12.00 to +12.00, 20 steps",
                                     "window-512, seeds: 1, steps 0 to 19: +10.00 %, 95 %: +10.00 to +10.00, 20 steps"]


@pytest.mark.parametrize("more, right, seeds, verdict", [
    (0.002, 90, 2, "near-lossless"),
    (0.002, 90, 1, "undecided"),  # one seed shows nothing of the others
    (0.008, 70, 1, "undecided"),
    (0.0045, 90, 2, "undecided"),  # some documents cost more, so the interval reaches beyond 0.5 %
    (0.008, 90, 2, "not near-lossless"),
    (0.002, 88, 2, "undecided"),  # 2 of 100 exercises are not known to be less than 2 points
    (0.002, 70, 2, "not near-lossless"),
])
def test_intervals_decide(tmp_path, more, right, seeds, verdict):
    for seed in range(seeds):
        make_record(tmp_path, "dense", seed, "dense", 0, 90)
        make_record(tmp_path, "msa-512", seed, "index@512", more, right)
    code, out, _ = judged(tmp_path)
    assert code == 0 and f"msa-512, seeds: {seeds}: {verdict}\n" in out
    assert float(re.search(r"excess (\S+) %", out)[1]) == pytest.approx(100 * more, rel=0.02)
    assert f"needle@2048: {right:.1f} against 90.0 of 100" in out
    bits = {name: float(value) for name, value in re.findall(r"  (\S+ with \S+): (\S+) bits", out)}
    assert bits["msa-512 with index@512"] == pytest.approx((1 + more) * bits["dense with dense"], abs=3e-3)
    assert f"bits a token, {right:.1f} right answers of 100\n" in out


def test_each_seed_alone_must_agree(tmp_path):
    for seed, more in ((1, 0.0005), (2, 0.0045)):
        make_record(tmp_path, "dense", seed, "dense", 0, 90)
        make_record(tmp_path, "msa-512", seed, "index@512", more, 90)
    _, out, _ = judged(tmp_path)
    assert "msa-512, seeds: 2: undecided" in out and "excess of each seed: +0.05" in out


@pytest.mark.parametrize("first, more, lost, verdict", [
    (0, 0.004, (0, 0, 0), "near-lossless"),
    (0.0005, 0.004, (0, 0, 0), "near-lossless"),  # less than the control allows
    (0.004, 0.004, (0, 0, 0), "undecided, because the arms differ where nothing is sparse"),
    (-0.004, 0.004, (0, 0, 0), "undecided, because the arms differ where nothing is sparse"),
    (0, 0.02, (0, 0, 0), "not near-lossless"),
    (0, 0.004, (0, 0, 3), "undecided"),
    (0, 0.004, (0, 0, 12), "not near-lossless"),  # 4 of 100 of all lengths, which alone could be 2
])
def test_each_length_and_the_first_positions_decide_where_updates_are_equal(tmp_path, first, more, lost, verdict):
    for seed in (1, 2):
        make_record(tmp_path, "dense", seed, "dense", 0, dict.fromkeys((2048, 4096, 8192), 90))
        make_record(tmp_path, "msa-512", seed, "index@512", more, {length: 90 - few for length, few in
                                                                   zip((2048, 4096, 8192), lost)}, first=first)
    code, out, _ = judged(tmp_path, "--even")
    assert code == 0 and f"msa-512, seeds: 2: {verdict}\n" in out
    found = [float(value) for value in re.findall(r"(?:excess|sparse:|less that:) (\S+) %", out)][:3]
    half = 100 * (first + more) / 2  # both bins cost about as much
    np.testing.assert_allclose(found, [half, 100 * first, half - 100 * first], atol=0.02)
    assert f"right answers at 8192 tokens {0 - lost[2]:+.1f} of 100" in out


def test_an_arm_with_the_kl_over_all_keys_stands_beside_the_one_without(tmp_path):
    for seed in (1, 2):
        make_record(tmp_path, "dense", seed, "dense", 0, 90)
        make_record(tmp_path, "msa-2048", seed, "index@2048", 0.01, 60)
        make_record(tmp_path, "msa-2048-full", seed, "index@2048", 0, 75)
    code, out, _ = judged(tmp_path, "--even")
    own = out.partition("msa-2048-full, seeds: 2:")[2]
    assert code == 0 and "right answers -15" in own
    assert "excess -0.9" in own.partition("beside msa-2048, seeds: 2:")[2]


@pytest.mark.parametrize("more, right, verdict", [
    (0, 75, "changes little"), (0.001, 75, "undecided"), (-0.01, 75, "changes it"), (0, 60, "changes it"),
    (0, 90, "changes it")])
def test_a_forced_first_block_changes_little_within_its_bounds(tmp_path, more, right, verdict):
    for seed in (1, 2):
        make_record(tmp_path, "dense", seed, "dense", 0, 90)
        make_record(tmp_path, "msa-2048-full", seed, "index@2048", 0, 75, forced=(more, right))
    code, out, _ = judged(tmp_path, "--even")
    assert code == 0 and f"first block forced, seeds: 2: {verdict}\n" in out


def test_models_of_other_weights_are_not_compared(tmp_path):
    make_record(tmp_path, "dense", 1, "dense", 0, 90)
    make_record(tmp_path, "msa-512", 1, "index@512", 0, 90, weights="others")
    code, _, errors = judged(tmp_path)
    assert code == 1 and "different models, tokens, steps or texts" in errors


def test_arms_with_other_updates_are_not_even(tmp_path):
    make_record(tmp_path, "dense", 1, "dense", 0, 90)
    make_record(tmp_path, "msa-512", 1, "index@512", 0, 90, warmup=1)
    assert judged(tmp_path)[0] == 0
    code, _, errors = judged(tmp_path, "--even")
    assert code == 1 and "different models, tokens, steps or texts" in errors


def test_without_exercises_bits_alone_are_said(tmp_path):
    make_record(tmp_path, "dense", 1, "dense", 0, 90)
    make_record(tmp_path, "fitted", 1, "index@2048", 0.1, {}, steps=1)
    code, out, errors = judged(tmp_path, "--even")
    own = out.partition("not trained, index@2048:")[2]
    assert (code, errors) == (0, "") and own.count("excess") == 2 and "answers" not in own


def test_records_of_other_steps_are_not_compared(tmp_path):
    make_record(tmp_path, "dense", 1, "dense", 0, 90)
    make_record(tmp_path, "fitted", 1, "index@512", 0.1, 90, steps=1)
    code, out, _ = judged(tmp_path)
    assert code == 0 and "not trained, index@512:" in out
    make_record(tmp_path, "msa-512", 1, "index@512", 0, 90, steps=20)
    code, _, errors = judged(tmp_path)
    assert code == 1 and "different models, tokens, steps or texts" in errors


def test_what_is_not_trained_is_also_compared_with_the_model_as_it_was(tmp_path):
    make_record(tmp_path, "dense", 1, "dense", 0, 90)
    make_record(tmp_path, "fitted", 1, "index@512", 0.1, 80, steps=1, scale=1.2)
    code, out, _ = judged(tmp_path)
    trained, own = (float(value) for value in re.findall(r"excess (\S+) %", out))
    assert code == 0 and own == pytest.approx(10, rel=0.02) and trained == pytest.approx(120 + 1.2 * own - 100, abs=0.01)
    assert "beside its own dense attention:\n    excess " in out


def test_without_a_dense_run_nothing_is_judged(tmp_path):
    make_record(tmp_path, "msa-512", 1, "index@512", 0, 90)
    code, _, errors = judged(tmp_path)
    assert code == 1 and "has no record of the arm dense" in errors


def test_a_record_has_the_sums_of_an_evaluation(tmp_path):
    """Three sequences of two documents, the last one shorter than a bin; two answers of an exercise."""
    lengths, documents = [records.BIN + 3, records.BIN, 5], [0, 1, 0]
    rng = np.random.default_rng(1)
    nats = rng.uniform(1, 3, (2, sum(lengths))).astype(np.float32)
    sequence = np.repeat(np.arange(3), lengths)
    (tmp_path / "evaluation").mkdir()
    with h5py.File(tmp_path / "evaluation/results.h5", "w") as file:
        file["configs"] = ["dense", "index@512"]
        for name, values in {"nats": nats, "sequence": sequence, "document": documents,
                             "position": np.concatenate([np.arange(one) for one in lengths]),
                             "layer_error": np.ones((3, 1, 2))}.items():
            file[f"evaluate/text/{name}"] = values
        file["evaluate/retrieval/recall@512/right"] = np.array([[1, 0, 1], [1, 1, 0]], bool)
        file["evaluate/retrieval/recall@512/exercise"] = [0, 0, 1]
    (tmp_path / "curves.csv").write_text("")
    (tmp_path / "summary.json").write_text(json.dumps(content({"program": "msalab train"}, "a run", SHAPES, {
        "trained": [{"last_step": 1, "trained_tokens": 7}]}, {})))
    records.pack(tmp_path, tmp_path / "a.tar.xz")
    record = records.Record(tmp_path / "a.tar.xz").select("index@512")
    of = np.array(documents)[sequence]
    assert record.answer["trained"].row()["trained_tokens"] == 7
    np.testing.assert_array_equal(record.tokens, [lengths[0] + lengths[2], lengths[1]])
    np.testing.assert_allclose(record.nats, [nats[1][of == number].sum(dtype=float) for number in (0, 1)], rtol=1e-6)
    np.testing.assert_array_equal(record.right["recall@512"], [1, 0])
    first = np.concatenate([np.arange(one) for one in lengths]) < records.BIN
    np.testing.assert_array_equal(record.first(records.BIN)[1], [records.BIN + lengths[2], lengths[1]])
    np.testing.assert_allclose(record.first(records.BIN)[0], [nats[1][(of == number) & first].sum(dtype=float)
                                                              for number in (0, 1)], rtol=1e-6)


def test_the_whole_chain_on_a_small_model(tmp_path):
    """Inputs, runs, evaluations, records, the judge."""
    for name in ("torch", "transformers", "msalab._msalab"):
        pytest.importorskip(name, reason="needs PyTorch, transformers and the compiled module")
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", ROOT / "studies/conversion/gpu.sh", "--smoke", tmp_path], text=True, capture_output=True,
                          env=os.environ | {"DEVICE": "cpu", "PATH": search, "PYTHONPATH": ":".join(sys.path),
                                            "FORM": "even", "PARTS": "2", "WORK": str(tmp_path / "work"),
                                            "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "msa-512, seeds: 1: " in done.stdout and "right answers" in done.stdout
    assert (tmp_path / "fitted-seed-1.safetensors").exists()
