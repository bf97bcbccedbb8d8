# SPDX-License-Identifier: MIT
"""docs/paper.md is what the records say, and has a row for all of the paper; `msalab paper` does each step once."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("h5py")
pytest.importorskip("matplotlib")
from msalab.__main__ import main  # noqa: E402
from studies.paper import html, measured, page, rows  # noqa: E402
from msalab.results import ResultsError  # noqa: E402
from studies.pilot.make_runs import write_run  # noqa: E402
from studies.pilot.runs import read_records  # noqa: E402

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
DOCUMENT = ROOT / "docs/paper.md"
# Of the paper's LaTeX source, all that it labels fig:, tab:, eq: and alg:.
LABELS = """
fig:msa-arch fig:training-dynamics-pt fig:training-dynamics-cpt fig:efficiency fig:vis-selection fig:attention-sink
fig:prelim-grad-source fig:prelim-detach fig:prelim-detach-bench fig:prelim-warmup-entropy fig:prelim-warmup-curves
fig:prelim-learnable-sink-vis fig:prelim-learnable-sink-results fig:prelim-swa-ppl
tab:topk_latency tab:pretrain-representative tab:lctx-main tab:block-ablation tab:forced-sink-local tab:idxval-ablation
eq:softmax-attention eq:two-stage eq:prelim-group-shared-support eq:prelim-key-blocks eq:msa-index-proj
eq:msa-index-score eq:msa-topk eq:msa-sparse-attn eq:msa-pp eq:msa-kl eq:msa-detach alg:msa-train
""".split()


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    if not (BIN / "msa-cost").exists():
        pytest.skip(f"no msa-cost in {BIN}: ./msalab build")
    return measured.gather(measured.Tree(ROOT, BIN), tmp_path_factory.mktemp("cost") / "cost.json")


def test_the_pages_have_the_numbers_of_the_records(numbers):
    text = DOCUMENT.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table ([\w-]+) from", text)) == set(page.TABLES)
    for path in (DOCUMENT, ROOT / "README.md", ROOT / "docs/joss/paper.md"):
        text = path.read_text(encoding="utf-8")
        assert page.with_tables(text, numbers) == text, f"msalab paper --page {path} writes it anew"


def test_differences_have_the_digits_of_the_pilots_page(numbers):
    """With fewer, the small ones of Table 4 and their intervals were all the same number."""
    pilot = (ROOT / "studies/pilot/README.md").read_text(encoding="utf-8")
    found = re.findall(r"^(\S+) \((.*)\)$", "\n".join(measured.check_numbers(numbers.judged).values()), re.MULTILINE)
    assert len(found) > 20 and all(f"| {mean} | {interval} |" in pilot for mean, interval in found)


def test_the_readme_is_short_and_begins_with_the_paper():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert re.search(r"\]\(([^)]*)\)", text)[1] == "docs/paper.md"


def test_every_figure_table_and_equation_has_a_row():
    named = {label for row in (*rows.RESULTS, *rows.DEFINITIONS) for label in re.findall(r"\w+:[\w-]+", row.label)}
    assert [label for label in LABELS if label not in named] == []
    assert {label for label in named if not label.startswith("sec:")} <= set(LABELS)


def test_figures_and_tables_have_the_numbers_of_the_papers_source():
    for kind, (_, names) in rows.ORDER.items():
        assert [f"{kind}:{name}" for name in names] == [label for label in LABELS if label.startswith(kind)]
    assert rows.numbered("abstract; fig:efficiency, left") == "abstract; Figure 4 (fig:efficiency), left"
    assert [row.short for row in rows.RESULTS[:5:4]] == ["Figure 4, left", "Section 4.2, bytes"]


def test_verdicts_are_of_the_known_words_and_none_disagrees_as_a_whole():
    assert {row.verdict for row in rows.RESULTS} <= set(rows.VERDICTS)
    for path in (DOCUMENT, ROOT / "docs/joss/paper.md"):
        assert ("No row disagrees as a whole" in path.read_text(encoding="utf-8")) == all(
            row.verdict != rows.DISAGREE for row in rows.RESULTS)


def test_a_verdict_of_other_records_is_refused(numbers):
    row = next(row for row in rows.RESULTS if row.label == "tab:block-ablation")
    says, verdict = row.rests[0]
    other = replace(numbers, judged={**numbers.judged, says: (numbers.judged[says][0], rows.AGREE)})
    with pytest.raises(ResultsError, match=f'of tab:block-ablation was written when .*"{verdict}"; it is "agree" now'):
        page.results(other)


def test_an_ablation_has_the_papers_rows_and_ours_below_them(tmp_path):
    """Of the seeds in which every arm has run: seed 17 has one arm."""
    for arm, seed, bits in (("msa", 11, 1.5), ("blocks-32", 11, 1.25), ("blocks-128", 11, 1.75),
                            *(("msa-then-8k", seed, 1.0) for seed in (15, 16)), ("msa-then-8k", 17, 3.0),
                            *(("blocks-32-then-8k", seed, seed - 14) for seed in (15, 16)),
                            *(("blocks-128-then-8k", seed, 2.0) for seed in (15, 16))):
        write_run(tmp_path, arm, seed, bits=bits)
    table = page.block_size(measured.Numbers({}, {}, read_records(tmp_path), {}, None, {}))
    assert table[1:3] == [("*PPL, less is better*", "", "", ""), ("paper: TAU2", "1.176", "1.176", "1.176")]
    assert table[-6:] == [("*256 of 2048 bytes kept, 1 seeds*", "", "", ""),
                          ("pilot: bits per byte", "1.2500", "1.5000", "1.7500"),
                          ("pilot: recall, % right", "100.0", "100.0", "100.0"),
                          ("*1024 of 8192 bytes kept, 2 seeds*", "", "", ""),
                          ("pilot: bits per byte", "1.5000", "1.0000", "2.0000"),
                          ("pilot: recall, % right", "100.0", "100.0", "100.0")]
    assert [row[0] for row in page.forced(measured.Numbers({}, {}, {}, {}, None, {}))][-1] == "paper: RULER-32K"


def test_a_head_that_uses_the_learnable_sink_is_counted(tmp_path):
    write_run(tmp_path, "sink", 11, heads=[(0.9, 0.5, 0.0), (0.9, 0.0, 0.3), (0.0, 0.0, 0.15), (0.0, 0.0, 0.05)])
    write_run(tmp_path, "full-sink", 11, heads=[(0.9, 0.0, 0.3), (0.9, 0.0, 0.4), (0.0, 0.0, 0.1), (0.0, 0.0, 0.1)])
    assert measured.sink_by_head({}, read_records(tmp_path)) == {
        "sink by head": "of 4 heads with MSA, 1 head gives the learnable sink more than a fifth (at most 30.0 %), 1 head "
                        "gives token 0 more than a fifth (at most 50.0 %); of 4 heads with full attention, 2 heads give the "
                        "learnable sink more than a fifth (at most 40.0 %), no head gives token 0 more than a fifth "
                        "(at most 0.0 %)"}


def test_what_computes_an_equation_is_there_and_tested():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.cpp"))
    for one in rows.DEFINITIONS:
        assert (ROOT / one.file).exists(), one.label
        assert re.search(rf"TEST(_[PF])?\(\s*\w*{one.test}|TEST(_[PF])?\(\s*\w+,\s*\w*{one.test}", tests), one.label


def test_a_quotation_that_a_page_no_longer_has_is_refused(tmp_path):
    (tmp_path / "a.md").write_text("at least\n98.9 % of all", encoding="utf-8")
    tree = measured.Tree(tmp_path, BIN)
    assert measured.quoted(tree, "a.md", r"at least ([\d.]+ %)") == "98.9 %"
    with pytest.raises(ResultsError, match=r"a.md: says nothing like"):
        measured.quoted(tree, "a.md", r"at most ([\d.]+ %)")


def test_the_page_with_pictures_is_one_file(numbers, tmp_path):
    (tmp_path / "pictures").mkdir()
    for row in rows.RESULTS:
        for name in row.pictures.split():
            (tmp_path / "pictures" / f"{name}.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    text = html.write_html(numbers, tmp_path).read_text(encoding="utf-8")
    assert text.count("<section") == len(rows.RESULTS) + len(html.TITLES) + 1
    assert text.count("<img src=\"data:") == sum(len(row.pictures.split()) for row in rows.RESULTS)
    assert not re.findall(r"(?:src|href)=.https?:", text)
    assert "{" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)


@pytest.mark.skipif(not (BIN / "msa-analyze").exists(), reason=f"no msa-analyze in {BIN}: ./msalab build")
def test_the_steps_draw_every_picture_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MSALAB_BIN", str(BIN))
    assert main(["paper", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/paper.html").stat().st_size > 100_000


def test_a_folder_that_is_no_clone_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "--out", "out"]) == 2
    assert "msalab paper runs in a clone of msalab's repository" in capsys.readouterr().err


def test_a_missing_program_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["paper", "--programs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"{tmp_path / 'msa-cost'}: no such program" in capsys.readouterr().err
