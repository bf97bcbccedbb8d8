# SPDX-License-Identifier: MIT
"""msalab itself: the backends cpu and reference on arrays of numpy, cuda on tensors in bfloat16, and msalab.torch on
the CPU or the GPU, whose gradients come by autograd."""

import numpy as np

from ..archive import STRIDED
from ..reference import e4m3

RULES = {}


def about():
    from importlib.metadata import PackageNotFoundError, version
    try:
        return f"msalab {version('msalab')}"
    except PackageNotFoundError:
        return "msalab of a clone"


def bytes_of_e4m3(values):
    """Values that e4m3 has exactly, as its bytes."""
    numbers = e4m3(np.arange(256))
    order = np.argsort(numbers)  # NaN last
    at = np.minimum(np.searchsorted(numbers[order], values), 253)
    found = order[at].astype(np.uint8)
    if not np.array_equal(e4m3(found), values):
        raise NotImplementedError("q is no e4m3, and all operands of a call have one type")
    return found


class Backend:
    """given -> answers, by the functions of msalab on arrays of numpy."""

    of_e4m3 = "float32"  # in which the CPU computes with operands in e4m3

    def __init__(self, name, precision="float32"):
        self.name, self.precision = name, precision

    def real(self, values):
        """Operands, in the type that the backend is asked in."""
        return np.array(values, np.float32)

    def plain(self, values):
        """A contiguous array of the same type."""
        return np.array(values)

    def e4m3(self, values):
        """Bytes of e4m3, as the backend is given such operands."""
        return np.array(values, np.uint8)

    def ids(self, given):
        return given["ids"]

    def numpy(self, values):
        return values

    def __call__(self, given):
        import msalab as m
        wants, found = given["wants"], {"precision": self.precision}
        given = {**given, **self.turned(given, found)} if "index_q_plain" in given else given
        where, keys = self.keys(m, given)
        where = {**where, "block_size": given["block_size"], "backend": self.name}
        ids = None
        if "ids" in given:
            ids = self.ids(given)
        elif "kl" not in wants:
            ids = self.select(m, given, where, keys)
            found["ids"] = self.numpy(ids)
        attend = {**where, "softmax_scale": given["softmax_scale"]}
        if "sinks" in given:
            attend["sinks"] = self.plain(given["sinks"])
        if {"out", "d_q"} & set(wants):
            if "k8" in given:
                operands = self.e4m3(bytes_of_e4m3(given["q"])), keys["k"], keys["v"], ids
                attend["scales"] = None, self.plain(given["k_scales"]), self.plain(given["v_scales"])
                found["precision"] = self.of_e4m3
            else:
                operands = self.real(given["q"]), keys["k"], keys["v"], ids
            out, lse = m.sparse_attention(*operands, return_softmax_lse=True, **attend)
            found.update(out=self.numpy(out), lse=self.numpy(lse))
        if "d_q" in wants:
            gradients = m.sparse_attention_grad(*operands, out, lse, self.real(given["d_out"]), **attend)
            found.update(zip(("d_q", "d_k", "d_v"), map(self.numpy, gradients)))
        if "kl" in wants:
            names = ("q", "k", "index_q", "index_k")
            operands = (self.real(given[name]) for name in names)
            answers = m.index_kl(*operands, ids, index_scale=given["index_scale"], **attend)
            found.update(zip(("kl", "d_index_q", "d_index_k"), map(self.numpy, answers)))
        return found

    def select(self, m, given, where, keys):
        forced = {"forced_first": given["forced_first"], "forced_local": given["forced_local"]}
        if "scores" in given:
            return m.select_blocks(self.plain(given["scores"]), given["top_k"], **forced, **where)
        forced["index_scale"] = given["index_scale"]
        if "index_q8" in given:
            scales = self.plain(given["index_q_scales"]), self.plain(given["index_k_scales"][:, None])
            return m.index_select(self.plain(given["index_q8"]), self.plain(given["index_k8"]), given["top_k"],
                                  scales=scales, **forced, **where)
        return m.index_select(self.real(given["index_q"]), keys["index_k"], given["top_k"], **forced, **where)

    def turned(self, given, found):
        """index_q and index_k after RoPE, by what captures use."""
        from msalab.capture.rope import apply_rope, frequencies
        for name in ("index_q", "index_k"):
            plain = given[f"{name}_plain"]
            heads = plain if plain.ndim == 3 else plain[:, None]
            found[name] = apply_rope(heads, given[f"positions_{name[-1]}"],
                                     frequencies(given["rotary_dim"], given["theta"])).reshape(plain.shape)
        return {name: found[name] for name in ("index_q", "index_k")}

    def keys(self, m, given):
        """Where the tokens lie, and k, v and index_k there: packed, or pools in which pages were copied and the new
        tokens appended."""
        cu = {"cu_seqlens_q": [int(n) for n in given["cu_seqlens_q"]]}
        if "page_table" not in given:
            keys = {name: self.real(given[name]) for name in ("k", "v", "index_k") if name in given}
            keys.update((name, self.e4m3(given[f"{name}8"])) for name in ("k", "v") if f"{name}8" in given)
            return {**cu, "cu_seqlens_k": [int(n) for n in given["cu_seqlens_k"]]}, keys
        where = {**cu, "page_table": self.plain(given["page_table"]), "seqused_k": self.plain(given["lengths"])}
        pools = {}
        for name in ("k", "v", "index_k"):
            pools[name] = self.real(given[f"{name}_pages"])
            for source, target in given.get("copies", ()):
                pools[name][int(target)] = pools[name][int(source)]
            if f"new_{name}" in given:
                m.append(pools[name], self.real(given[f"new_{name}"]), **where)
        return where, pools


