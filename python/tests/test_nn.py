# SPDX-License-Identifier: MIT
"""MSAttention in a whole model against the goldens of tests/goldens/make_train.py, which msa-pretrain's
engine is held against, too: so the two take the same steps."""

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msalab._msalab")
h5py = pytest.importorskip("h5py")

import msalab  # noqa: E402
from msalab import nn  # noqa: E402
from msalab.nn import IndexBranch, MSAttention, plain_frequencies, rotation, turn  # noqa: E402

ROOT = Path(__file__).parents[2]
ARMS = ["full", "full_sink", "msa", "msa_warmup", "msa_full_support", "msa_sink", "lm_signal",
        "both_signals", "no_detach"]


def example():
    spec = importlib.util.spec_from_file_location("train_torch", ROOT / "examples/train_torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arm", ARMS)
def test_steps_are_those_of_the_training_engine(arm):
    trainer = example()
    with h5py.File(ROOT / "tests/goldens/train.h5") as file:
        config = json.loads(file.attrs["config"])[arm]
        golden = file["arms/" + arm]
        full = config["attention"] == "full"
        model = trainer.Model(
            config["vocabulary"], config["model_dim"], config["hidden_dim"], config["layers"],
            **{name: config[name] for name in
               ("query_heads", "kv_heads", "head_dim", "rotary_dim", "rope_theta", "index_dim",
                "index_rotary", "block_size", "top_k", "sink", "value_head", "detach",
                "kl_full_support")}, kl=config["kl"] and not full)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(torch.from_numpy(file["start/" + name][...]))
        optimizer = trainer.make_optimizer(model, config["rate"], config["decay"])
        cu_seqlens = file["cu_seqlens"][...].tolist()
        for step, tokens in enumerate(file["tokens"][...]):
            sparse = not full and step >= config["warmup"]
            loss, kl, norm = trainer.train_step(model, optimizer, torch.from_numpy(tokens).long(),
                                                cu_seqlens, sparse, config["kl_weight"],
                                                config["clip"])
            if step == 0:
                scale = min(1, config["clip"] / norm)
                for name, weight in model.named_parameters():
                    if name in golden:
                        torch.testing.assert_close(
                            weight.grad / scale, torch.from_numpy(golden[name][...]), rtol=1e-4,
                            atol=1e-5 * norm, msg=lambda text, name=name: f"{name}: {text}")
                    else:
                        assert weight.grad is None or not weight.grad.any(), name
            assert loss == pytest.approx(golden["losses"][step], rel=2e-4)
            assert norm == pytest.approx(golden["norms"][step], rel=5e-3)
            if not full:
                assert kl.numpy() == pytest.approx(golden["kl"][step], rel=2e-2, abs=2e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value_head", [False, True])
def test_no_tokens_have_no_output_and_no_loss(sparse, value_head):
    """As a rank of a run has whose share of the documents is empty."""
    module = MSAttention(16, 4, 2, 16, value_head=value_head, sink=True)
    y, kl = module(torch.zeros(0, 16, requires_grad=True), sparse=sparse)
    assert y.shape == (0, 16) and kl == 0
    (y.sum() + kl).backward()
    assert not any(weight.grad.any() for weight in module.parameters() if weight.grad is not None)


def test_refuses_sizes_by_name():
    with pytest.raises(ValueError, match="query_heads is 3, must be a multiple of kv_heads = 2"):
        MSAttention(16, 3, 2, 16)
    with pytest.raises(ValueError, match="index_rotary is 18, must be even and from 0 to 16"):
        MSAttention(16, 4, 2, 16, index_dim=16, index_rotary=18)
    with pytest.raises(ValueError, match="kv_heads is 0, must be at least 1"):
        MSAttention(16, 4, 0, 16)
    module = MSAttention(16, 4, 2, 16)
    with pytest.raises(ValueError, match=r"x has shape \[3, 8\], must be \[N, 16\]"):
        module(torch.zeros(3, 8))
    with pytest.raises(ValueError, match=r"cu_seqlens is \[0, 2\], must end with 3, the rows of x"):
        module(torch.zeros(3, 16), [0, 2])


@pytest.mark.parametrize("norm", [True, False])
def test_one_product_gives_what_two_give(norm):
    """In double precision, with the gradients of its weights."""
    torch.manual_seed(0)
    branch = IndexBranch(24, 3, 8, plain_frequencies(6, 1e4), norm).double()
    for weight in branch.parameters():
        torch.nn.init.normal_(weight)
    x, positions = torch.randn(11, 24, dtype=torch.float64), torch.arange(11)
    turns = rotation(positions, branch.frequencies, torch.float64)
    expected = [turn(norm(projection(x).unflatten(1, (-1, 8))), *turns) for projection, norm in (
        (branch.q_proj, branch.q_norm), (branch.k_proj, branch.k_norm))]
    found = branch(x, positions)
    along = [torch.randn_like(one) for one in expected]
    weights = list(branch.parameters())
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    own, other = (torch.autograd.grad([(a * b).sum() for a, b in zip(of, along)], weights) for of in (found, expected))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(own, other))


@pytest.mark.parametrize("element", ["e4m3", "e4m3:unscaled"])
def test_an_element_is_of_the_main_branch_and_of_its_teacher(element, monkeypatch):
    torch.manual_seed(8)
    module, plain = (MSAttention(32, 4, 2, 16, block_size=8, top_k=2, element=one) for one in (element, None))
    plain.load_state_dict(module.state_dict())
    x, cu, calls = torch.randn(40, 32), [0, 13, 40], []
    for one, other in zip(module(x, cu, sparse=False), plain(x, cu, sparse=False)):
        assert torch.equal(one, other)  # the warm-up is not rounded
    attend, round_once, index_kl = nn.m.attend_rounded, nn.m.round_operands, nn.m.index_kl
    monkeypatch.setattr(nn.m, "round_operands", lambda *of, **how: calls.append((of, how)) or round_once(*of, **how))
    monkeypatch.setattr(nn.m, "attend_rounded", lambda *of, **how: calls.append((of, how)) or attend(*of, **how))
    monkeypatch.setattr(nn.m, "index_kl", lambda *of, **how: calls.append((of, how)) or index_kl(*of, **how))
    y, kl = module(x, cu)
    ((*_, asked), _), ((q, k, v, ids, _), _), ((_, _, index_q, index_k, _), kl_how) = calls  # rounded once
    options = {"block_size": 8, "cu_seqlens_q": cu, "cu_seqlens_k": cu}
    heads = nn.m.sparse_attention(q, k, v, ids, element=element, **options)
    assert asked == element and torch.equal(y, module.o_proj(heads.flatten(1)))
    numbers = nn.rounding.read(round_once(q, k, v, element, **options), cu, 8, q.dtype)
    own = index_kl(*numbers[:2], index_q, index_k, ids, **options)
    assert torch.isclose(kl, own, rtol=1e-5) and not torch.isclose(kl, plain(x, cu)[1], rtol=1e-4)
    (y.square().mean() + kl).backward()
    assert all(weight.grad.isfinite().all() and weight.grad.any() for weight in module.parameters())
    with pytest.raises(msalab.InputError, match="element is e5m2"):
        MSAttention(32, 4, 2, 16, element="e5m2")
