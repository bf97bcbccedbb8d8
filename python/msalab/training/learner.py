# SPDX-License-Identifier: MIT
"""A model while it is trained: its loss, its optimizer, and how processes share it (FSDP2)."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import masking_utils

from ..arguments import error_text
from ..capture.decoder import decoder_layers, decoder_of
from ..capture.layer import CaptureError, require
from ..capture.transformers_model import check_device
from ..ending import Refusal
from ..nn import IndexBranch
from ..torch import kl_aside
from .data import NO_TARGET

TOKENS_AT_ONCE = 2048  # whose logits are held
UNIT = 1 << 25  # least parameters of a unit of layers, which processes gather together
ALONE = 1 << 31  # most parameters, of which one process keeps all rounded weights and their gradients during a step


class Learner(nn.Module):
    """forward(tokens [N], positions [N], targets [N]): the sum of the loss of all targets in nats, and that of the
    KL of all layers, of which alone there are gradients in the warm-up."""

    def __init__(self, model, attention):
        super().__init__()
        self.model, self.attention = model, attention
        self.cross_entropy = cross_entropy
        self.rounded: Rounded | None = None
        self.aside: torch.cuda.Stream | None = None  # of the KL, beside the layers behind it

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        first = next((one for one in self.model.modules() if isinstance(one, IndexBranch)), None)
        if isinstance(first, FSDPModule):
            first.unshard()  # all of them, which are a unit; no graph is to wait for its hooks
        if self.rounded is not None:
            self.rounded.put()
        with torch.set_grad_enabled(not self.attention.warming), kl_aside(self.aside):
            nats = self._nats(tokens, positions, targets)
        if self.rounded is not None and not torch.is_grad_enabled():  # no gradients will come back
            self.rounded.restore()
        return nats, sum(self.attention.kl.values())

    def _nats(self, tokens, positions, targets):
        with patch.object(masking_utils, "find_packed_sequence_indices", lambda *_: None):  # it waits for the GPU
            hidden = decoder_of(self.model)(input_ids=tokens[None], position_ids=positions[None],
                                            use_cache=False).last_hidden_state[0]
        head = self.model.get_output_embeddings()

        def nats(some, told):
            return self.cross_entropy(head(some), told)

        return sum(checkpoint(nats, *part, use_reentrant=False, preserve_rng_state=False) for part in
                   zip(hidden.split(TOKENS_AT_ONCE), targets.split(TOKENS_AT_ONCE)))


class Rounded:
    """The weights of a learner, which stay float32, as the model computes with them: of the type `dtype` from put() on,
    until the gradients have come back or restore() is called. Its gradients are those of FSDP2 in one process, bit for
    bit: summed over a micro-batch in `dtype`, over micro-batches in float32."""

    def __init__(self, learner: Learner, dtype: torch.dtype):
        self.dtype = dtype
        places: dict[Tensor, list] = {}
        for module in learner.modules():
            for name, one in module._parameters.items():
                if one is not None:
                    places.setdefault(one, []).append((module._parameters, name))
        self.weights, self.places = list(places), list(places.values())

    def put(self):
        self.restore()
        self._set(_Round.apply(self, *self.weights))

    def restore(self):
        self._set(self.weights)

    def _set(self, weights):
        for one, places in zip(weights, self.places):
            for of_module, name in places:
                of_module[name] = one


def _as_type(tensors: list, dtype: torch.dtype) -> list:
    made = [torch.empty_like(one, dtype=dtype) for one in tensors]
    torch._foreach_copy_(made, tensors)
    return made


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rounded, *weights):
        ctx.rounded = rounded
        ctx.set_materialize_grads(False)
        made = _as_type(list(weights), rounded.dtype)
        ctx.mark_non_differentiable(*[new for new, one in zip(made, weights) if not one.requires_grad])
        return tuple(made)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.rounded.restore()  # whatever is computed again has been
        there = [one for one in gradients if one is not None]
        made = iter(_as_type(there, torch.float32)) if there else iter(())
        return None, *[None if one is None else next(made) for one in gradients]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over targets [n] in nats, float32; logits [n, vocabulary]."""
    return nn.functional.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=NO_TARGET)