class Tensors(Backend):
    """On tensors of PyTorch; the KL loss and its gradient by autograd, which shows what is detached."""

    def __init__(self, name, device, precision):
        super().__init__(name, precision)
        self.device = device
        self.of_e4m3 = "e4m3" if device == "cuda" else "float32"

    def real(self, values):
        import torch
        return torch.tensor(np.array(values, np.float32), device=self.device).to(getattr(torch, self.precision))

    def plain(self, values):
        import torch
        return torch.tensor(np.array(values), device=self.device)

    def e4m3(self, values):
        import torch
        return self.plain(values).view(torch.float8_e4m3fn)

    def ids(self, given):
        if "ids_buffer" in given:
            return self.plain(given["ids_buffer"])[:, :, STRIDED]
        return self.plain(given["ids"])

    def numpy(self, values):
        return values.double().cpu().numpy() if values.is_floating_point() else values.cpu().numpy()

    def __call__(self, given):
        import torch
        if self.device == "cuda" and not torch.cuda.is_available():
            raise NotImplementedError("no GPU here")
        if "kl" not in given["wants"]:
            return super().__call__(given)
        import msalab.torch as m
        where = {name: [int(n) for n in given[name]] for name in ("cu_seqlens_q", "cu_seqlens_k")}
        where.update(block_size=given["block_size"])
        leaves = [self.real(given[name]).requires_grad_() for name in ("q", "k", "index_q", "index_k")]
        ids = self.ids(given) if "ids" in given else None
        options = {"softmax_scale": given["softmax_scale"]}
        if ids is None:
            lse = m.dense_attention(leaves[0], leaves[1], leaves[1], return_softmax_lse=True, **options,
                                    **{name: where[name] for name in where if name != "block_size"})[1]
        else:
            lse = m.sparse_attention(leaves[0], leaves[1], leaves[1], ids, return_softmax_lse=True, **options,
                                     **where)[1]
        loss = m.index_kl(*leaves, ids, index_scale=given["index_scale"], main_lse=lse.detach(), **options, **where)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        gradients = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, gradients)]
        return {"precision": self.precision,
                **dict(zip(("kl_d_q", "kl_d_k", "d_index_q", "d_index_k"), map(self.numpy, gradients)))}


cpu, reference = Backend("cpu"), Backend("reference")
torch_cpu = Tensors("auto", "cpu", "float32")
cuda = Tensors("auto", "cuda", "bfloat16")
