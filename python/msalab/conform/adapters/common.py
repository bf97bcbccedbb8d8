# SPDX-License-Identifier: MIT
"""What adapters have in common: tensors, pools of pages, and what a system does not take."""

import os
import sys
from importlib.util import find_spec
from itertools import count
from types import ModuleType, SimpleNamespace

import numpy as np

from ..reference import Reference, queries

_PACKED = Reference()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton runs kernels in Python, on tensors of the CPU
DEVICE = "cpu" if INTERPRETED else "cuda"
PRECISION = "float16" if INTERPRETED else "bfloat16"  # numpy, in which the interpreter computes, has no bfloat16
# Of an engine the files of its kernels alone are imported: what it needs besides may not be there.
ALONE = INTERPRETED or os.environ.get("MSALAB_KERNELS_ALONE") == "1"
HOW = ", interpreted on the CPU in float16" if INTERPRETED else ", the kernels alone" if ALONE else ""


def need_gpu():
    import torch
    if not torch.cuda.is_available():
        raise NotImplementedError("no GPU here")
    return torch


def need_triton():
    """torch, where kernels of Triton run: on a GPU, or under TRITON_INTERPRET=1."""
    if not INTERPRETED:
        torch = need_gpu()
        tune_little()
        return torch
    import torch
    from triton.runtime import driver
    # Its own asks for a GPU. Nothing is timed: tuning takes the last setting, that of the largest tiles.
    number = count()
    driver.set_active(SimpleNamespace(get_benchmarker=lambda: lambda call, quantiles: [-next(number)] * len(quantiles)))
    return torch


def tune_little():
    """Nothing is timed here, and compilers take seconds: of the settings that a kernel may be tuned to, the first that runs
    is taken, those of four warps and of few stages first."""
    from triton.runtime.autotuner import Autotuner
    if hasattr(Autotuner, "few_of_all"):
        return
    every, timed = Autotuner.prune_configs, Autotuner._bench

    def prune(self, *given, **named):
        self.has_run = False
        return sorted(every(self, *given, **named), key=lambda one: (abs(one.num_warps - 4), one.num_stages))

    def bench(self, *given, **named):
        if self.has_run:
            return [float("inf")] * 3
        found = timed(self, *given, **named)
        self.has_run = found[0] < float("inf") if isinstance(found, list) else found < float("inf")
        return found

    Autotuner.few_of_all, Autotuner.prune_configs, Autotuner._bench = True, prune, bench


def bare(packages, **instead):
    """Makes packages importable without what their __init__ brings, compiled parts among it, where kernels are
    imported alone. instead: by the module's name, with __ for ., what is read of it."""
    for package in packages if ALONE else ():
        if package not in sys.modules:
            spec = find_spec(package)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = list(spec.submodule_search_locations)
    for name, has in instead.items() if ALONE else ():
        module = sys.modules.setdefault(name.replace("__", "."), ModuleType(name.replace("__", ".")))
        vars(module).update(has)


def real(torch, values, kind=None):
    return torch.tensor(np.array(values, np.float32), device=DEVICE).to(kind or getattr(torch, PRECISION))


def whole(torch, values):
    return torch.tensor(np.array(values, np.int32), device=DEVICE)


def numpy(values):
    return values.float().cpu().numpy() if values.is_floating_point() else values.cpu().numpy()


NAMES = {"page_table": "keys in pages", "scores": "scores as inputs", "k8": "keys in e4m3", "index_q8": "int8",
         "sinks": "sinks", "index_q_plain": "RoPE", "d_out": "gradients", "ids": "ids as inputs"}


def refuse(given, *names):
    """NotImplementedError where the case has one of the named inputs, or asks for the KL loss (`kl`)."""
    there = [NAMES[name] for name in names if name in given]
    if "kl" in names and "kl" in given["wants"]:
        there.append("the KL loss")
    if there:
        raise NotImplementedError(f"it has no {', no '.join(there)}")


def only_default_rule(given):
    if given["forced_first"] or given["forced_local"] != 1:
        raise NotImplementedError("it forces the local block alone")


def one_prompt(given, multiple=1):
    """The case is one sequence of as many queries as keys."""
    packed = _PACKED.packed(given)
    tokens = int(packed["cu_seqlens_k"][-1])
    if "page_table" in given or len(packed["cu_seqlens_q"]) != 2 or int(packed["cu_seqlens_q"][-1]) != tokens:
        raise NotImplementedError("it takes one sequence whose queries are its keys")
    if tokens % multiple:
        raise NotImplementedError(f"it takes a multiple of {multiple} tokens")
    return tokens


def of_keys(given, *names):
    """The rows that the case's queries have where every key has a query, as kernels for training take them, and each named
    array of queries with such rows: the others are 0, or no block. What precedes a query changes nothing of its answer."""
    if "page_table" in given:
        raise NotImplementedError("it has no pages")
    new, ends = np.diff(given["cu_seqlens_q"]), np.asarray(given["cu_seqlens_k"])
    if (new > np.diff(ends)).any():
        raise NotImplementedError("it takes no more queries than keys")
    rows = np.concatenate([np.arange(end - count, end) for count, end in zip(new, ends[1:])])
    found = [np.full((ends[-1], *given[name].shape[1:]), -1 if "ids" in name else 0, given[name].dtype) for name in names]
    for one, name in zip(found, names):
        one[rows] = given[name]
    return rows, *found


def pools(given, page_size):
    """Every name of k, v and index_k that the case has as pages [pages, page_size, ...], new tokens written; the page
    table and the lengths. Packed keys get pages of their own, zeros behind their ends."""
    if "page_table" in given:
        if given["page_size"] != page_size:
            raise NotImplementedError(f"its pages have {page_size} tokens")
        return _PACKED.written(given), given["page_table"], given["lengths"]
    lengths = np.diff(given["cu_seqlens_k"])
    counts = -(-lengths // page_size)
    table = np.zeros((len(lengths), max(1, int(counts.max()))), np.int32)
    first = np.concatenate([[0], np.cumsum(counts)])
    found = {}
    for s, count in enumerate(counts):
        table[s, :count] = first[s] + np.arange(count)
    for name in ("k", "v", "index_k"):
        if name in given:
            values = given[name]
            pool = np.zeros((int(first[-1]) * page_size, *values.shape[1:]), np.float32)
            for s, length in enumerate(lengths):
                start = int(given["cu_seqlens_k"][s])
                pool[first[s] * page_size:first[s] * page_size + length] = values[start:start + length]
            found[name] = pool.reshape(-1, page_size, *values.shape[1:])
    return found, table, lengths.astype(np.int32)


def given_ids(torch, given):
    """The case's ids [groups, queries, k] contiguous, or the columns of ids_buffer, which are not."""
    full_rows(given)
    if "ids_buffer" in given:
        return whole(torch, np.swapaxes(given["ids_buffer"], 0, 1))[:, :, 2:5]
    return whole(torch, np.ascontiguousarray(np.swapaxes(given["ids"], 0, 1)))


def full_rows(given):
    """Every row of ids has min(k, visible blocks) of them."""
    packed = _PACKED.packed(given)
    for i, _, count, _ in queries(packed):
        visible = -(-count // given["block_size"])
        if ((packed["ids"][i] >= 0).sum(-1) < min(given["top_k"], visible)).any():
            raise NotImplementedError("it takes min(k, visible blocks) ids of every row")
