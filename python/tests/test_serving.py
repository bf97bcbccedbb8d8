# SPDX-License-Identifier: MIT
"""examples/serve_torch.py: requests that share a batch, pages and a prefix get the tokens that they get
alone."""

import importlib.util
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


@pytest.mark.parametrize("top_k, of", [(64, "generate()"), (3, "MSA on packed keys")])
def test_requests_get_the_tokens_that_they_get_alone(serve, top_k, of, capsys):
    engine, same = serve.main(["--requests", "5", "--tokens", "7", "--top-k", str(top_k),
                               "--pages", "17"])
    said = capsys.readouterr().out
    assert same and f"5 of 5 requests have the tokens of {of}" in said
    assert engine.shared > 0 and len(engine.pool.free) == 17 and not any(engine.pool.users)
    assert int(said.split("\n")[1].split()[0]) > 17  # pages were used again


def test_dense_attention_serves_the_same_requests(serve, capsys):
    _, same = serve.main(["--requests", "3", "--tokens", "5", "--top-k", "64", "--prompt", "9",
                          "--dense"])
    said = capsys.readouterr().out
    assert same and "3 of 3 requests have the tokens of dense attention" in said
    assert "by MSA, " in said and "by PyTorch's dense attention" in said


def test_a_wrong_page_would_be_seen(serve, monkeypatch):
    """What the comparison is worth: keys in another page's place change tokens."""
    append = serve.msa.append

    def misplaced(pool, rows, page_table, *others, **options):
        append(pool, rows, page_table, *others, **options)
        pool[int(page_table[0, 0])] = pool[int(page_table[0, 0])].flip(0)
    monkeypatch.setattr(serve.msa, "append", misplaced)
    assert not serve.main(["--requests", "2", "--tokens", "5", "--top-k", "3"])[1]


def test_a_pool_without_room_is_refused(serve):
    with pytest.raises(SystemExit, match="too few pages"):
        serve.main(["--requests", "1", "--pages", "2"])
