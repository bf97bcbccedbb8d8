# SPDX-License-Identifier: MIT
"""Results with the activations and the text that they are of."""

import numpy as np
from make_results import Case, make_results

from msalab.capture import ActivationsWriter, Layer
from msalab.explore.data import Microscope, _bits, _bytes, packed

# A text that would do harm as HTML, with characters of one to four bytes.
WORDS = ("the", " <script>document.title = 'run'</script>", ' "quoted\'', " né", " 🔬", " &lt;", " -->",
         "\n", " </script><b>", " block", " $1", " %s")


def words_of(tokens: int) -> list[str]:
    return [WORDS[i * i % len(WORDS)] + (f" {i}" if i % 5 == 0 else "") for i in range(tokens)]


def make_explore(folder, case: Case = Case()):
    """(results, activations) in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    operands = make_results(folder / "results.h5", case)
    words = [word.encode() for length in case.lengths for word in words_of(length)]
    with ActivationsWriter(folder / "activations.h5", model_id="a <b>model</b>", model_config="{}", producer="",
                           cu_seqlens=np.cumsum([0, *case.lengths]), text=b"".join(words),
                           token_ends=np.cumsum([len(word) for word in words])) as writer:
        for layer, sequences in operands.items():
            first = 0
            for q, k, v in sequences:
                parts = [np.asarray(values, np.float32) for values in (q, k, v)]
                writer.write(layer, first, Layer(*parts, softmax_scale=case.head_dim ** -0.5, rotary_dim=0,
                                                 q_state="none", k_state="none"))
                first += len(q)
        writer.finish()
    return folder / "results.h5", folder / "activations.h5"


def made_up(tokens: int, block: int, queries: int, selectors, top_k: int = 16) -> tuple[Microscope, dict, np.ndarray]:
    """A microscope of one layer and group of drawn choices, too long a sequence to be analysed here, the blocks that
    each selector chose, bool [blocks, queries], and where the queries are."""
    rng, blocks = np.random.default_rng(1), tokens // block
    positions = np.arange(queries) * (tokens // queries) + block // 2
    own = positions // block
    mass = rng.random((queries, 1, blocks), np.float32) ** 8
    mass[np.broadcast_to((np.arange(blocks) > own[:, None])[:, None], mass.shape)] = 0
    mass /= mass.sum(2, keepdims=True)
    parts, chosen = [positions.astype("<u4").tobytes()], {}
    for name in selectors:
        seen = mass * rng.random(mass.shape, np.float32)
        ids = np.argpartition(-seen, top_k, 2)[:, :, :top_k]
        ids = np.where(ids <= own[:, None, None], ids, -1)
        parts.append(_bits(ids, blocks))
        chosen[name] = np.zeros((blocks, queries), bool)
        query, _, slot = np.nonzero(ids >= 0)
        chosen[name][ids[query, 0, slot], query] = True
    parts.append(_bytes(mass.transpose(1, 2, 0)))
    known = {name: [0.5] for name in selectors}
    layer = {"layer": 0, "queries": queries, "blocks": blocks, "window": None, "hasMass": True, "tokens": 0, "most": [],
             "sink": [0], "mass_kept": known, "block_recall": known}
    about = {"model": "", "blockSize": block, "topK": top_k, "groups": 1, "heads": 1, "sequence": 0, "sequences": 1,
             "tokens": tokens, "selectors": list(selectors), "step": 1, "analysed": queries, "layers": [layer], "first": 0,
             "text": "", "lengths": packed(b"")}
    return Microscope(about, {0: packed(b"".join(parts))}), chosen, positions
