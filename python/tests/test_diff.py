# SPDX-License-Identifier: MIT
"""msalab diff: rows that differ are counted, each by why it differs, and what they cost is that of dense attention."""

import json

import h5py
import numpy as np
import pytest

pytest.importorskip("h5py")
pytest.importorskip("torch", reason="the files of captures are made by the test of captures")

from test_capture_files import Fake, random_layer  # noqa: E402

from msalab import diff  # noqa: E402
from msalab.capture.capture import capture  # noqa: E402
from msalab.conform.reference import Reference  # noqa: E402

LENGTHS, SIZE, K = (60, 90), 8, 3
CU = np.cumsum([0, *LENGTHS])
TIE, NEAR, RULE, WRONG, UNSEEN = 57, 58, 140, 145, 149  # tokens whose rows are changed


def layer(tokens, number):
    made = random_layer(tokens, seed=number, dtype=np.float32, index_dim=16 if number else 0)
    if number and tokens == 60:
        made.index_k[9], made.index_k[17] = made.index_k[33], made.index_k[33]
        made.index_q[TIE, 0] = 5 * made.index_k[33]  # blocks 1, 2 and 4 have the same best score
        made.index_k[41] *= 3
        made.index_k[25] = made.index_k[41]
        made.index_k[25, 3] = np.nextafter(made.index_k[41, 3], np.float32(9))
        made.index_k[49] = 2 * made.index_k[41]
        made.index_q[NEAR, 1] = 5 * made.index_k[41]  # block 6, and of 3 and 5, all but the same, the better one
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The capture, and ids of layer 1: right ones, and others with five rows changed and one in another order."""
    folder = tmp_path_factory.mktemp("diff")
    capture(Fake(layer), [range(n) for n in LENGTHS], folder / "a.h5")
    parts = [layer(n, 1) for n in LENGTHS]
    given = {"index_q": np.concatenate([part.index_q for part in parts]), "wants": ("ids",), "top_k": K,
             "index_k": np.concatenate([part.index_k for part in parts]), "cu_seqlens_q": CU, "cu_seqlens_k": CU,
             "block_size": SIZE, "forced_first": 0, "forced_local": 1, "index_scale": 0.25, "softmax_scale": 0.25}
    ids = Reference()(given)["ids"]
    scores = Reference().scores(given)
    other = ids.copy()
    other[TIE, 0] = [2, 4, 7]
    other[NEAR, 1] = [3 if ids[NEAR, 1, 0] == 5 else 5, 6, 7]
    other[RULE, 0] = [0, 1, 2]
    worst = int(scores[WRONG, 1, :10].argmin())
    other[WRONG, 1, :2] = sorted([worst, *[b for b in ids[WRONG, 1] if b != worst][:1]])
    other[UNSEEN, 0] = [0, 11, 12]
    other[100, 0] = ids[100, 0, ::-1]
    np.savez(folder / "right.npz", ids=ids)
    np.savez(folder / "other.npz", ids_1=other[30:], tokens=np.arange(30, 150))
    with h5py.File(folder / "results.h5", "w") as file:
        file["select/oracle/1/ids"], file["select/index/1/ids"] = other, ids[:, :, ::-1][:, :, ::-1]
        file["queries/1/token"] = np.arange(150)
        file.create_group("layers/1").attrs["block_size"] = SIZE
    return folder


def found_in(files, capsys, *arguments):
    assert diff.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_row_differs_by_what_was_planted(files, capsys):
    found, = found_in(files, capsys, files / "right.npz", files / "other.npz", "--activations", files / "a.h5",
                      "--block-size", SIZE)
    assert (found["layer"], found["rows"], found["differ"], found["order"]) == (1, 240, 5, 1)
    assert (found["tie"], found["rounding"], found["rule"], found["neither"]) == (1, 1, 1, 2)
    assert f"token {WRONG}, group 1: A alone has block" in found["first"].replace("has ", "has block ", 1)


def test_half_precision_of_scores_explains_more(files, capsys):
    arguments = files / "right.npz", files / "other.npz", "--activations", files / "a.h5", "--block-size", SIZE
    found, = found_in(files, capsys, *arguments, "--scores", "bfloat16")
    assert found["rounding"] >= 1 and found["neither"] >= 1  # a block that does not exist stays


def test_the_cost_is_that_of_dense_attention(files, capsys):
    found, = found_in(files, capsys, files / "right.npz", files / "other.npz", "--activations", files / "a.h5",
                      "--block-size", SIZE)
    operands = [layer(n, 1) for n in LENGTHS]
    with np.load(files / "right.npz") as a, np.load(files / "other.npz") as b:
        ids = a["ids"], np.concatenate([a["ids"][:30], b["ids_1"]])
    expected = []
    for token, group in ((TIE, 0), (NEAR, 1), (RULE, 0), (WRONG, 1), (UNSEEN, 0)):
        part, at = (operands[0], token) if token < 60 else (operands[1], token - 60)
        q, k, v = (np.float64(array) for array in (part.q[at, 2 * group:2 * group + 2], part.k[:at + 1, group],
                                                   part.v[:at + 1, group]))
        p = np.exp(0.25 * q @ k.T)
        p /= p.sum(1, keepdims=True)
        some = [np.isin(np.arange(at + 1) // SIZE, rows[token, group]) for rows in ids]
        outs = [(p * mask) @ v / (p * mask).sum(1, keepdims=True) for mask in some]
        expected.append((*[p[:, mask].sum(1).mean() for mask in some],
                         (np.linalg.norm(outs[0] - outs[1], axis=1) / np.linalg.norm(outs[0], axis=1)).mean()))
    assert np.allclose([found["mass_a"], found["mass_b"], found["output"]], np.mean(expected, axis=0), rtol=1e-9)


def test_without_activations_rows_are_counted(files, capsys):
    found, = found_in(files, capsys, files / "right.npz", files / "other.npz")
    assert (found["differ"], found["order"], found["tie"], found["mass_a"]) == (5, 1, None, None)
    with np.load(files / "right.npz") as a, np.load(files / "other.npz") as b:
        rows = zip(a["ids"][30:].reshape(-1, K).tolist(), b["ids_1"].reshape(-1, K).tolist())
        assert found["ids"] == sum(len(set(one) - set(other)) for one, other in rows) == 7
    assert found["first"].startswith(f"token {TIE}, group 0: A has [1, 2, 7], B [2, 4, 7]")


def test_results_are_read_by_selector(files, capsys):
    results = files / "results.h5"
    same = found_in(files, capsys, results, files / "right.npz")
    assert [(one["layer"], one["differ"], one["order"]) for one in same] == [(1, 0, 0)]
    found, = found_in(files, capsys, results, results, "--selectors", "index,oracle", "--activations", files / "a.h5")
    assert (found["differ"], found["tie"], found["rounding"], found["rule"], found["neither"]) == (5, 1, 1, 1, 2)
    assert diff.main([str(results), str(results), "--selectors", "index,oracle"]) == 0
    head, row, first = capsys.readouterr().out.splitlines()
    assert head.split() == "layer rows order differ tie rounding rule neither ids mass A mass B output".split()
    assert row.split() == ["1", "300", "1", "5", *"----", "7", *"---"]
    assert first.startswith("layer 1, the first: token 57")


@pytest.mark.parametrize("a, b, said", [
    ("right.npz", "none.npz", "none.npz: no such file"), ("right.npz", "text.h5", "is neither an HDF5 file nor"),
    ("right.npz", "empty.npz", "has neither ids nor ids_<layer>; it has: x"),
    ("right.npz", "twice.npz", "ids[1, 0] holds block 4 twice"),
    ("right.npz", "flat.npz", "must be integers [n, Hkv, k]"),
    ("right.npz", "groups.npz", "A has 2 groups, B 1"), ("other.npz", "layers.npz", "no layer in common"),
    ("right.npz", "layers.npz", "--layers says which"), ("right.npz", "a.h5", "has no /select")])
def test_bad_files_are_told(files, capsys, a, b, said):
    ids = np.tile(np.arange(3), (150, 1, 1))
    np.savez(files / "empty.npz", x=ids)
    np.savez(files / "flat.npz", ids=ids[0])
    np.savez(files / "groups.npz", ids=ids)
    np.savez(files / "layers.npz", ids_4=ids, ids_5=ids)
    twice = ids.copy()
    twice[1, 0] = 4
    np.savez(files / "twice.npz", ids=twice)
    (files / "text.h5").write_text("no")
    assert diff.main([str(files / a), str(files / b)]) == 2
    assert said in capsys.readouterr().err
    assert diff.main([str(files / "right.npz"), str(files / "right.npz"), "--layers", "9", "--activations",
                      str(files / "a.h5")]) == 2
