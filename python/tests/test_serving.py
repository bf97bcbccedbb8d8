# SPDX-License-Identifier: MIT
"""examples/serve_torch.py: requests that share a batch, pages and a prefix get the tokens that they get
alone."""

import functools
import importlib.util
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("msalab._msalab")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def serve():
    spec = importlib.util.spec_from_file_location("serve_torch", ROOT / "examples/serve_torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("top_k, of", [(64, "dense attention"), (3, "MSA")])
def test_requests_get_the_tokens_that_they_get_alone(serve, top_k, of, capsys):
    engine, right = serve.main(["--requests", "5", "--tokens", "7", "--top-k", str(top_k),
                                "--pages", "17"])
    said = capsys.readouterr().out
    # If each token is the best one behind those before it, they are all those of the reference.
    assert right and f"35 of 35 new tokens are the best of {of} on packed keys" in said
    assert engine.shared > 0 and len(engine.pool.free) == 17 and not any(engine.pool.users)
    assert int(said.split("\n")[2].split()[0]) > 17  # pages were used again


def test_requests_get_the_tokens_of_generate(serve):
    model, requests = serve.tiny_model(16), []
    for request in serve.make_requests(model, 5, 7, 7):
        prompt = torch.tensor([request.prompt])
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                max_new_tokens=7, min_new_tokens=7)[0].tolist()
        requests.append((request, tokens))
    with serve.paged(model):
        serve.Engine(model, 17, 64, 32).serve([request for request, _ in requests])
    for request, tokens in requests:
        assert request.tokens == tokens


def test_layers_share_what_is_compiled(serve, monkeypatch, capsys):
    """Without a break, and with the tokens of the eager model; for one row and more, and for a page and more."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(serve, "compiler_of", lambda _: functools.partial(
        torch.compile, dynamic=True, fullgraph=True, backend="aot_eager"))
    _, right = serve.main(["--requests", "3", "--tokens", "5", "--top-k", "3"])
    assert right and "15 of 15 new tokens are the best of MSA" in capsys.readouterr().out
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4  # one row or more, one page or more


@pytest.mark.parametrize("ended", [[5, 6, 7, 5, 9, 5], [1, 2, 3]])
def test_drafts_are_what_came_after_the_last_earlier_place(serve, ended):
    engine = serve.Engine(serve.tiny_model(16), 3, 2, 32, drafts=2)
    request = serve.Request([], 0)
    for token in ended:  # as it grows
        request.tokens.append(token)
        earlier = [at for at in range(len(request.tokens) - 1) if request.tokens[at] == token]
        expected = request.tokens[earlier[-1] + 1:][:2] if earlier else []
        assert engine.draft(request) == expected


def test_drafts_are_as_many_as_asked(serve):
    accepted = {}
    for drafts in (0, 4):
        engine, right = serve.main(["--requests", "2", "--tokens", "12", "--drafts", str(drafts)])
        assert right
        accepted[drafts] = engine.accepted
    assert accepted[0] == 0 < accepted[4]


def test_dense_attention_serves_the_same_requests(serve, capsys):
    _, right = serve.main(["--requests", "3", "--tokens", "5", "--top-k", "2", "--prompt", "9",
                           "--dense"])
    said = capsys.readouterr().out
    assert right and "15 of 15 new tokens are the best of dense attention on packed keys" in said
    assert "MSA: " in said and "PyTorch's SDPA on copies of the pages: " in said


def wrong_page(function):
    """The first sequence reads another one's first page in its own one's place."""
    def wrapped(*operands, page_table=None, **options):
        if page_table is None:
            return function(*operands, **options)
        page_table = page_table.clone()
        if len(page_table) > 1 and page_table[1, 0] not in page_table[0]:
            page_table[0, 0] = page_table[1, 0]
        return function(*operands, page_table=page_table, **options)
    return wrapped


def wrong_block(select):
    """In pages the first block of every choice is exchanged for one that was not chosen."""
    def wrapped(*operands, **options):
        ids = select(*operands, **options)
        for chosen in ids.flatten(0, 1) if "page_table" in options else ():
            others = set(range(int(chosen.max()))) - set(chosen.tolist())
            if others:
                chosen[0] = min(others)
                chosen[:] = chosen.sort().values
        return ids
    return wrapped


@pytest.mark.parametrize("wrong, names", [
    (wrong_page, ("msa_index_select", "msa_sparse_attention")), (wrong_block, ("msa_index_select",))])
def test_an_error_would_be_seen(serve, monkeypatch, capsys, wrong, names):
    """What the judgement is worth."""
    for name in names:
        monkeypatch.setattr(serve.msa, name, wrong(getattr(serve.msa, name)))
    assert not serve.main(["--requests", "2", "--tokens", "5", "--top-k", "3"])[1]
    short, tolerance = re.search(r"at most (.*) below the best .allowed: (.*)\)",
                                 capsys.readouterr().out).groups()
    assert float(short) > 100 * float(tolerance)


@pytest.mark.parametrize("best, short, right", [(88, 1, True), (87, 1, False), (95, 1.1, False),
                                                (95, float("nan"), False)])
def test_tokens_are_judged_by_number_and_by_logits(serve, best, short, right):
    assert serve.Verdict(new=100, best=best, best_rounded=95, fewer=7.5, short=short,
                         tolerance=1).right == right


def test_judging_leaves_the_model_as_it_was(serve):
    model = serve.tiny_model(16).to(torch.bfloat16)
    before = {name: each.clone() for name, each in (*model.named_parameters(), *model.named_buffers())}
    request = serve.Request([1, 2, 3], 2, [1, 2, 3, 4, 5])
    assert serve.judge(model, [request], None).new == 2
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        assert each.dtype == before[name].dtype and torch.equal(each, before[name])


def test_a_pool_without_room_is_refused(serve):
    with pytest.raises(SystemExit, match="too few pages"):
        serve.main(["--requests", "1", "--pages", "2"])
