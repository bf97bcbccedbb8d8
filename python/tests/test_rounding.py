# SPDX-License-Identifier: MIT
"""Models whose queries, keys and values are e4m3: what is rounded, beside a computation in numpy of its own; `msalab
evaluate --element`; a cache of e4m3; what is refused. Needs PyTorch, transformers and the compiled module; on a GPU, where
there is one, by its kernels."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: requirements-capture.txt")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: "
                                                          "requirements-capture.txt")
pytest.importorskip("msalab._msalab", reason="the module is not built: ./msalab test builds it")

import test_evaluation  # noqa: E402
import test_kv_cache as kv  # noqa: E402
from test_evaluation import folder, text_file  # noqa: E402, F401
from test_kv_cache import indexer  # noqa: E402, F401
from transformers.modeling_utils import AttentionInterface  # noqa: E402

import msalab  # noqa: E402
import msalab.transformers as mt  # noqa: E402
from msalab import results, rounding  # noqa: E402
from msalab.conform.reference import e4m3  # noqa: E402
from msalab.evaluation.tables import element_table  # noqa: E402

BLOCK, DEVICE = kv.BLOCK, kv.DEVICE
ELEMENTS = pytest.mark.parametrize("element", rounding.ELEMENTS)
LENGTHS = {"cu_seqlens_q": [0, 20, 20, 45], "cu_seqlens_k": [0, 20, 23, 70]}  # blocks of 8: 3, 1, 6
CODES = np.unique(e4m3(np.arange(127)))  # from 0 to 448
# Blocks to select: on a GPU all. There the tuned kernels have weights in e4m3, and the kernel of pages exact ones; what
# another order of sums changes becomes some percent of a value in e4m3, too. At the sizes of a GPU either decides between
# blocks that are about as good, after which logits differ by more than their deviation (so they do on the CPU).
TOP_K = kv.EVERY if kv.GPU else 3


def nearest(x):
    """In float64, by the distance to each number of e4m3; of two as near, the one whose last bit is 0."""
    size = np.minimum(np.abs(x), 448.0)
    above = np.searchsorted(CODES, size).clip(1, len(CODES) - 1)
    low, high = CODES[above - 1], CODES[above]
    even_is_low = (above - 1) % 2 == 0
    take_low = (size - low < high - size) | ((size - low == high - size) & even_is_low)
    return np.where(np.isnan(x), np.nan, np.copysign(np.where(take_low, low, high), x))


def rounded(x, units):
    """x [N, heads, dh] float32 as numbers of e4m3 times the scale of those that have the same number in units [N], and
    of the same head; units None: without scales."""
    if units is None:
        return nearest(x.astype(np.float64))
    found = np.zeros(x.shape)
    for unit in set(units):
        here = units == unit
        size = np.where(np.isfinite(x[here]), np.abs(x[here]), 0).max((0, 2), keepdims=True)
        scale = np.clip(size / np.float32(448), np.float32(2.0 ** -40), np.float32(2.0 ** 40))
        found[here] = nearest(x[here] / scale) * scale.astype(np.float64)
    return found


def operands():
    rng = np.random.default_rng(4)
    sizes = 2.0 ** rng.integers(-12, 12, (70, 1, 1))
    q, k, v = (rng.standard_normal((count, heads, 16)).astype(np.float32) for count, heads in ((45, 4), (70, 2), (70, 2)))
    k, v = k * np.float32(sizes), v / np.float32(sizes)
    q[3, 1, :5] = np.nan, np.inf, -np.inf, 448, 1.0625
    k[8:16, 1], v[17, 0, 2], v[40, 1, 1] = 0, np.nan, np.inf
    return q, k, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_every_device_the_bits_are_those_of_store_e4m3(dtype):
    q, k, v = (torch.from_numpy(one).to(dtype) for one in operands())
    *expected, scales = msalab.store_e4m3(*(one.float() for one in (q, k, v)), block_size=8, **LENGTHS)
    numbers = rounding.block_numbers(LENGTHS["cu_seqlens_k"], 8, DEVICE)
    assert numbers[1] == 10 and numbers[0].tolist()[19:24] == [2, 3, 3, 3, 4]
    found = [rounding.rows_in_e4m3(q.to(DEVICE)), *(rounding.blocks_in_e4m3(one.to(DEVICE), *numbers) for one in (k, v))]
    for (values, of), other, its in zip(found, expected, scales):
        assert values.dtype is torch.float8_e4m3fn
        nan = other.float().isnan()
        assert torch.equal(values.float().isnan().cpu(), nan) and torch.equal(of.cpu(), its)
        assert torch.equal(values.view(torch.uint8).cpu()[~nan], other.view(torch.uint8)[~nan])
    units = numbers[0].cpu().numpy()
    wanted = rounded(k.float().numpy(), units)
    assert np.array_equal(found[1][0].double().cpu().numpy() * found[1][1].double().cpu().numpy()[units][..., None], wanted)
    assert not np.array_equal(rounded(k.float().numpy(), units + (np.arange(70) == 8)), wanted)  # a block one key too long


def test_without_scales_a_value_is_the_nearest_and_ends_at_448():
    x = torch.tensor([0, 448, 464, 1e30, -torch.inf, torch.nan, 2.0 ** -10, 1.01 * 2.0 ** -10, 1.0625, 1.1875, -17.1])
    found = rounding.nearest(x.to(DEVICE)).double().cpu().numpy()
    np.testing.assert_array_equal(found, [0, 448, 448, 448, -448, np.nan, 0, 2.0 ** -9, 1, 1.25, -18])
    np.testing.assert_array_equal(found, nearest(x.double().numpy()))
    many = torch.from_numpy(operands()[1])
    np.testing.assert_array_equal(rounding.nearest(many.to(DEVICE)).double().cpu().numpy(), nearest(many.double().numpy()))


class Seen:
    """What each attention module is called with and what it gives, and the blocks that it attends to."""

    def __init__(self, model, element, selector="mean-key", **options):
        self.calls, self.ids = {}, {}
        AttentionInterface.register("seen_by_test", self)
        mt.AttentionMaskInterface.register("seen_by_test", mt._spans)
        mt.configure(model, selector, BLOCK, 3, element=element,
                     observe=lambda layer, ids: self.ids.update({layer: ids}), **options)
        model.set_attn_implementation("seen_by_test")

    def __call__(self, module, query, key, value, *more, **options):
        found = mt._attention(module, query, key, value, *more, **options)
        self.calls[module.layer_idx] = [one.detach().float().cpu().numpy() for one in (query, key, value, found[0])]
        return found


def attention(q, k, v, ids, scale):
    """[n, Hq, dh] float64 of q [n, Hq, dh], k, v [n, Hkv, dh] and blocks ids [n, Hkv, k]."""
    group = q.shape[1] // k.shape[1]
    at = np.arange(len(k))
    seen = (ids[..., None] == at // BLOCK).any(2) & (at[:, None] >= at)[:, None]
    logits = np.einsum("nhgd,mhd->nhgm", q.reshape(len(q), -1, group, q.shape[2]), k) * scale
    logits = np.where(seen[:, :, None], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    out = np.einsum("nhgm,mhd->nhgd", weights / weights.sum(-1, keepdims=True), v)
    return out.reshape(q.shape)


def largest_error(seen, layer, mask, element, later=0):
    """Of a layer's outputs, beside numpy's of what it was called with, rounded; relative to the largest. later: keys by
    which blocks of scales are wrong."""
    query, key, value, out = seen.calls[layer]
    ids, begin, most, size = seen.ids[layer].cpu().numpy(), 0, 0.0, 0.0
    for row, valid in enumerate(mask):
        q, k, v = (one[row].swapaxes(0, 1)[valid] for one in (query, key, value))
        end = begin + len(q)
        if element is not None:
            units = None if element == "e4m3:unscaled" else (np.arange(len(k)) + later) // BLOCK
            k, v = rounded(k, units), rounded(v, units)
            q = np.stack([rounded(q[:, [head]], np.arange(len(q)))[:, 0] for head in range(q.shape[1])], 1)
        wanted = attention(q, k, v, ids[begin:end], q.shape[2] ** -0.5)
        most, size = max(most, np.abs(out[row][valid] - wanted).max()), max(size, np.abs(wanted).max())
        begin = end
    return most / size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@ELEMENTS
def test_a_layer_attends_to_what_numpy_rounds(element, dtype):
    """Two rows, one of them padded on the left, so that blocks of both begin with their own first token."""
    model, ids = kv.model_of(dtype=dtype), kv.tokens_of(rows=2)
    mask = torch.ones_like(ids)
    mask[0, :29] = 0
    valid, exact = mask.bool().cpu().numpy(), dtype is torch.float32 and not kv.GPU
    room = 1e-5 if exact else 1e-2  # outputs in bfloat16
    seen = Seen(model, element)
    kv.logits_of(model, ids, attention_mask=mask, position_ids=kv.positions_of(mask))
    for layer in range(kv.LAYERS):
        error = largest_error(seen, layer, valid, element)
        assert error < (room if not kv.GPU else 3e-2)  # kernels of a GPU have weights in e4m3, too
        # What is not rounded, or by other scales, is further away.
        assert largest_error(seen, layer, valid, None) > 1.5 * error
    if exact:
        others = {"e4m3", "e4m3:unscaled"} - {element}
        assert largest_error(seen, 0, valid, *others) > room
        assert element != "e4m3" or largest_error(seen, 0, valid, element, later=1) > room
    unrounded = Seen(model, None)
    kv.logits_of(model, ids, attention_mask=mask, position_ids=kv.positions_of(mask))
    assert torch.equal(unrounded.ids[0], seen.ids[0])  # selection reads what is not rounded
    assert largest_error(unrounded, 0, valid, None) < room


def test_dense_layers_are_not_rounded():
    model, ids = kv.model_of(), kv.tokens_of()
    own, seen = Seen(model, None, dense_layers=range(1, kv.LAYERS)), None
    kv.logits_of(model, ids)
    seen = Seen(model, "e4m3", dense_layers=(0,))
    kv.logits_of(model, ids)
    plain = Seen(model, None, dense_layers=(0,))
    kv.logits_of(model, ids)
    assert np.array_equal(seen.calls[0][3], plain.calls[0][3]) and not np.array_equal(seen.calls[1][3], plain.calls[1][3])
    assert own.ids[1] is None


class Straight:
    """Attention in doubles of what numpy rounds, as torch's autograd sees it where rounding is left out of the gradient;
    to the given blocks of each layer."""

    def __init__(self, model, element, ids):
        self.element, self.ids = element, ids
        AttentionInterface.register("straight_by_test", self)
        mt.AttentionMaskInterface.register("straight_by_test", mt._spans)
        model.set_attn_implementation("straight_by_test")

    def __call__(self, module, query, key, value, *more, scaling, **options):
        rows, tokens = len(query), query.shape[2]
        ids = self.ids[module.layer_idx].unflatten(0, (rows, tokens))
        return torch.stack([self.of_row(*(one[row].transpose(0, 1) for one in (query, key, value)), ids[row], scaling)
                            for row in range(rows)]), None

    def of_row(self, q, k, v, ids, scale):
        tokens, each = torch.arange(len(q), device=q.device), np.arange(len(q))
        units = None if self.element == "e4m3:unscaled" else each // BLOCK
        q = torch.stack([self.read(q[:, [head]], each)[:, 0] for head in range(q.shape[1])], 1)
        k, v = (self.read(one, units).repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        seen = (ids[..., None] == tokens // BLOCK).any(2).repeat_interleave(q.shape[1] // ids.shape[1], 1)
        seen = seen & (tokens[:, None] >= tokens)[:, None]
        weights = (torch.einsum("ihd,jhd->ihj", q, k) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("ihj,jhd->ihd", weights, v).to(torch.get_default_dtype())

    def read(self, x, units):
        stands_for = x.double()
        if self.element is not None:
            became = torch.from_numpy(rounded(x.detach().float().cpu().numpy(), units)).to(x.device)
            stands_for = stands_for + (became - stands_for).detach()
        return stands_for


@ELEMENTS
def test_a_models_gradient_passes_straight_through_the_rounding(element):
    model, ids, blocks = kv.model_of(), kv.tokens_of(rows=2), {}
    mt.configure(model, "mean-key", BLOCK, TOP_K, element=element, observe=lambda layer, ids: blocks.update({layer: ids}))
    model.set_attn_implementation(mt.NAME)

    def gradient():
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    found = gradient()
    Straight(model, element, blocks)
    own = gradient()
    Straight(model, None, blocks)
    unrounded = gradient()
    assert near(found, own, STRAIGHT)
    assert not near(found, unrounded, 1.5 * STRAIGHT)


def test_what_cannot_be_had_is_refused_by_name(indexer):  # noqa: F811
    model, ids = kv.model_of(), kv.tokens_of()
    with pytest.raises(msalab.InputError, match=r"element is e4m2 \(did you mean 'e4m3'\?\); there are: e4m3, e4m3:unsc"):
        mt.configure(model, "mean-key", BLOCK, 3, element="e4m2")
    kv.configured(indexer, model=model, element="e4m3")
    with pytest.raises(msalab.InputError, match="element is e4m3, where all tokens of a block decide its scale"):
        mt.Cache(model)
    kv.configured(indexer, model=model, element="e4m3:unscaled")
    with pytest.raises(msalab.InputError, match="a cache has no gradient"):
        model(ids, **{kv.CACHE: mt.Cache(model)})


@ELEMENTS
def test_prefill_compiles_without_a_break(indexer, element):  # noqa: F811
    model, ids = kv.configured(indexer, TOP_K, element=element), kv.tokens_of(rows=2)
    own = kv.logits_of(model, ids)
    model.forward = torch.compile(model.forward, fullgraph=True, backend="inductor" if kv.GPU else "aot_eager")
    assert near(kv.logits_of(model, ids), own)


# Of logits, relative. A value that another order of sums puts on the other side of a tie moves by up to an eighth of
# itself, which is far less than what rounding all values does; on a GPU weights are e4m3 in some kernels.
NEAR = 0.05 if kv.GPU else 1e-3


# Of a gradient. At the sizes of a GPU this model's is as good as unknown: a computation of the same in doubles is 0.28 and
# 0.31 away with weights in e4m3, 0.17 with outputs in bfloat16 alone, and 0.88 and 0.90 without any rounding.
STRAIGHT = 0.45 if kv.GPU else 0.01


# Of tokens behind a cache alone, likewise: on a GPU one side has weights in e4m3, the other has not.
BEHIND = 0.15 if kv.GPU else 0.01


def near(found, own, bound=NEAR):
    return (found - own).norm() < bound * own.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["growing", "static", "compiled"])
def test_a_cache_of_e4m3_gives_what_no_cache_gives(indexer, how, dtype):  # noqa: F811
    """A prompt, a chunk, and single tokens past a page; two rows, one of them padded on the left."""
    model, ids = kv.configured(indexer, kv.EVERY, kv.model_of(dtype=dtype), element="e4m3:unscaled"), kv.tokens_of(rows=2)
    mask, first = torch.ones_like(ids), kv.PROMPT - 29
    mask[0, :29 if how != "compiled" else 0] = 0
    own = kv.logits_of(model, ids, attention_mask=mask, position_ids=kv.positions_of(mask))
    cache = mt.Cache(model, max_cache_len=None if how == "growing" else kv.PROMPT)
    call = torch.compile(model, fullgraph=True, dynamic=False, **kv.MODE) if how == "compiled" else model
    ends = [0, first, first + 5, *range(first + 6, kv.PROMPT + 1)]
    steps = []
    for begin, end in zip(ends, ends[1:]):
        options = {} if how == "compiled" else {
            "attention_mask": mask[:, :end], "position_ids": kv.positions_of(mask[:, :end])[:, begin:end]}
        with torch.no_grad():
            steps.append((call if end - begin == 1 else model)(ids[:, begin:end], **{kv.CACHE: cache}, use_cache=True,
                                                               **options).logits.float().clone())
    found, valid = torch.cat(steps, 1), mask.bool()
    bound = (0.05 if dtype is torch.bfloat16 else NEAR) * own[valid].norm()
    assert (found - own)[valid].norm() < bound
    for pool in (cache.layers[0].keys, cache.layers[0].values):
        assert pool.dtype is torch.float8_e4m3fn
    if dtype is torch.float32 and not kv.GPU:
        kv.configured(indexer, kv.EVERY, model)
        exact = kv.logits_of(model, ids, attention_mask=mask, position_ids=kv.positions_of(mask))
        assert (exact - own)[valid].norm() > 10 * bound  # what rounding does


@pytest.mark.parametrize("how", ["growing", "static"])
def test_a_cache_of_e4m3_attends_to_few_blocks_as_no_cache_does(indexer, how, monkeypatch):  # noqa: F811
    """The pass without a cache is given the blocks that the cache selected."""
    model, ids, first, seen = kv.model_of(), kv.tokens_of(rows=2), kv.PROMPT - 24, {}
    kv.configured(indexer, model=model, element="e4m3:unscaled",
                  observe=lambda layer, blocks: seen.setdefault(layer, []).append(blocks.unflatten(0, (2, -1))))
    cache = mt.Cache(model, max_cache_len=None if how == "growing" else kv.PROMPT)
    ends = [0, first, *range(first + 1, kv.PROMPT + 1)]
    found = torch.cat([kv.after(model, cache, ids[:, begin:end]) for begin, end in zip(ends, ends[1:])][1:], 1)
    blocks = {layer: torch.cat(parts, 1).flatten(0, 1) for layer, parts in seen.items()}
    monkeypatch.setattr(mt, "_index_ids", lambda layer, *_: blocks[layer.number])
    assert near(found, kv.logits_of(model, ids)[:, first:], BEHIND)
    monkeypatch.setattr(mt, "_index_ids", lambda layer, *_: blocks[layer.number][..., :2].contiguous())
    assert not near(found, kv.logits_of(model, ids)[:, first:], 3 * BEHIND)


@pytest.mark.parametrize("kind", kv.CACHES)
def test_a_cache_of_e4m3_generates_and_follows_beams(indexer, kind):  # noqa: F811
    model, ids = kv.configured(indexer, TOP_K, element="e4m3:unscaled"), kv.tokens_of(rows=2)
    found = model.generate(ids, **kv.GREEDY, **kv.CACHES[kind], return_dict_in_generate=True, output_logits=True)
    cache = found.past_key_values
    assert type(cache) is mt.Cache and cache.layers[1].values.dtype is torch.float8_e4m3fn
    assert near(torch.stack(found.logits, 1), kv.logits_of(model, found.sequences)[:, kv.PROMPT - 1:-1], BEHIND)
    cache.reset()
    assert not cache.layers[0].keys.view(torch.uint8).any()
    if kv.GPU:
        return  # beams part where two are about as good
    options = kv.GREEDY | {"num_beams": 3, "return_dict_in_generate": True, "output_scores": True}
    found, own = model.generate(ids, **options, **kv.CACHES[kind]), model.generate(ids, use_cache=False, **options)
    assert torch.equal(found.sequences, own.sequences)


def test_with_scales_generate_keeps_the_caches_of_transformers(indexer):  # noqa: F811
    model, ids = kv.configured(indexer, element="e4m3"), kv.tokens_of()
    found = model.generate(ids, **kv.GREEDY | {"max_new_tokens": 3}, return_dict_in_generate=True)
    assert type(found.past_key_values) is transformers.DynamicCache


@pytest.fixture
def evaluated(folder, text_file, tmp_path, capsys):  # noqa: F811
    text_file.write_text("\0".join(f"Document {number} has words of its own. " * (3 + number) for number in range(7)))
    words = ("--selectors", "mean-key,oracle", "--element", "e4m3,e4m3:unscaled", "--tasks", "")
    assert test_evaluation.evaluate(folder, text_file, tmp_path / "out", *words) == 0
    with h5py.File(tmp_path / "out/results.h5") as file:
        nats, configs = file["evaluate/text/nats"][()], file["configs"].asstr()[()].tolist()
    return tmp_path / "out", capsys.readouterr().out, nats, configs


def test_evaluate_has_each_setting_in_each_element(evaluated, folder, text_file):  # noqa: F811
    out, printed, nats, configs = evaluated
    plain = ["mean-key@32", "mean-key@208", "oracle@32", "oracle@208"]
    assert configs == ["dense", *plain, *(f"{one},e4m3" for one in plain), *(f"{one},e4m3:unscaled" for one in plain)]
    of = dict(zip(configs, nats.astype(float) / np.log(2)))
    tables = test_evaluation.summary_of(out)
    assert [c["element"] for c in tables["configs"]] == [""] * 5 + ["e4m3"] * 4 + ["e4m3:unscaled"] * 4
    # With all blocks the selector does not matter, and what is left is what rounding loses.
    assert np.array_equal(of["mean-key@208,e4m3"], of["oracle@208,e4m3"])
    assert np.abs(of["oracle@208"] - of["dense"]).max() < 1e-3 < np.abs(of["oracle@208,e4m3"] - of["dense"]).max()
    assert np.abs(of["oracle@32,e4m3"] - of["oracle@32,e4m3:unscaled"]).max() > 1e-3
    rows = {(row["config"], row["above"]): row for row in tables["differences"]}
    lines = element_table(results.open(out)).split("\n\n")
    assert lines[0] in printed and lines[1] in printed
    for element, part in zip(rounding.ELEMENTS, lines):
        head, *part = part.splitlines()
        assert head.split()[0] == element and [line.split()[0] for line in part] == plain
        for name, line in zip(plain, part):
            more = of[f"{name},{element}"] - of[name]
            row = rows[f"{name},{element}", name]
            assert row["more_bits"] == pytest.approx(more.mean(), rel=1e-9, abs=1e-12)
            assert float(line.split()[1]) == pytest.approx(more.mean(), abs=1e-5) and "7 documents" in line
            assert row["more_bits_low"] <= row["more_bits"] <= row["more_bits_high"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    first = torch.as_tensor(np.frombuffer(text_file.read_bytes().split(b"\0")[0], np.uint8).astype(np.int64))[None]
    mt.configure(model, "mean-key", test_evaluation.BLOCK, 2, element="e4m3")
    model.set_attn_implementation(mt.NAME)
    with torch.no_grad():
        loss = model(first, labels=first).loss.item() / np.log(2)
    assert of["mean-key@32,e4m3"][:first.shape[1] - 1].mean() == pytest.approx(loss, rel=1e-6)
    drawn = (out / "loss_by_budget.csv").read_text()
    assert '"mean-key,e4m3",' in drawn and '"oracle,e4m3:unscaled",' in drawn


@pytest.mark.parametrize("more, said", [
    (("--element", "e4m2"), "--element names e4m2 (did you mean 'e4m3'?); there are: e4m3, e4m3:unscaled"),
    (("--element", "e4m3", "--selectors", ""), "--element is of settings, and --selectors names none"),
    (("--element", "e4m3,e4m3"), "--element names one twice")])
def test_evaluate_refuses_an_unknown_element(folder, text_file, tmp_path, capsys, more, said):  # noqa: F811
    assert test_evaluation.evaluate(folder, text_file, tmp_path / "out", *more) == 2
    assert f"error: {said}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
