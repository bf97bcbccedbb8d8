# SPDX-License-Identifier: MIT
"""The records, rule and page of the study of public models, on made ones; and the page of the tree."""

import json
import lzma
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "python/tests"))
from make_evaluation import estimate, made, rows_of  # noqa: E402
from msalab.ending import Refusal  # noqa: E402
from studies.models import page, records, rule, texts  # noqa: E402


def evaluation(excess, dense=4.0, budget=512, gain=0.5, lows=(0.25, -0.25)):
    """The content of an evaluation with these excesses, by selector and forced first blocks; `lows` are the lower ends of
    what the first block gains for the Index Branch and for mean keys."""
    configs = [{"config": "dense", "bits_of_text": dense}] + [
        {"config": f"{name}@{budget}" + ",first=1" * first, "selector": name, "token_budget": budget, "forced_first": first, "bits_of_text": dense,
         "units": 8, "beyond_units": 8, "beyond_tokens": 4} | estimate("excess", value, value / 2, 2 * value)
        | estimate("excess_beyond") for (name, first), value in excess.items()]
    rows = rows_of()
    gains = [{"selector": name, "token_budget": budget, "units": 8} | estimate("excess") | estimate("forced_excess")
             | estimate("first_block_gain", gain, low, 0.75)
             for name, low in zip(("index", "mean-key"), lows)]
    return made({"configs": configs, "evaluated": rows["evaluated"], "first_block": gains, "by_position": [
        {"config": row["config"], "first_position": 0, "end_position": 512, "foretold_tokens": 5, "bits_of_text": dense,
         "units": 8} | estimate("excess", 0.125, 0, 0.25) for row in configs]})


def put(folder, model, piece, content, context=2048, kind="mixed"):
    path = records.path_of(folder, model, context)
    records.write(path, kind, piece, records.slim(content, piece))
    return path


def test_a_record_is_a_smaller_report(tmp_path):
    content = made(rows_of())
    content["tables"]["configs"]["rows"][1]["excess"] = 1 / 3
    path = put(tmp_path, "smollm2", "loss-512", content)
    read = records.read(path)["mixed", "loss-512"]
    assert read.program == "msalab evaluate" and read["configs"]["excess"][1] == 0.33333
    assert "retrieval" not in read.tables  # of a loss
    assert put(tmp_path, "smollm2", "asked", content) == path == tmp_path / "smollm2/2048.json.xz"
    both = records.read(path)
    assert len(both["mixed", "asked"]["retrieval"]) == len(content["tables"]["retrieval"]["rows"])
    assert len(both) == 2 and both["mixed", "loss-512"]["configs"]["excess"][1] == 0.33333
    assert list(json.loads(lzma.decompress(path.read_bytes()))["mixed-asked"]["tables"]["retrieval"]["rows"])[0] == "task"
    fewer = records.slim(content | {"tables": {"heads": {"about": "", "key": ["layer"], "columns": ["layer"], "rows": []},
                                               "other": {}}, "columns": {"layer": {}}}, "heads")
    assert list(fewer["tables"]) == ["heads"] and not path.with_name(path.name + ".partial").exists()


def test_what_a_selection_keeps_is_without_its_intervals(tmp_path):
    row = {"layer": 1, "selector": "oracle", "rows_counted": 5} | estimate("mass_kept", 2 / 3)
    column = {"type": "integer", "unit": "", "definition": ""}
    content = made({}) | {"columns": {"layer": column, "selector": column | {"type": "text"}, "rows_counted": column,
                                      "mass_kept": column | {"type": "estimate"}},
                          "tables": {"selectors": {"about": "", "key": ["layer", "rows_counted"], "columns": list(row)[:4],
                                                   "rows": [row, row | {"mass_kept": None}]}}}
    table = records.read(put(tmp_path, "qwen", "keeps-64", content))["mixed", "keeps-64"]["selectors"]
    assert list(table.records()[0].items()) == [("layer", 1), ("selector", "oracle"), ("mass_kept", 0.66667)]
    assert math.isnan(table["mass_kept"][1]) and table.key == ("layer",)


def test_records_of_many_writers_are_all_kept(tmp_path):
    content = made(rows_of())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda budget: put(tmp_path, "qwen", f"loss-{budget}", content), range(8)))
    assert len(records.read(records.path_of(tmp_path, "qwen", 2048))) == 8


