# SPDX-License-Identifier: MIT
"""The passes of a micro-batch, forward and backward. Where micro-batches with documents of the same lengths follow each
other, a CUDA graph runs them: the host then starts one graph, in place of each of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..arguments import error_text

KINDS = ("msa", "dense")  # of attention, whose calls read no numbers from the GPU
ROOM = 1.1  # times the memory of the activations that must be free for a graph, which has its own


class Passes:
    """passes(cu, tokens [N], positions [N], targets [N], share []): the loss in nats of a micro-batch, whose gradients
    are added to those of the weights. cu: ends of its documents; share: what the loss is multiplied by; kl_weight,
    micros: what the KL is multiplied and divided by. graphs: whether any are made; note: tells where one cannot be.

    The first of several micro-batches with the same `cu` runs as all do, the second on a stream of its own, which
    makes the libraries' memory there, and the third is captured. One graph is kept, that of the last such `cu`. In it
    the KL runs beside what follows it."""

    def __init__(self, learner, micros: int = 1, kl_weight: float = 1.0, graphs: bool = False, note=print):
        self.learner, self.attention = learner, learner.attention
        self.micros, self.kl_weight = micros, kl_weight
        self.graphs, self.note = graphs, note
        self.last: tuple | None = None  # cu, and whether it is the warm-up
        self.times = 0  # that it came, one behind the other
        self.measured: list = []  # of the micro-batch, where it was to be measured
        self.graph: Graph | None = None
        self.stream: torch.cuda.Stream | None = None
        self.aside: torch.cuda.Stream | None = None  # of the KL

    def __call__(self, cu, *inputs: Tensor, measure: bool = False) -> Tensor:
        if not self.graphs or measure:
            return self._run(cu, measure, *inputs)
        of = (tuple(cu), self.attention.warming)
        self.times = self.times + 1 if of == self.last else 1
        self.last = of
        if self.times > 2 and (self.graph is None or self.graph.of != of):
            self._capture(cu, of, inputs)
        if self.graph is not None and self.graph.of == of:
            return self.graph(inputs, self.micros == 1)
        return self._run_aside(cu, *inputs) if self.times == 2 else self._run(cu, False, *inputs)

    def _run(self, cu, measure, tokens, positions, targets, share):
        self.attention.begin(cu, positions, measure)
        nats, kl = self.learner(tokens, positions, targets)
        self.measured, self.attention.measured = self.attention.measured or [], None
        kl = kl / self.micros
        (kl if self.attention.warming else nats * share + self.kl_weight * kl).backward()
        return nats.detach()

    def _run_aside(self, cu, *inputs):
        if self.stream is None:
            self.stream, self.aside = torch.cuda.Stream(priority=-1), torch.cuda.Stream()  # the KL yields
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            nats = self._run_overlapped(cu, *inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return nats

    def _run_overlapped(self, cu, *inputs):
        self.learner.aside = self.aside
        try:
            return self._run(cu, False, *inputs)
        finally:
            self.learner.aside = None

    def _capture(self, cu, of, inputs):
        """Makes the graph, or says why there is none from now on."""
        self.graph, why_not = None, None
        if not _has_room():
            why_not = "the GPU's memory is too small for the activations of a graph beside those of others"
        else:
            weights = list(self.learner.parameters())
            before = [one.grad for one in weights]
            self.learner.zero_grad()
            try:
                self.graph = self._captured(cu, of, inputs, weights)
            except RuntimeError as error:  # a model may read numbers from the GPU, which a graph cannot
                why_not = error_text(error).splitlines()[0]
            for one, gradient in zip(weights, before):
                one.grad = gradient
        if why_not is not None:
            self.graphs = False
            self.note(f"note: no CUDA graph takes the passes: {why_not}")

    def _captured(self, cu, of, inputs, weights):
        inputs = [one.clone() for one in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            nats = self._run_overlapped(cu, *inputs)
        kls = [(layer, None if layer.kl is None else layer.kl.detach()) for layer in self.attention.layers]
        return Graph(of, graph, inputs, nats, kls, [(one, one.grad) for one in weights if one.grad is not None])


@dataclass
class Graph:
    """of: which micro-batches. What is behind `inputs` is what the graph writes. kls: (layer, KL), gradients: (weight,
    gradient)."""

    of: tuple
    graph: torch.cuda.CUDAGraph
    inputs: list
    nats: Tensor
    kls: list
    gradients: list

    @torch.no_grad()
    def __call__(self, inputs, alone: bool) -> Tensor:
        """alone: no other micro-batch adds to the gradients, which need no memory beside the graph's."""
        for own, new in zip(self.inputs, inputs):
            own.copy_(new)
        self.graph.replay()
        for layer, kl in self.kls:
            layer.kl = kl
        for weight, gradient in self.gradients:
            if weight.grad is None:
                weight.grad = gradient if alone else gradient.clone()
            else:
                weight.grad += gradient
        return self.nats


def _has_room() -> bool:
    """For the most that a micro-batch has needed so far, once more."""
    now = torch.cuda.memory_allocated()
    unused = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - now
    return unused > 2 * ROOM * (torch.cuda.max_memory_allocated() - now)


def why_no_graph(learner, device: torch.device, is_compiled: bool) -> str | None:
    """None where a graph may take the passes."""
    if device.type != "cuda":
        return f"it is for a GPU, and the device is {device.type}"
    if not is_compiled:
        return "it is for --compile"
    if isinstance(learner, FSDPModule):
        return "processes share the weights (FSDP2)"
    if not learner.attention.keeps:
        return "layers are computed again (--checkpointing)"
    if learner.attention.kind not in KINDS:
        return f"--attention {learner.attention.kind} reads numbers from the GPU"
    drops = any(isinstance(one, nn.Dropout) and one.p for one in learner.modules())
    return "the model draws random numbers (Dropout)" if drops else None