@torch.no_grad()
def check_logits(model):
    """CaptureError unless logits are the language head of the decoder's output, as Learner has them."""
    tokens, head = torch.arange(4, device=model.device)[None], model.get_output_embeddings()
    try:
        hidden = decoder_of(model)(input_ids=tokens, use_cache=False).last_hidden_state
        own = model(input_ids=tokens, use_cache=False).logits
        same = head is not None and torch.allclose(own, head(hidden).to(own.dtype), rtol=1e-3, atol=1e-3,
                                                   equal_nan=True)  # which the first step tells of
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # whatever a model needs more than tokens
        raise CaptureError(f"{type(model).__name__} does not run on tokens alone ({type(error).__name__}: {error})"
                           ) from error
    require(same, f"{type(model).__name__} changes the logits of its language head, which is not supported")


def check_launcher(environment, on_cuda: bool):
    """CaptureError unless it is what torchrun sets for each of its processes."""
    def number(name, least):
        value = environment.get(name)
        require(value is not None, f"WORLD_SIZE is set in the environment, and {name} is not: torchrun sets both; "
                "without WORLD_SIZE it is one process")
        require(value.isdecimal() and int(value) >= least, f"{name} is {value!r} in the environment, must be an "
                f"integer of at least {least}")
        return int(value)

    size, rank = number("WORLD_SIZE", 1), number("RANK", 0)
    require(rank < size, f"RANK is {rank} in the environment, must be less than WORLD_SIZE = {size}")
    if on_cuda:
        number("LOCAL_RANK", 0)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        require(environment.get(name), f"WORLD_SIZE is set in the environment, and {name} is not: torchrun sets both")


class Group:
    """The processes of a run, as torchrun starts them; without it, this one."""

    def __init__(self, device: str):
        self.started = not dist.is_initialized()
        alone = "WORLD_SIZE" not in os.environ
        on_cuda = device.partition(":")[0] == "cuda"
        if not alone:
            check_launcher(os.environ, on_cuda)
            device = f"cuda:{os.environ['LOCAL_RANK']}" if on_cuda else device
        check_device(device)
        self.device = torch.device(device)
        kind = self.device.type
        if kind == "cuda":
            self.device = torch.device(kind, self.device.index or 0)
            torch.cuda.set_device(self.device)
        if self.started:
            backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
            how = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}
            dist.init_process_group(backend, **how)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh(kind, (self.size,))

    def summed(self, values) -> list[float]:
        """The sums over all processes of these numbers or scalars on the device."""
        total = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        dist.all_reduce(total)
        return total.tolist()

    def gathered(self, value) -> list:
        """The value of each process."""
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def together(self):
        """If one process fails within, all are refused, so that none waits for it. No collective call may be within."""
        refused = None
        try:
            yield
        except (Refusal, OSError) as error:
            refused = error
        said = [text for text in self.gathered(refused and error_text(refused)) if text]
        if refused:
            raise refused
        require(not said, said and said[0])

    def wait(self):
        dist.barrier()

    def close(self):
        if self.started:
            dist.destroy_process_group()


def keep_no_activations(model, attention):
    """Within a layer; they are computed again."""
    attention.keeps = False
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})  # of the second name in older releases


def branches_of(layer) -> list[IndexBranch]:
    return [module for module in layer.modules() if isinstance(module, IndexBranch)]


# While the KL runs aside, nothing may be written where its operands lie. PyTorch's allocator knows that, the compiler's
# own reuse of memory within a graph does not.
NO_REUSE = {"allow_buffer_reuse": False, "inplace_buffers": False}