def test_answers_have_the_better_index_branch_and_losses_what_lost_more(tmp_path):
    put(tmp_path, "qwen", "loss-512", evaluation({("oracle", 0): 0.01, ("index", 0): 0.08, ("index", 1): 0.03,
                                                  ("window", 1): 0.2}))
    put(tmp_path, "gemma3", "loss-512", evaluation({("index", 0): 0.08}))
    of = page.load(tmp_path)
    said = page.answers(of).splitlines()
    assert said[:3] == [f"- **{name}.** Its loss with 2048 tokens was not measured." for name in page.MODELS.values()]
    assert said[4:] == ["| model | context | text | 512 tokens |", "|---|---|---|---|", "| Gemma 3 270M | 2K | mixed | 2.00 |",
                        "| Qwen2.5-Coder-0.5B | 2K | mixed | **0.75** |"]
    assert page.loss(of)[2] == ("Qwen2.5-Coder-0.5B", "512 of 2K", "mixed", "4.0000", "0.25 (0.12 to 0.50)", "-",
                                "5.00 (2.50 to 10.00)", "0.75 (0.38 to 1.50)", "-", "index 0.500 (0.250 to 0.750)")
    assert page.ran(of)[1][4] == "not run" and page.ran(of)[3][2] == "beyond its positions"
    assert page.retrieval(of) == page.NONE == page.mass(of) == page.blocks(of) == page.asked(of) == page.by_position(of)


def test_losses_have_the_wider_index_branch_and_what_it_gains_by_the_first_block(tmp_path):
    put(tmp_path, "gemma3", "loss-512", evaluation({("index", 0): 0.05}), 8192)
    put(tmp_path, "gemma3", "wide-512", evaluation({("index", 1): 0.01}, gain=0.75), 8192)
    put(tmp_path, "gemma3", "loss-1024", evaluation({("index", 0): 0.01}, budget=1024), 8192, "code")
    of = page.load(tmp_path)
    assert page.answers(of).splitlines()[-2:] == ["| Gemma 3 270M | 8K | code | - | **0.25** |",
                                                  "| Gemma 3 270M | 8K | mixed | **0.25** | - |"]
    assert page.ran(of)[6][4] == "`loss-512`, `wide-512`"
    assert page.loss(of)[2][1:] == ("512 of 8K", "mixed", "4.0000", "-", "-", "-", "1.25 (0.62 to 2.50)", "0.25 (0.12 to 0.50)",
                                    "index 0.500 (0.250 to 0.750); wide 0.750 (0.250 to 0.750)")


def said_of(folder, model):
    """A model's answer, in one line."""
    return {one.split(".**")[0]: one for one in " ".join(page.answers(page.load(folder)).split("\n\n|")[0].split()).split("- **")
            }[page.MODELS[model]]


def test_an_answer_has_all_that_is_asked_of_a_model(tmp_path):
    assert "Its loss with 2048 tokens was not measured." in said_of(tmp_path, "gemma3")
    put(tmp_path, "gemma3", "loss-512", evaluation({("index", 0): 0.01}), 8192)  # another budget
    put(tmp_path, "gemma3", "loss-2048", evaluation({("index", 0): 0.01}, budget=2048), 8192, "code")  # another text
    assert "was not measured." in said_of(tmp_path, "gemma3")
    for context, excess in ((8192, 0.03), (16384, 0.08), (32768, 0.03)):
        put(tmp_path, "gemma3", "loss-2048", evaluation({("index", 0): excess}, budget=2048), context)
    put(tmp_path, "gemma3", "wide-2048", evaluation({("index", 1): 0.01}, budget=2048, gain=0.625), 32768)
    put(tmp_path, "gemma3", "retrieval", retrieved(256, {"dense": 1.0, "index@2048,first=1": 0.25}), 8192)
    put(tmp_path, "gemma3", "retrieval", retrieved(256, {"dense": 0.75, "index@2048,first=1": 0.25}), 32768)
    put(tmp_path, "gemma3", "retrieval-wide", retrieved(256, {"dense": 0.75, "index@2048,first=1": 0.5}), 32768)
    (tmp_path / "gemma3/crossover.json").write_text(json.dumps(
        {"pays": {"prefill": 16384, "decode": None, "training": 32768}}))
    assert said_of(tmp_path, "gemma3").strip() == (
        "Gemma 3 270M.** By bits, MSA works at 8K and 32K, but not at 16K: the bits change by +0.75 % (+0.38 to +1.50) at 8K, "
        "+2.00 % (+1.00 to +4.00) at 16K and +0.25 % (+0.12 to +0.50) at 32K. At 8K and 32K it finds 25 and 50 % of the needles, dense "
        "attention 100 and 75 %. MSA is faster from 16K on in prefill, nowhere in decode and from 32K on in training; the "
        "model's own context is 32K. Force the first block: that gains up to 0.625 bits (0.250 to 0.750) at 32K.")
    assert max(map(len, page.answers(page.load(tmp_path)).split("\n\n|")[0].splitlines())) <= 120


