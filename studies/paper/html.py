# SPDX-License-Identifier: MIT
"""paper.html: the rows of docs/paper.md with their pictures, one file without network."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

from . import page
from .measured import Numbers
from .rows import RESULTS, SECONDS, Row, numbered

STYLE = """:root { color-scheme: light dark; --ink: #1c1e26; --soft: #5a6072; --line: #dfe2ea; --page: #fbfbfd }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --soft: #a3a9ba; --line: #333846; --page: #14161c } }
body { font: 17px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62em;
       margin: 0 auto; padding: 24px 16px }
section { border-top: 1px solid var(--line); padding: 12px 0 } h2 { font-size: 20px; margin: 6px 0 }
dl { display: grid; grid-template-columns: 9em 1fr; gap: 4px 12px; margin: 0 }
dt { color: var(--soft) } dd { margin: 0 }
img { max-width: 100%; width: 520px; background: white; display: block; margin: 12px 0 }
table { border-collapse: collapse; font-size: 15px; display: block; overflow-x: auto; margin: 12px 0 }
a { color: inherit }
td, th { border: 1px solid var(--line); padding: 3px 8px; text-align: left }
code { font-size: 0.86em; overflow-wrap: anywhere }
@media (max-width: 600px) { dl { grid-template-columns: 1fr } dd { margin-bottom: 8px } }"""
TITLES = {"top-k": "tab:topk_latency", "main": "tab:pretrain-representative", "block-size": "tab:block-ablation",
          "forced": "tab:forced-sink-local", "value-head": "tab:idxval-ablation"}


def of_markdown(text: str) -> str:
    """Code, bold and links of a cell; a link to a part of the Markdown page becomes its words."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)


def _table(rows) -> str:
    head, *body = rows
    lines = ["<table><tr>" + "".join(f'<th scope="col">{of_markdown(cell)}</th>' for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{of_markdown(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return "\n".join([*lines, "</table>"])


def _picture(row: Row, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    says = html.escape(f"{path.stem.replace('_', ' ')}, beside: {row.says}")
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{says}">'


def _verdicts() -> str:
    """The rows by verdict, each a link to its section."""
    lines = ['<table><tr><th scope="col">verdict</th><th scope="col">of the paper</th></tr>']
    for verdict, rows in page.judged().items():
        links = "; ".join(f'<a href="#{RESULTS.index(row)}">{html.escape(row.short)}</a>' for row in rows)
        lines.append(f"<tr><td>{len(rows)} {verdict}</td><td>{links}</td></tr>")
    return "\n".join([*lines, "</table>"])


def _section(row: Row, numbers: Numbers, pictures: Path) -> str:
    facts = {"the paper": row.says, "msalab": page.ours(row, numbers), "verdict": f"**{row.verdict}**: {row.setting}",
             "command": f"{row.command} ({SECONDS[row.command]} of processor time)"}
    listed = "".join(f"<dt>{name}</dt><dd>{of_markdown(text)}</dd>" for name, text in facts.items())
    drawn = "\n".join(_picture(row, pictures / f"{name}.svg") for name in row.pictures.split())
    return f"<section id={RESULTS.index(row)}><h2>{html.escape(numbered(row.label))}</h2><dl>{listed}</dl>{drawn}</section>"


def _model_section(model: str, out: Path, names) -> str:
    drawn = []
    for name in names:
        data = base64.b64encode((out / f"pictures/{name}.svg").read_bytes()).decode()
        drawn.append(f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(name.replace("_", " "))}">')
    return (f"<section><h2>fig:vis-selection and fig:attention-sink, of {html.escape(model)}</h2><p>The closed form of an "
            f"Index Branch; the verdict is what msalab try printed.</p>{''.join(drawn)}</section>")


def write_html(numbers: Numbers, out: Path, measured=None, model=None) -> Path:
    """measured: a table of what was measured anew; model: another model, and the names of its pictures."""
    parts = [f"<!DOCTYPE html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
             f"<title>MiniMax Sparse Attention, figure by figure</title><style>{STYLE}</style></head><body>",
             "<h1>The paper, figure by figure</h1><p>What MiniMax Sparse Attention (arXiv:2606.13392) says, and what "
             "the records and the sample of msalab say. A verdict holds at the setting beside it.</p>",
             _table(page.headline(numbers)), _verdicts()]
    if measured:
        parts.append(f"<section><h2>On this machine's GPU</h2>{_table(measured)}</section>")
    if model:
        parts.append(_model_section(model[0], out, model[1]))
    parts += [_section(row, numbers, out / "pictures") for row in RESULTS]
    parts += [f"<section><h2>{numbered(title)}</h2>{_table(page.TABLES[name](numbers))}</section>"
              for name, title in TITLES.items()]
    parts.append(f"<section><h2>Equations and rules</h2>{_table(page.definitions(numbers))}</section></body></html>")
    path, part = out / "paper.html", out / "paper.html.partial"
    part.write_text("\n".join(parts) + "\n", encoding="utf-8")
    part.replace(path)
    return path
