# SPDX-License-Identifier: MIT
"""Numbers of "MiniMax Sparse Attention" (arXiv:2606.13392), as its tables have them."""

# tab:topk_latency: rows, blocks, k, microseconds of torch.topk, TileLang and the paper's kernel on an H800.
TOP_K = ((131072, 1024, 16, 3970, 2864, 779), (131072, 2048, 32, 5378, 3630, 1991),
         (524288, 4096, 16, 33810, 17779, 7880), (524288, 8192, 32, 57659, 26100, 21326))

# Abstract and fig:efficiency, at 1M tokens, speed-ups on an H800.
FLOP_RATIO, PREFILL, DECODE = 28.4, 14.2, 7.6

# The ablations below are in the paper's form, row by row: a row of a name alone is a heading.
KNOWLEDGE, MATH, CODE, IMAGE, VIDEO = (("General knowledge & reasoning",), ("Math",), ("Code",), ("Image",), ("Video",))
PPL, RETRIEVAL = ("PPL, less is better",), ("Long-context retrieval",)

# tab:block-ablation: blocks of 32, 64 and 128 at equal tokens.
BLOCK_SIZE = (PPL, ("TAU2", "1.176", "1.176", "1.176"), ("AgentCompany", "1.266", "1.276", "1.266"),
              ("HLE", "1.299", "1.299", "1.300"), ("SWE", "1.233", "1.233", "1.233"),
              RETRIEVAL, ("RULER-8K", "72.5", "72.8", "73.8"), ("RULER-32K", "66.1", "65.3", "64.6"))

# tab:forced-sink-local: nothing forced, the first block and a local window forced.
FORCED = (KNOWLEDGE, ("MMLU", "60.5", "60.5"), ("MMLU-Pro", "32.5", "33.4"), ("BBH", "58.2", "58.2"),
          ("ARC Challenge", "78.1", "77.9"), MATH, ("GSM8K", "66.0", "66.9"), ("MGSM", "35.8", "36.3"),
          CODE, ("EvalPlus", "54.0", "53.6"), ("BigCodeBench", "35.6", "35.7"), ("MultiPL-E MBPP P@10", "80.1", "79.5"),
          IMAGE, ("ChartQA", "73.5", "73.7"), ("MMMU", "43.6", "42.9"), VIDEO, ("VideoMMMU", "32.1", "32.0"),
          PPL, ("TAU2", "1.175", "1.175"), ("AgentCompany", "1.268", "1.266"), ("HLE", "1.301", "1.300"),
          ("SWE", "1.235", "1.233"), RETRIEVAL, ("RULER-8K", "71.6", "71.7"), ("RULER-32K", "61.5", "65.8"))

# tab:idxval-ablation: with the value head of the Index Branch, and without it.
VALUE_HEAD = (KNOWLEDGE, ("MMLU", "66.4", "67.3"), ("MMLU-Pro", "39.0", "39.1"), ("BBH", "65.3", "65.9"),
              ("ARC Challenge", "82.2", "82.4"), MATH, ("GSM8K", "77.6", "76.4"), ("MathVista", "45.2", "43.6"),
              ("MGSM", "48.4", "47.6"), CODE, ("HumanEval", "60.4", "59.1"), ("EvalPlus", "57.7", "58.7"),
              ("BigCodeBench", "46.0", "44.0"), IMAGE, ("AI2D", "69.3", "70.4"), ("ChartQA", "75.3", "74.9"),
              ("MMMU", "44.9", "43.4"), ("OCRBench v2", "53.2", "53.9"), VIDEO, ("MLVU", "42.4", "43.9"),
              ("MMVU", "44.9", "43.7"), ("PerceptionTest", "45.0", "47.3"),
              RETRIEVAL, ("RULER-8K", "84.1", "83.0"), ("RULER-32K", "79.7", "80.4"))

# tab:pretrain-representative: full attention, MSA from scratch, MSA by continued training.
MAIN = (("PPL, TAU2", "1.155", "1.148", "1.150"), ("PPL, AgentCompany", "1.248", "1.249", "1.247"),
        ("PPL, HLE", "1.275", "1.278", "1.275"), ("PPL, SWE", "1.216", "1.218", "1.216"),
        ("RULER-8K", "79.8", "84.2", "77.2"), ("RULER-32K", "75.0", "77.5", "75.7"))