def test_an_answer_forces_the_first_block_where_something_gains(tmp_path):
    put(tmp_path, "qwen", "loss-2048", evaluation({("index", 0): 0.08}, budget=2048, lows=(0, 0.25)), 8192)
    put(tmp_path, "smollm2", "loss-2048", evaluation({("index", 0): 0.08}, budget=2048, lows=(0, 0)), 8192)
    assert said_of(tmp_path, "qwen").strip() == (
        "Qwen2.5-Coder-0.5B.** By bits, MSA does not work: the bits change by +2.00 % (+1.00 to +4.00) at 8K. Needles were not "
        "measured there. Force the first block for mean keys alone: that gains up to 0.500 bits (0.250 to 0.750) at 8K.")
    assert "Force no block: nothing gains." in said_of(tmp_path, "smollm2")


def test_kinds_of_text_are_side_by_side_at_one_budget(tmp_path):
    kept = [{"layer": layer, "selector": selector, "token_budget": budget, "forced_first": first, "mass_kept": mass + layer / 8}
            for layer in (1, 3) for selector, budget, first, mass in (
                ("oracle", 2048, 0, 0.5), ("oracle", 1024, 0, 0.125), ("mean-key", 2048, 1, 0.25), ("mean-key", 2048, 0, 0.0))]
    heads = [{"layer": layer, "head": head, "head_sink": layer / 4 + head / 8} for layer in (1, 3) for head in (0, 1)]
    put(tmp_path, "qwen", "keeps-64", report_of({"selectors": kept}), 8192, "prose")
    put(tmp_path, "qwen", "keeps-32", report_of({"selectors": kept}), 8192, "code")  # another size of a block
    put(tmp_path, "qwen", "heads", report_of({"heads": heads}), 8192)
    assert page.kinds(page.load(tmp_path)) == [
        ("model", "tokens", "sink, code", "sink, prose", "sink, mixed", "oracle, code", "oracle, prose", "oracle, mixed",
         "mean-key, first, code", "mean-key, first, prose", "mean-key, first, mixed"),
        ("Qwen2.5-Coder-0.5B", "2048 of 8K", "-", "-", "0.56", "-", "0.750", "-", "-", "0.500", "-")]
    assert page.kinds(page.Records()) == page.NONE


def test_positions_are_those_beyond_the_budget_of_the_paper(tmp_path):
    content = evaluation({("oracle", 0): 0.01, ("index", 1): 0.02}, budget=2048)
    table = content["tables"]["by_position"]["rows"]
    table += [row | {"first_position": 2048, "end_position": 8192} for row in table]
    put(tmp_path, "qwen", "loss-2048", content, 8192)
    put(tmp_path, "qwen", "loss-2048", content, 8192, "code")
    assert page.by_position(page.load(tmp_path))[1:] == [
        ("Qwen2.5-Coder-0.5B", "8K", "2048 to 8191", "4.000", "+0.1250", "-", "-", "+0.1250")]


def retrieved(exercises, right):
    """The content of an evaluation with these right answers, by config, of the task needle."""
    content = evaluation({})
    kinds = {"config": "text", "task": "text", "exercises": "integer", "right_answers": "estimate"}
    content["tables"]["retrieval_total"] = {"about": "", "key": [], "columns": list(kinds), "rows": [
        {"config": config, "task": "needle", "exercises": exercises} | estimate("right_answers", share, share / 2, 1)
        for config, share in right.items()]}
    content["columns"] |= {name: {"type": kind, "unit": "", "definition": ""} for name, kind in kinds.items()}
    return content


