# SPDX-License-Identifier: MIT
"""Results with the activations and the text that they are of."""

import numpy as np
from make_results import Case, make_results

from msalab.capture import ActivationsWriter, Layer

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
