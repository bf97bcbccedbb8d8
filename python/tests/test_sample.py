# SPDX-License-Identifier: MIT
"""The numbers of data/sample.h5, computed once more in double precision with nothing but PyTorch and
h5py: what each choice keeps, the sink and the output error, and that the choices are right."""

import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
h5py = pytest.importorskip("h5py")

from msalab import results  # noqa: E402

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
BLOCK, TOP_K, FIRST = 32, 8, 1344  # queries before FIRST are left out
U = 2.0 ** -24  # unit roundoff of float


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The results of msa-analyze: its folder."""
    if not (BIN / "msa-analyze").exists():
        pytest.skip(f"no msa-analyze in {BIN}: ./msalab build")
    out = tmp_path_factory.mktemp("sample") / "out"
    subprocess.run([BIN / "msa-analyze", ROOT / "data/sample.h5", "--out", out, "--block-size", str(BLOCK),
                    "--top-k", str(TOP_K), "--selectors", "oracle,mean-key,window", "--queries", f"{FIRST}:",
                    "--backend", "cpu"], check=True, capture_output=True)
    return out


class Layer:
    """Dense attention of the counted queries, by its definition, with heads as the first axis."""

    def __init__(self, number):
        with h5py.File(ROOT / "data/sample.h5") as file:
            layer = file[f"layers/{number}"]
            read = {name: torch.from_numpy(layer[name][()].astype("int32") << 16).view(torch.float32)
                    .double().transpose(0, 1) for name in "qkv"}  # bfloat16 is the upper half
            scale = layer.attrs["softmax_scale"]
        self.q, self.k, self.v = read["q"][:, FIRST:], read["k"], read["v"]
        self.group = len(self.q) // len(self.k)
        keys = self.k.shape[1]
        self.future = torch.arange(keys) > torch.arange(FIRST, keys)[:, None]
        logits = scale * self.q @ self.k.repeat_interleave(self.group, 0).transpose(1, 2)
        self.logits = logits.masked_fill(self.future, -torch.inf)
        self.p = self.logits.softmax(-1)
        self.block_mass = self.by_group(self.p.unflatten(-1, (-1, BLOCK)).sum(-1))
        # A float product of width w, scaled, is off by (w + 3) U at most, relative to the norms.
        norms = self.q.norm(dim=-1).max() * self.k.norm(dim=-1).max()
        self.logit_error = float((self.q.shape[-1] + 3) * U * scale * norms)
        # Of a weight, relative: its logit and its sum's, exp of 2 ulp twice, sums and rescalings.
        self.error = 2 * self.logit_error + (2 * keys + 12) * U
        self.values = float(self.v.norm(dim=-1).max())

    def by_group(self, heads):
        return heads.unflatten(0, (-1, self.group)).mean(1)

    def chosen(self, ids):
        """[groups, queries, blocks] of the ids of a file, [queries, groups, k]"""
        ids = torch.from_numpy(ids).long().transpose(0, 1)
        assert (ids >= 0).all()  # every counted query sees more blocks than k
        return torch.zeros_like(self.block_mass, dtype=bool).scatter(-1, ids, True)

    def output(self, p):
        return p @ self.v.repeat_interleave(self.group, 0)

    def sparse(self, chosen):
        keys = chosen.repeat_interleave(BLOCK, -1).repeat_interleave(self.group, 0)
        return self.logits.masked_fill(~keys, -torch.inf).softmax(-1)


def assert_highest(scores, chosen, error):
    """`chosen` are the query's own block and those of the highest scores, which are off by `error`."""
    own = torch.arange(FIRST, FIRST + scores.shape[1]) // BLOCK
    is_own = (torch.arange(scores.shape[2]) == own[:, None]).expand_as(chosen)
    assert chosen[is_own].all() and (chosen.sum(-1) == TOP_K).all()
    worst = scores.masked_fill(~chosen | is_own, torch.inf).amin(-1)
    best = scores.masked_fill(chosen, -torch.inf).amax(-1)
    assert (worst >= best - 2 * error).all()


@pytest.mark.parametrize("number", [10, 20])
def test_numbers_are_those_of_pytorch(written, number):
    layer = Layer(number)
    rows = {(row["layer"], row["selector"]): row
            for row in results.open(written, "msa-analyze")["selectors"].records()}
    dense = layer.output(layer.p)
    means = torch.stack([keys.mean(1) for keys in layer.k.split(BLOCK, 1)], 1)
    past = torch.arange(means.shape[1]) <= torch.arange(FIRST, layer.k.shape[1])[:, None] // BLOCK
    scores = {"oracle": layer.block_mass,
              "mean-key": layer.by_group(layer.q @ means.repeat_interleave(layer.group, 0).transpose(1, 2)),
              "window": torch.arange(means.shape[1]).double().index_fill(0, torch.tensor(0), torch.inf)}
    # Sums of probabilities are off as these are; a mean of keys, by BLOCK additions more than a key.
    errors = {"oracle": layer.error + BLOCK * U, "window": 0,
              "mean-key": layer.logit_error * 8 + (BLOCK + layer.group) * U * float(scores["mean-key"].abs().max())}
    kept = {}
    for name, wanted in scores.items():
        with h5py.File(written / "results.h5") as file:
            chosen = layer.chosen(file[f"select/{name}/{number}/ids"][()])
        assert_highest(wanted.expand_as(chosen).masked_fill(~past, -torch.inf), chosen, errors[name])
        kept[name] = (layer.block_mass * chosen).sum(-1).mean()
        p = layer.sparse(chosen)
        out = layer.output(p)
        moved = ((out - dense).norm(dim=(1, 2)) / dense.norm(dim=(1, 2))).mean()
        # Both outputs are off by weights times values, and by their sums.
        output_error = 2 * (layer.error + layer.k.shape[1] * U) * layer.values
        relative = output_error * dense.shape[1] ** 0.5 / dense.norm(dim=(1, 2)).min()
        row = rows[number, name]
        for key, value, bound in (("mass_kept", kept[name], layer.error), ("oracle_mass", kept["oracle"], layer.error),
                                  ("sink_mass_sparse", p[..., 0].mean(), layer.error),
                                  ("sink_mass_dense", layer.p[..., 0].mean(), layer.error),
                                  ("output_error", moved, relative * (1 + moved))):
            assert abs(row[key] - value) <= bound, (name, key)