def test_retrieval_has_a_row_of_each_budget_and_the_wider_index_branch(tmp_path):
    put(tmp_path, "gemma3", "asked", retrieved(16, {"dense": 1.0}))
    before = page.load(tmp_path)
    assert page.retrieval(before) == page.NONE
    assert page.asked(before) == [("model", "context", "`needle`"), ("Gemma 3 270M", "2K", "1.00 (0.50 to 1.00) of 16")]
    put(tmp_path, "gemma3", "solved", retrieved(256, {"dense": 0.75}))
    put(tmp_path, "gemma3", "retrieval", retrieved(256, {"dense": 0.75, **{
        f"{name}@{budget},first=1": budget / 2048 for name in ("oracle", "mean-key", "index") for budget in (512, 1024)}}))
    put(tmp_path, "gemma3", "retrieval-wide", retrieved(256, {"dense": 1.0, "index@512,first=1": 0.75,
                                                              "index@1024,first=1": 1.0}))
    of = page.load(tmp_path)
    assert page.asked(of)[1:] == [("Gemma 3 270M", "2K", "0.75 (0.38 to 1.00) of 256")]
    dense, quarter, half = ("0.75 (0.38 to 1.00)", "0.25 (0.12 to 1.00)", "0.50 (0.25 to 1.00)")
    assert page.retrieval(of) == [
        ("model", "context", "task", "budget", "dense", "oracle", "index", "wide", "mean-key"),
        ("Gemma 3 270M", "2K", "`needle`", "512", dense, quarter, quarter, dense, quarter),
        ("Gemma 3 270M", "2K", "`needle`", "1024", dense, half, half, "1.00 (0.50 to 1.00)", half)]


def report_of(tables):
    """The content of a summary.json with these rows, a column of numbers or texts each."""
    names = {table: [name for name in rows[0] if not name.endswith(("_low", "_high"))] for table, rows in tables.items()}
    rows_with = {name: rows[0] for table, rows in tables.items() for name in names[table]}
    kinds = {str: "text", int: "integer", float: "real"}
    columns = {name: {"type": "estimate" if f"{name}_low" in row else kinds[type(row[name])], "unit": "", "definition": ""}
               for name, row in rows_with.items()}
    return made({}) | {"columns": columns, "tables": {
        table: {"about": "", "key": [], "columns": names[table], "rows": rows} for table, rows in tables.items()}}


def test_what_layers_allow_is_of_the_mean_target_and_of_the_formats_that_a_user_has(tmp_path):
    patterns = [{"pattern_role": role, "pattern": role, "computing": len(layers), "computing_layers": " ".join(layers),
                 "most_lost": most} | estimate("mass_lost", lost, lost / 2, 2 * lost) for role, layers, most, lost in (
                     ("own", "012345", 0.0, 0.0), ("best", "0", 0.5, 0.4), ("target_each", "01235", 0.01, 0.001),
                     ("target_mean", "0125", 0.03125, 0.008))]
    formats = [{"precision": f"{name}, {scale}", "format": name, "scale": scale} for name, scale in (
        ("f32", "none"), ("e4m3", "token"), ("e4m3", "none"), ("int8", "token"))]
    index = [row | estimate("precision_recall", value) for row, value in zip(formats, (1, 0.98, 0.97, 0.99))]
    keys = [row | estimate("sparse_error", value) for row, value in zip(formats, (0, 0.04, 0.07, 0.02))]
    by_layer = [{"precision": row["precision"], "layer": layer} | estimate("sparse_error", value + layer % 3 / 8)
                for row, value in zip(formats, (0, 0.5, 0.75, 0.25)) for layer in (3, 5, 7)]
    caches = [{"cache_role": role, "selector": "index", "share_of_context": share, "hit_rate": hits}
              for role, share, hits in (("recommended", 0.5, 0.1), ("tried", 0.25, 0.75), ("tried", 0.5, 0.875),
                                        ("whole", 1.0, 1.0))]
    put(tmp_path, "qwen", "reuse", report_of({"patterns": patterns}))
    put(tmp_path, "qwen", "precision", report_of({"index": index, "cache": keys, "cache_layers": by_layer}))
    put(tmp_path, "qwen", "cache", report_of({"caches": caches}))
    put(tmp_path, "gemma3", "reuse", report_of({"patterns": patterns[:3]}))  # nothing shared reaches the target
    assert page.layers(page.load(tmp_path))[1:] == [
        ("Gemma 3 270M", "2K", "mixed", "6 of 6: 0-5", "0.0000 (0.0000 to 0.0000)", "0.000", "-", "-", "-", "-"),
        ("Qwen2.5-Coder-0.5B", "2K", "mixed", "4 of 6: 0-2, 5", "0.0080 (0.0040 to 0.0160)", "0.031",
         "0.97, 0.99", "0.040, layer 5: 0.75", "0.020, layer 5: 0.50", "0.750, 0.875")]
    assert page.layers(page.Records()) == page.NONE