def compile_parts(learner: Learner, aside: bool = False):
    """By torch.compile: a layer with its attention and Index Branch, or without them where no activations are kept,
    and the loss behind the language head. All layers share one compilation. Forward passes alone, so that the hooks
    of FSDP2, and what keeps no activations, stay outside. aside: the KL may run aside (kl_aside)."""
    how = {"options": NO_REUSE} if aside else {}
    for layer in decoder_layers(learner.model):
        layer.forward = torch.compile(layer.forward, **how)
    learner.cross_entropy = torch.compile(cross_entropy)


def shard(learner: Learner, group: Group, dtype: torch.dtype):
    """Weights stay float32, a part of them in each process, and are of the type `dtype` where the model
    computes with them; inputs of layers stay as they are, so that roundings do not depend on the units. Index
    Branches are a unit of their own: in the warm-up nothing else has gradients. Last layers that do not fill a
    unit are gathered with the embeddings and the head, which stay gathered during a step. In one process there is
    nothing to gather, and no FSDP2, whose calls take the host longer than a layer's products take a GPU."""
    if group.size == 1 and sum(one.numel() for one in learner.parameters()) <= ALONE:
        if dtype != torch.float32:
            learner.rounded = Rounded(learner, dtype)
        return
    how = {"mesh": group.mesh, "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)}
    layers = list(decoder_layers(learner.model))
    branches = [branch for layer in layers for branch in branches_of(layer)]
    for unit in [*([branches] if branches else []), *units_of(layers)]:
        fully_shard(unit, **how)
    fully_shard(learner, **how)


def units_of(layers: list) -> list[list]:
    """Neighbours that are gathered together, of at least UNIT parameters: each unit costs the host time."""
    units, unit, size = [], [], 0
    for layer in layers:
        unit.append(layer)
        size += sum(one.numel() for one in layer.parameters())
        if size >= UNIT:
            units.append(unit)
            unit, size = [], 0
    return units


def is_of_index(name: str) -> bool:
    return ".indexer." in name


def make_optimizer(learner: Learner, options) -> torch.optim.AdamW:
    """Two groups, the backbone and the Index Branches, each in two: norms and biases do not decay. Moments
    are there from the start, so that every checkpoint has the same parts."""
    groups = []
    for of_index, rate in ((False, options.lr), (True, options.index_lr)):
        named = [one for name, one in learner.named_parameters() if is_of_index(name) == of_index]
        for decays in (True, False):
            some = [one for one in named if (one.ndim > 1) == decays]
            if some:
                groups.append({"params": some, "weight_decay": options.weight_decay if decays else 0.0,
                               "lr": rate, "rate": rate, "of_index": of_index})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    for group in optimizer.param_groups:
        for one in group["params"]:
            optimizer.state[one] = {"step": torch.zeros((), device=one.device),
                                    "exp_avg": torch.zeros_like(one), "exp_avg_sq": torch.zeros_like(one)}
    return optimizer


def set_rates(optimizer, step: int, options):
    """Each stage begins with a linear rise over --lr-warmup steps; the last one ends in a cosine down to a
    tenth of the rate."""
    begin, end = (0, options.warmup) if step < options.warmup else (options.warmup, options.steps)
    share = min(1.0, (step - begin + 1) / max(options.lr_warmup, 1))
    if step >= options.warmup and share == 1:
        left = max(end - begin - options.lr_warmup, 1)
        share = 0.55 + 0.45 * math.cos(math.pi * (step - begin - options.lr_warmup) / left)
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * share


def clip(optimizer, most: float) -> dict[bool, Tensor]:
    """Norms of the gradients before each is clipped: of the backbone (False) and the Index Branches (True),
    apart, so that the one's does not shorten the other's. Nothing waits for them."""
    norms = {}
    for of_index in (False, True):
        with_gradient = [one for group in optimizer.param_groups if group["of_index"] == of_index
                         for one in group["params"] if one.grad is not None]
        if with_gradient:
            norm = nn.utils.clip_grad_norm_(with_gradient, most)
            norms[of_index] = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return norms
