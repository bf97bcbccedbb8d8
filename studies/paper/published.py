# SPDX-License-Identifier: MIT
"""Numbers of "MiniMax Sparse Attention" (arXiv:2606.13392), as its tables have them."""

# tab:topk_latency: rows, blocks, k, microseconds of torch.topk, TileLang and the paper's kernel on an H800.
TOP_K = ((131072, 1024, 16, 3970, 2864, 779), (131072, 2048, 32, 5378, 3630, 1991),
         (524288, 4096, 16, 33810, 17779, 7880), (524288, 8192, 32, 57659, 26100, 21326))

# Abstract and fig:efficiency, at 1M tokens, speed-ups on an H800.
FLOP_RATIO, PREFILL, DECODE = 28.4, 14.2, 7.6

# tab:block-ablation: blocks of 32, 64 and 128 at equal tokens.
BLOCK_SIZE = (("PPL, TAU2", "1.176", "1.176", "1.176"), ("PPL, AgentCompany", "1.266", "1.276", "1.266"),
              ("PPL, HLE", "1.299", "1.299", "1.300"), ("PPL, SWE", "1.233", "1.233", "1.233"),
              ("RULER-8K", "72.5", "72.8", "73.8"), ("RULER-32K", "66.1", "65.3", "64.6"))

# tab:forced-sink-local: nothing forced, the first block and a local window forced.
FORCED = (("MMLU", "60.5", "60.5"), ("MMLU-Pro", "32.5", "33.4"), ("BBH", "58.2", "58.2"),
          ("ARC Challenge", "78.1", "77.9"), ("GSM8K", "66.0", "66.9"), ("MGSM", "35.8", "36.3"),
          ("EvalPlus", "54.0", "53.6"), ("BigCodeBench", "35.6", "35.7"), ("MultiPL-E MBPP P@10", "80.1", "79.5"),
          ("ChartQA", "73.5", "73.7"), ("MMMU", "43.6", "42.9"), ("VideoMMMU", "32.1", "32.0"),
          ("PPL, TAU2", "1.175", "1.175"), ("PPL, AgentCompany", "1.268", "1.266"), ("PPL, HLE", "1.301", "1.300"),
          ("PPL, SWE", "1.235", "1.233"), ("RULER-8K", "71.6", "71.7"), ("RULER-32K", "61.5", "65.8"))

# tab:idxval-ablation: without the value head of the Index Branch, and with it.
VALUE_HEAD = (("MMLU", "67.3", "66.4"), ("MMLU-Pro", "39.1", "39.0"), ("BBH", "65.9", "65.3"),
              ("ARC Challenge", "82.4", "82.2"), ("GSM8K", "76.4", "77.6"), ("MathVista", "43.6", "45.2"),
              ("MGSM", "47.6", "48.4"), ("HumanEval", "59.1", "60.4"), ("EvalPlus", "58.7", "57.7"),
              ("BigCodeBench", "44.0", "46.0"), ("AI2D", "70.4", "69.3"), ("ChartQA", "74.9", "75.3"),
              ("MMMU", "43.4", "44.9"), ("OCRBench v2", "53.9", "53.2"), ("MLVU", "43.9", "42.4"),
              ("MMVU", "43.7", "44.9"), ("PerceptionTest", "47.3", "45.0"), ("RULER-8K", "83.0", "84.1"),
              ("RULER-32K", "80.4", "79.7"))

# tab:pretrain-representative: full attention, MSA from scratch, MSA by continued training.
MAIN = (("PPL, TAU2", "1.155", "1.148", "1.150"), ("PPL, AgentCompany", "1.248", "1.249", "1.247"),
        ("PPL, HLE", "1.275", "1.278", "1.275"), ("PPL, SWE", "1.216", "1.218", "1.216"),
        ("RULER-8K", "79.8", "84.2", "77.2"), ("RULER-32K", "75.0", "77.5", "75.7"))
