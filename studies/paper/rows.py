# SPDX-License-Identifier: MIT
"""The rows of docs/paper.md. {Names} stand for numbers of measured.py, so that no number of ours is typed here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..pilot.claims import AGREE, DISAGREE, NOT_RUN, UNDECIDED

IN_PART, UNTESTED, OUT_OF_REACH = "agree in part", "not tested yet", "not testable here"
VERDICTS = (AGREE, IN_PART, DISAGREE, UNDECIDED, UNTESTED, OUT_OF_REACH)

COST = "`msa-cost --preset paper --hardware h800`"
PILOT = ("`PYTHONPATH=python python -m studies.pilot studies/pilot/records_2 --registered --exploratory "
         "studies/pilot/records --out DIR`")
EXPLORATORY = "`PYTHONPATH=python python -m studies.pilot studies/pilot/records --out DIR`"
JUDGE = "`PYTHONPATH=python python studies/conversion/judge.py studies/conversion/records/even --even`"
CURVES = "`PYTHONPATH=python python studies/conversion/curves.py studies/conversion/records/large 1,2,3 DIR`"
TABLES = "`./msalab paper`; anew, on a GPU: `./msalab bench gpu`"
PLOT = "`./msalab paper`, or `./msalab demo`"
SECONDS = {COST: "0.1 s", PILOT: "6 s", EXPLORATORY: "16 s", JUDGE: "2 s", CURVES: "2 s", TABLES: "20 s", PLOT: "20 s"}

# In the order of the paper's source, by which they have their numbers in print.
ORDER = {"fig": ("Figure", """msa-arch training-dynamics-pt training-dynamics-cpt efficiency vis-selection attention-sink
prelim-grad-source prelim-detach prelim-detach-bench prelim-warmup-entropy prelim-warmup-curves
prelim-learnable-sink-vis prelim-learnable-sink-results prelim-swa-ppl""".split()),
         "tab": ("Table", """topk_latency pretrain-representative lctx-main block-ablation forced-sink-local
