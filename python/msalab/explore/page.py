# SPDX-License-Identifier: MIT
"""The microscope as elements of a page, and as a page of its own."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
from markupsafe import Markup

from .data import Microscope

_HERE = Path(__file__).parent
_SCRIPTS = ("data", "frame", "maps", "panels", "page")  # in one scope, in this order


def title(about: dict) -> str:
    """"Blocks of SmolLM2: 1792 tokens, blocks of 32, k = 8"; where the model is not known, without it."""
    of = f" of {about['model']}" if about["model"] else ""
    return f"Block microscope{of}: {about['tokens']} tokens, blocks of {about['blockSize']}, " \
           f"k\u00a0=\u00a0{about['topK']}"


def _program() -> str:
    parts = [(_HERE / "script" / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    return "\n".join(['<script>\n(() => {\n"use strict";', *parts, "})();\n</script>"])


def _script(identity: str, kind: str, content: str) -> str:
    """Data that no browser runs; `content` must hold no "<"."""
    return f'<script type="{kind}" id="{identity}">{content}</script>'


def as_elements(microscope: Microscope) -> Markup:
    """All that the microscope needs, once in a page that has the colours --ink, --soft, --line, --card, --page."""
    about = json.dumps(microscope.about, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup("\n".join([
        f"<style>\n{(_HERE / 'microscope.css').read_text(encoding='utf-8')}</style>",
        '<div id="microscope" class="microscope"><p>This section needs a browser with JavaScript, of 2023 or later.</p>'
        "</div>",
        _script("microscope-data", "application/json", about),
        *(_script(f"microscope-layer-{layer}", "application/octet-stream", piece)
          for layer, piece in microscope.pieces.items()),
        _program()]))


def write_page(microscope: Microscope, path) -> Path:
    """One HTML file."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    page = environment.get_template("explore.html.jinja").render(title=title(microscope.about),
                                                                 elements=as_elements(microscope))
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