def test_names_of_pieces_are_shown_together():
    assert page.together(["asked", "keeps-32", "keeps-64", "loss-512"]) == "`asked`, `keeps-32/64`, `loss-512`"
    assert page.together(["retrieval", "retrieval-wide", "wide-512"]) == "`retrieval`, `retrieval-wide`, `wide-512`"


def some_points(exponent, noise, seed=1, models=("a", "b", "c")):
    rng = np.random.default_rng(seed)
    return [rule.Point(model, str(one), 0.5 * value ** power * math.exp(noise * rng.standard_normal()), value, value, 0.0)
            for model, power in zip(models, exponent) for one, value in enumerate(np.geomspace(0.01, 0.3, 8))]


def test_a_rule_carries_where_the_third_model_follows_it_and_not_elsewhere():
    good = rule.trials(some_points((1.5, 1.5, 1.5), 0.1))
    assert {one.predictor for one in good} == {"mass lost", "output error"}  # nothing is lost of a sink
    assert len(good) == 6 and rule.carries(good) and max(one.off for one in good) < 1.3
    assert not rule.carries(rule.trials(some_points((1.5, 1.5, 0.2), 0.1)))  # the third is another law
    assert not rule.carries(rule.trials(some_points((1.5, 1.5, 1.5), 1.5)))  # its intervals say nothing
    assert rule.trials(some_points((1.5, 1.5), 0.1, models=("a", "b"))) == [] and not rule.carries([])


def test_the_interval_of_a_prediction_is_that_of_a_regression():
    line = rule.fitted([1, math.e, math.e ** 2, math.e ** 3], [1, math.e ** 2, math.e ** 1, math.e ** 3])
    assert line.b == pytest.approx(0.8) and line.a == pytest.approx(0.3)
    spread = math.sqrt((0.3 ** 2 + 0.9 ** 2 + 0.9 ** 2 + 0.3 ** 2) / 2)
    middle, low, high = line.predict(math.e ** 2)
    assert middle == pytest.approx(math.exp(1.9))
    assert math.log(high / middle) == pytest.approx(4.303 * spread * math.sqrt(1 + 1 / 4 + 0.25 / 5))
    assert middle / low == pytest.approx(high / middle)


def test_texts_are_whole_documents_or_pieces_in_turn_and_made_once(tmp_path):
    for side in ("train", "held_out"):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        for name, letter in (("code.txt", "c"), ("english.txt", "e")):
            (tmp_path / "corpus" / side / name).write_text("\0".join(f"{side} {n} " + letter * 5000 for n in range(8)) + "\0no")
    of = texts.write(tmp_path / "texts", tmp_path / "corpus", "mixed", 1024, 2, 3)
    learnt = [path.read_text() for path in of["learnt"]]
    held = of["held_out"][0].read_text().split("\0")
    assert len(learnt) == 2 and len(held) == 3 and all(len(one) >= 6 * 1024 for one in learnt + held)
    assert "train" in learnt[0] and "held_out" in held[0] and "train" not in held[0]
    assert [piece[-1] for piece in learnt[0].strip().split("\n\n")] == ["c", "e"] * 2
    assert texts.write(tmp_path / "texts", None, "mixed", 1024, 2, 3) == of
    with pytest.raises(Refusal, match="has not the texts of code-1024; --corpus makes them"):
        texts.write(tmp_path / "texts", None, "code", 1024, 2, 3)
    with pytest.raises(Refusal, match="has 4 texts of 6144 characters of the kind code, must have 7"):
        texts.write(tmp_path / "more", tmp_path / "corpus", "code", 1024, 7, 3)


def test_the_page_has_the_tables_of_the_records():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text, page.load(records.FOLDER)) == text, "python -m studies.models.page writes it"
    assert set(page.TABLES) == set(part.split(" ")[0] for part in text.split("<!-- table ")[1:])
    with pytest.raises(Refusal, match="there is no table nothing"):
        page.with_tables("<!-- table nothing from studies/models/records -->\n<!-- end -->", page.Records())


def test_records_of_the_tree_are_readable():
    of = page.load(records.FOLDER)
    assert of.found and set(of.crossover) == set(page.MODELS)
    for pieces in of.found.values():
        for record in pieces.values():
            survey = record.run["survey"]
            assert all(survey[key] > 0 for key in ("seconds", "processor_seconds") if key in survey)
    assert json.dumps(of.crossover["gemma3"]["pays"])