idxval-ablation""".split())}


SECTIONS = {"sec:msa-flops": "3.3", "sec:kernel:sparse_attn": "4.2", "sec:kernel:sparse_kl": "4.3",
            "sec:experiment-training-dynamics": "5.2"}


def numbered(label: str) -> str:
    """With the number in print: "Figure 4 (fig:efficiency), left"."""
    def number(found):
        if found[1] == "sec":
            return f"Section {SECTIONS[found[0]]} ({found[0]})"
        name, order = ORDER[found[1]]
        return f"{name} {order.index(found[2]) + 1} ({found[0]})"

    return re.sub(r"\b(fig|tab|sec):([\w:-]+)", number, label)


@dataclass(frozen=True)
class Row:
    label: str  # of the paper's LaTeX source, or the section of a claim without one
    says: str
    ours: str
    verdict: str
    setting: str  # where the verdict holds
    command: str
    pictures: str = ""  # of msalab paper, with blanks between them
    rests: tuple[tuple[str, str], ...] = ()  # claims of the pilot and the verdicts that this row was written for

    @property
    def short(self) -> str:
        """Its number in print, or its section."""
        return re.sub(r" \((fig|tab|sec):[^)]*\)", "", numbered(self.label.split("; ")[-1]))


RESULTS = (
    Row("abstract; fig:efficiency, left", "28.4x fewer FLOPs of attention per token at 1M tokens",
        "{flops 1M} at 1M, {flops 512K} at 512K, {flops 128K} at 128K, {flops 32K} at 32K", AGREE,
        "exact: the paper's formula at its sizes", COST, "efficiency"),
    Row("abstract; fig:efficiency, middle", "14.2x faster prefill at 1M tokens, on an H800",
        "{prefill 1M structured} where neighbouring queries share most blocks, {prefill 1M fitted} with selections as "
        "of fitted Index Branches, {prefill 1M random} with random ones, over {prefill 1M baseline}", AGREE,
        "a layer on one H100, msalab's kernels and not the paper's, beside another dense baseline; made selections",
        TABLES, "efficiency"),
    Row("abstract; fig:efficiency, right", "7.6x faster decoding at 1M tokens, on an H800",
        "{decode 1M random} for one sequence over {decode 1M baseline}, {decode of 8} for eight", IN_PART,
        "a layer on one H100; eight sequences reach the paper's number, one does not", TABLES, "efficiency"),
    Row("tab:topk_latency", "the top-k kernel takes 779 to 21326 us, 2.7x to 5.1x less than torch.topk",
        "{top-k us} us, {top-k ratio} less ([below](#tabtopk_latency))", AGREE,
        "the same shapes on one H100, by another kernel; no TileLang beside it", TABLES),
    Row("sec:kernel:sparse_attn, bytes", "Q-outer does about G = 16 FLOP per byte, KV-outer about 2/3 Bk = 85",
        "{q_outer intensity} and {kv_outer intensity}; {q_outer bytes 1M} and {kv_outer bytes 1M} at 1M tokens, without "
        "scores and top-k (`--stages` has each stage)", AGREE,
        "exact: the paper's formulas at its sizes", COST, "roofline"),
    Row("sec:kernel:sparse_attn, loop order", "KV-outer is the loop order to choose",
        "128K tokens, selection and attention: random blocks {kv_outer random} against {union random} of tiles that "
        "walk the union of their blocks; structured ones {kv_outer structured} against {union structured}", IN_PART,
        "on an H100, faster where neighbours share few blocks, slower where they share most; a third order takes both",
        TABLES),
    Row("fig:training-dynamics-pt", "loss and gradient norm follow full attention",
        "bits per byte {msa-full bits_per_byte}, training loss {msa-full training_loss of the last tenth} above full "
        "attention; without text in other languages {without languages}", UNDECIDED,
        "14M parameters, contexts of 2048 bytes, 256 kept; six seeds", PILOT, "pilot_loss pilot_gradient",
        (("MSA follows full attention", UNDECIDED), ("MSA follows full attention, asked again", NOT_RUN))),
    Row("fig:training-dynamics-cpt", "KL falls fast in the warm-up and stays low; score recall is above block recall",
        "KL {kl_loss first} to {kl_loss last} nats; block recall {block_recall first} to {block_recall last}, score "
        "recall {score_recall first} to {score_recall last}", AGREE,
        "SmolLM2-135M, 1024 of 8192 tokens kept, 105M tokens; it begins from a closed form, not at random", CURVES,
        "conversion_dynamics training_layer20"),
    Row("introduction; MSA-CPT, conversion", "conversion of a trained model is near-lossless",
        "bits per token, equal updates: 2048 tokens kept {even msa-2048 excess}, 1024 kept {even msa-1024 "
        "excess}, 512 kept {even msa-512 excess}; three seeds with 80 fewer updates: 1024 kept {msa-1024 excess}, 512 "
        "kept {msa-512 excess}", UNDECIDED,
        "SmolLM2-135M at 8192 tokens: with 2048 in bits yes, in answers undecided; with 1024 and 512 no", JUDGE,
        "conversion_curves"),
    Row("tab:pretrain-representative", "MSA is on par with full attention on 34 benchmarks at 109B parameters",
        "no model of this size; in its place held-out text and planted facts", OUT_OF_REACH,
        "see the two rows above, and [the paper's text and retrieval](#tabpretrain-representative) beside ours", JUDGE),
    Row("tab:lctx-main", "HELMET and RULER at 128K: -0.60 and +0.12 overall",
        "right answers to planted facts at 2048 to 8192 tokens, of 100: 2048 kept {even msa-2048 answers}, 1024 "
        "kept {even msa-1024 answers}, 512 kept {even msa-512 answers}", OUT_OF_REACH,
        "no public small model retrieves at 128K; SmolLM2-135M at 8192", JUDGE),
    Row("fig:vis-selection", "all groups select the diagonal and the sink column; groups differ in far stripes",
        "SmolLM2, layer 20: the trained Index Branch selects block 0 for at least {first block chosen} of the queries, "
        "without force; the pilot has the diagonal ({msa-msa local_rate} above chance) and groups that differ (overlap "
        "{msa-msa far_overlap} from one half), no sink", IN_PART,
        "two models: the sink column only in the one whose dense attention has a sink", PLOT,
        "selection_index_layer10 selection_index_layer20",
        (("the first block is chosen without being forced; heads differ", DISAGREE),)),
    Row("fig:attention-sink", "every head of layers 4 and 24 gives much of its attention to the first token",
        "SmolLM2 from layer {sink layer} on; below, and in the 14M byte models, not", IN_PART,
        "SmolLM2-135M, dense and on the selected blocks; not in all layers", PLOT, "sink_index"),
    Row("fig:prelim-grad-source", "LM loss alone retrieves badly; KL loss alone loses short context; both are best",
        "recall of LM alone {lm-no-warmup-both-no-warmup exact_match recall} beside both; bits per byte of KL alone "
        "{no-warmup-both-no-warmup bits_per_byte} beside both", IN_PART,
        "14M byte models, KL detached: LM alone does not do, KL alone does; with an attached KL, as the paper "
        "probably has it, not tested", PILOT, "pilot_forest",
        (("both sources of the gradient are needed", DISAGREE),)),
    Row("fig:prelim-detach", "with a large coefficient the KL gradient destroys the backbone; detached it does not",
        "weight 10 attached: {attached-w10 fails} seeds never learn where their detached twins do", AGREE,
        "14M byte models; they never learn, rather than diverge from a healthy curve", PILOT, "pilot_weights",
        (("without detaching, a large KL weight fails", AGREE),)),
    Row("fig:prelim-detach-bench", "at stable coefficients short-context scores gradually regress without detaching",
        "bits per byte at weight 1 {attached-w1-long-detached-w10-long bits_per_byte}; but the gap closes: {far from "
        "emerged}", IN_PART,
        "14M byte models: worse in each of four seeds, by late emergence and not by gradual regression", PILOT, "",
        (("and a stable one regresses, asked again", AGREE),)),
    Row("fig:prelim-warmup-entropy", "attention entropy drops in the first hundreds of steps, then partly recovers",
        "{entropy 0} nats at the first step, {entropy 200} at step 200, {entropy last} at the end", IN_PART,
        "14M byte models, mean of layers: the drop is there, and goes on to the end", PILOT, "pilot_first_steps"),
    Row("fig:prelim-warmup-curves", "a warm-up of the Index Branch gives better short context and retrieval",
        "value head in both arms, as in the paper: bits per byte without the warm-up {value head warm}); without a "
        "value head {no-warmup-msa bits_per_byte}, recall {no-warmup-msa exact_match recall}", UNDECIDED,
        "14M byte models with a value head; without one it disagrees, by the registered rule", PILOT,
        "pilot_first_steps",
        (("warm-up helps", DISAGREE),)),
    Row("fig:prelim-learnable-sink-vis",
        "a learnable sink takes much attention in some heads, the first token in others",
        "{sink by head}", UNTESTED,
        "14M byte models get no sink of either kind, so the claim needs another model; one seed", PILOT,
        "pilot_sink_by_head"),
    Row("fig:prelim-learnable-sink-results", "a learnable sink gives no consistent gain",
        "bits per byte {sink-msa bits_per_byte} with MSA, {full-sink-full bits_per_byte} with full attention", AGREE,
        "14M byte models, three exploratory seeds, no value head; they hardly use the sink (Figure 12)", EXPLORATORY,
        "pilot_forest",
        (("a learnable sink gains nothing", AGREE),)),
    Row("fig:prelim-swa-ppl", "dynamic selection beats a window of the same budget, all along training",
        "bits per byte {window-msa bits_per_byte} at the end, {window-msa bits_per_byte at step 600} at step 600; "
        "converted SmolLM2: window {window-1024 excess}, MSA {msa-1024 excess}, 1024 kept", AGREE,
        "14M byte models, 30 % of whose training text needs far blocks; and SmolLM2-135M", PILOT, "pilot_difference",
        (("dynamic selection beats the window", AGREE), ("also along training", AGREE))),
    Row("tab:block-ablation", "blocks of 32, 64, 128 at equal tokens differ little",
        "where a query keeps 32, 16, 8 blocks, bits per byte of 32 {blocks-32-then-8k-msa-then-8k bits_per_byte}, of 128 "
        "{blocks-128-then-8k-msa-then-8k bits_per_byte} beside 64; where it keeps 8, 4, 2, of 128 {blocks-128-msa "
        "bits_per_byte} ([below](#tabblock-ablation))", AGREE,
        "14M byte models of contexts of 2048, continued at 8192; with 8, 4 and 2 blocks, 128 disagrees", PILOT,
        "pilot_forest", (("block size changes little", DISAGREE),
                         ("block size changes little, where a query keeps 8 to 32, asked again", AGREE))),
    Row("tab:forced-sink-local", "forcing the first block and a local window changes little",
        "where a query keeps 16 blocks, bits per byte with the first forced {forced-first-then-8k-msa-then-8k "
        "bits_per_byte}, with a local one, too, {forced-both-then-8k-msa-then-8k bits_per_byte}; where it keeps 4, both "
        "{forced-both-msa bits_per_byte} ([below](#tabforced-sink-local))", AGREE,
        "14M byte models of contexts of 2048, continued at 8192; with 4 blocks, of which forcing takes one or two, it "
        "disagrees", PILOT, "pilot_forest",
        (("forced blocks change little", DISAGREE),
         ("forced blocks change little, where a query keeps 16, asked again", AGREE))),
    Row("tab:idxval-ablation", "with a warm-up, a value head of the Index Branch gains nothing",
        "bits per byte {value-head-msa bits_per_byte}, recall {value-head-msa exact_match recall} "
        "([below](#tabidxval-ablation))", AGREE,
        "14M byte models from scratch; the paper's is continued pretraining", PILOT, "pilot_forest",
        (("with a warm-up, a value head gains nothing", AGREE),)),
)


@dataclass(frozen=True)
class Definition:
    """An equation, an algorithm or a rule of the paper, and what computes it here."""

    label: str
    says: str
    file: str
    test: str  # a pattern of ./msalab test -R


DEFINITIONS = (
    Definition("fig:msa-arch", "the layer", "core/backend.h", "MiniMaxM3"),
    Definition("alg:msa-train", "its training step", "core/train/attention_layer.cpp", "GradientOfTheKl"),
    Definition("eq:softmax-attention", "causal attention", "core/reference/dense_attention.cpp", "DenseAttention"),
    Definition("eq:two-stage, eq:prelim-group-shared-support", "one selection per query and group",
               "core/cpu/index_select.cpp", "IndexSelect"),
    Definition("eq:prelim-key-blocks", "blocks of keys", "core/problem.h", "Problem"),
    Definition("eq:msa-index-proj", "projections of the Index Branch", "core/indexer/projection.h",
               "MiniMaxM3Projection"),
    Definition("eq:msa-index-score", "block scores", "core/reference/index_scores.cpp", "IndexScores"),
    Definition("eq:msa-topk", "the k best blocks, the local one always in", "core/reference/select_blocks.cpp",
               "SelectBlocks"),
    Definition("eq:msa-sparse-attn", "attention over the selected blocks", "core/reference/sparse_attention.cpp",
               "SparseAttention"),
    Definition("eq:msa-pp, eq:msa-kl", "KL loss of the Index Branch; its teacher is a mean over the group",
               "core/reference/index_kl.cpp", "IndexKl"),
    Definition("eq:msa-detach", "no gradient of the KL loss into the backbone", "core/train/attention_layer.cpp",
               "DetachedTheKl"),
    Definition("sec:msa-flops", "FLOPs of full attention and of MSA", "analysis/cost_model.cpp", "CostModel"),
    Definition("sec:experiment-training-dynamics", "block recall and score recall", "analysis/recall.cpp", "Recall"),
    Definition("sec:kernel:sparse_attn", "chunks of 2 k Bk queries, slots, combination in two phases",
               "core/schedule.h", "Schedule"),
    Definition("sec:kernel:sparse_kl", "sums of exponentials of both branches come with the forward pass",
               "core/reference/check_index_lse.cpp", "IndexLse"),
    Definition("Section 4.1, Index & TopK", "scores are ranked without exponentials: the same ids",
               "gpu/kernels/select_blocks_warp.cu", "SelectBlocks"),
)
