# SPDX-License-Identifier: MIT
"""The tables of `msalab evaluate`. A column that programs have, too, is described as in data/FORMAT.md, by a test."""

from __future__ import annotations

from ..report import Shape
from ..results import Column
from .intervals import FEWEST, RESAMPLES, SHARE

NO_TEXT = "no text was scored"
DENSE = "the model's own attention"
BY_LAYER = "the setting differs by layer: options of the run have it"
OWN = "that of the model"
INTERVALS = (f"{SHARE:.0%} intervals: percentile bootstrap, {RESAMPLES} resamples of whole documents, or of sequences where "
             f"there is one document, of exercises for answers. Of fewer than {FEWEST} there is none.")


def _c(kind, unit, definition, null=""):
    return Column(kind, unit, definition, null)


CONFIG = _c("text", "", "name of the setting: dense, or selector and budget, and what differs from the defaults")
UNITS = _c("integer", "", "documents, sequences or exercises that the bootstrap of the row draws from")
TOKENS = _c("integer", "tokens", "tokens of the text that are foretold")
SELECTOR = "selector of blocks, with options that are not its defaults"
BUDGET = "tokens that a query may attend to, as asked for"
EXCESS = _c("estimate", "bits", "bits per token above the model's own attention, the same tokens under both")
BITS = _c("real", "bits", "mean of -log2 of the probability that the model gives the next token", NO_TEXT)
TASK = {"task": _c("text", "", "kind of exercise"), "exercise_tokens": _c("integer", "tokens", "tokens of an exercise"),
        "shallowest": _c("real", "1", "least depth of the facts, a share of the exercise"),
        "deepest": _c("real", "1", "depth that they lie before")}

_ANSWERS = {**TASK, "config": CONFIG, "exercises": _c("integer", "", "exercises with an answer here"),
            "answers": _c("integer", "", "answers that are counted"),
            "right_answers": _c("estimate", "share of answers", "answers of which every token is the likeliest one, those "
                                "before it being right"),
            "log_likelihood": _c("real", "nats", "of a whole answer, mean over answers"),
            "right_answers_above": _c("estimate", "share of answers", "right_answers less that of dense, exercise by exercise"),
            "log_likelihood_above": _c("estimate", "nats", "log_likelihood less that of dense, likewise")}

SHAPES = [
    Shape("configs", "settings, dense attention first", 1, {
        "config": CONFIG, "selector": _c("text", "", SELECTOR, DENSE),
        "token_budget": _c("integer", "tokens", BUDGET, DENSE),
        "block_size": _c("integer", "tokens", "tokens of a block", BY_LAYER),
        "top_k": _c("integer", "blocks", "k, blocks that a query and group keeps, forced ones included", BY_LAYER),
        "forced_first": _c("integer", "blocks", "the oldest blocks, which every query keeps", BY_LAYER),
        "forced_local": _c("integer", "blocks", "the newest blocks, which every query keeps, its own among them", BY_LAYER),
        "element": _c("text", "", "type of the operands", OWN),
        "bits_of_text": BITS,
        "bits_of_bytes": _c("real", "bits", "the same sum over the UTF-8 bytes of the text foretold", "the tokenizer does "
                            "not say which they are"),
        "perplexity": _c("real", "1", "2 ^ bits_of_text", NO_TEXT), "excess": EXCESS,
        "units": _c("integer", "", UNITS.definition, "dense attention, or no text"),
        "excess_beyond": _c("estimate", "bits", "excess over the tokens that are foretold from positions beyond the budget: "
                            "before them a query reads all there is"),
        "beyond_tokens": _c("integer", "tokens", "tokens of excess_beyond", "dense attention, or no text"),
        "beyond_units": _c("integer", "", "what the bootstrap of excess_beyond draws from", "dense attention, or no text")}),
    Shape("layer_errors", "where hidden states differ; which layer to keep dense is said by sensitivity", 2, {
        "config": CONFIG, "layer": _c("integer", "", "number of the layer in the model"),
        "layer_error": _c("real", "relative", "mean over tokens of |h - h_dense| / |h_dense| of the hidden state behind the "
                          "layer, the error of all layers before included; then over sequences")}),
    Shape("by_position", "by position in the sequence", 2, {
        "config": CONFIG, "first_position": _c("integer", "", "first position of the predicting tokens"),
        "end_position": _c("integer", "", "position behind the last"), "foretold_tokens": TOKENS, "bits_of_text": BITS,
        "excess": EXCESS, "units": _c("integer", "", UNITS.definition, "dense attention, or no text")}),
    Shape("differences", "every two settings of a budget, on the same tokens", 2, {
        "config": CONFIG, "above": _c("text", "", "the setting that it is compared with"),
        "token_budget": _c("integer", "tokens", BUDGET, DENSE),
        "more_bits": _c("estimate", "bits", "bits per token of config above those of the other one, paired"),
        "units": UNITS}),
    Shape("first_block", "selectors without and with the first block forced", 2, {
        "selector": _c("text", "", SELECTOR, DENSE), "token_budget": _c("integer", "tokens", BUDGET, DENSE), "excess": EXCESS,
        "forced_excess": _c("estimate", "bits", "excess with the first block forced"),
        "first_block_gain": _c("estimate", "bits", "excess less forced_excess, paired"), "units": UNITS}),
    Shape("sensitivity", "one layer of a setting dense beside the sparse others, or sparse alone; what matters most first", 3, {
        "config": CONFIG, "one": _c("text", "", "what the one layer is: dense or sparse"),
        "layer": _c("integer", "", "number of the layer in the model"),
        "layer_bits": _c("estimate", "bits", "bits per token: of one sparse layer, the excess with this layer alone sparse; of "
                         "one dense layer, what of the excess is gone with this layer dense, too"),
        "units": UNITS}),
    Shape("retrieval_total", "right answers over all depths", 5, _ANSWERS),
    Shape("retrieval", "right answers by depth", 5, _ANSWERS),
    Shape("evaluated", "what was evaluated", 0, {
        "model": _c("text", "", "name of the model"), "foretold_tokens": TOKENS,
        "text_sequences": _c("integer", "", "sequences of text"), "documents": _c("integer", "", "documents of the text"),
        "resampled": _c("text", "", "what the bootstrap of text draws: documents or sequences", NO_TEXT),
        "context": _c("integer", "tokens", "tokens of a sequence at most"),
        "model_layers_run": _c("text", "", "layers of the model with attention, divided by spaces")})]
