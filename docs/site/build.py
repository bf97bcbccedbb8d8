# SPDX-License-Identifier: MIT
"""python docs/site/build.py OUT: the pages, the notebooks and the Python package's reference as a site in OUT, beside
the reference of the headers, which Doxygen has made in build/docs/html. The pages stay where they are in the tree: they
are gathered beside what they link to, and every one has a place in mkdocs.yml."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent
STAGED = ROOT / "build/docs/pages"
MODULES = ("msalab.operations", "msalab.selections", "msalab.analysis", "msalab.torch", "msalab.nn", "msalab.transformers",
           "msalab.selectors", "msalab.indexer", "msalab.evaluation", "msalab.conform", "msalab.capture", "msalab.results",
           "msalab.plots")
LEFT_OUT = {"docs/api.md", "docs/joss/paper.md"}  # the main page of the headers' reference; a paper of its own
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def pages() -> list[str]:
    """Every Markdown page and notebook of the tree, as a path from its root."""
    listed = subprocess.run(["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split() if name not in LEFT_OUT and not name.startswith(".")]


def gathered(page: str, text: str, known: set[str]) -> tuple[str, set[str]]:
    """The text of a page as the site has it, and the other files of the tree that it links to: a link to a folder goes
    to its page, or is left out."""
    needed: set[str] = set()

    def place(link):
        before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
        if re.match(r"\w+:", target):
            return link[0]
        path = (ROOT / page).parent.joinpath(target).resolve()
        name = str(path.relative_to(ROOT))
        if path.is_dir():
            inner = f"{name}/README.md"
            return f"{before}{target.rstrip('/')}/README.md{anchor}{after}" if inner in known else before[1:-2]
        if name in LEFT_OUT or name.startswith("."):
            return before[1:-2]
        if name not in known:
            needed.add(name)
        return link[0]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(place, part) for part in parts), needed


def stage() -> None:
    shutil.rmtree(STAGED, ignore_errors=True)
    known, needed = set(pages()), set()
    for page in sorted(known):
        to = STAGED / page
        to.parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".ipynb"):
            shutil.copy(ROOT / page, to)
            continue
        text, more = gathered(page, (ROOT / page).read_text(encoding="utf-8"), known)
        to.write_text(text, encoding="utf-8")
        needed |= more
    for name in needed | {"LICENSE"}:
        (STAGED / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, STAGED / name)
    shutil.copytree(ROOT / "build/docs/html", STAGED / "headers")
    for module in MODULES:
        page = STAGED / "api" / f"{module}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {module}\n\n::: {module}\n", encoding="utf-8")
    (STAGED / "api/README.md").write_text("# The Python package\n\n::: msalab\n    options:\n      members: false\n"
                                          "      show_root_toc_entry: false\n\n" +
                                          "".join(f"- [{module}]({module}.md)\n" for module in MODULES), encoding="utf-8")


def main(out: str) -> int:
    stage()
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
                           str(SITE / "mkdocs.yml"), "--site-dir", str(Path(out).resolve())],
                          cwd=ROOT / "build/docs").returncode  # where its cache goes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
