# SPDX-License-Identifier: MIT
"""data/make_corpus.py on tiny packages, with stand-ins for apt-get and apt-cache."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "data" / "make_corpus.py"
pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb")

# $FAKE/debs has the packages; $FAKE/log what was downloaded; downloads wait while $FAKE/NAME.wait is
# there.
APT_CACHE = """#!/bin/bash
case $1 in
    pkgnames) ls "$FAKE/debs" | cut -d_ -f1; echo meta ;;
    depends) echo "meta"; echo "  Depends: code" ;;
esac
"""
APT_GET = """#!/bin/bash
if [[ $2 == --print-uris ]]; then
    for name in "${@:3}"; do
        for deb in "$FAKE/debs/${name}"_*.deb; do
            echo "'http://nowhere/$(basename "$deb")' $(basename "$deb") $(stat -c %s "$deb")" \\
                "SHA256:$(sha256sum "$deb" | cut -d' ' -f1)"
        done
    done
else
    name=${3%%=*}
    while [[ -e $FAKE/$name.wait ]]; do touch "$FAKE/$name.waits"; sleep 0.02; done
    echo "$name" >>"$FAKE/log"
    cp "$FAKE/debs/${name}"_*.deb .
fi
"""


def letters(number):
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def lines(word, count):
    return "".join(f"{word} {letters(i * 7919 % 10007)} of the line {letters(i)}\n"
                   for i in range(count))


class Archive:
    """Debian packages of given files, and the commands that give them."""

    def __init__(self, root):
        self.root = root
        (root / "debs").mkdir()
        (root / "bin").mkdir()
        for name, script in (("apt-cache", APT_CACHE), ("apt-get", APT_GET)):
            (root / "bin" / name).write_text(script)
            (root / "bin" / name).chmod(0o755)
        self.environment = os.environ | {"FAKE": str(root),
                                         "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}

    def add(self, name, files):
        tree = self.root / "trees" / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN" / "control").write_text(
            f"Package: {name}\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: nobody <n@n>\n"
            f"Description: none\n")
        for path, data in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data if isinstance(data, bytes) else data.encode())
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree,
                        self.root / "debs" / f"{name}_1%3a2.0-1_all.deb"],
                       check=True, capture_output=True)

    def recipe(self, packages, **changed):
        path = self.root / "recipe.json"
        path.write_text(json.dumps({"bytes": 100000, "least_bytes": 1000, "held_out": 0.3,
                                    "kinds": {"english": 0.8, "c": 0.2},
                                    "packages": packages} | changed))
        return path

    def command(self, out, recipe):
        return [sys.executable, SCRIPT, out, "--recipe", recipe]

    def make(self, out, recipe):
        return subprocess.run(self.command(out, recipe), env=self.environment, capture_output=True,
                              text=True, timeout=60)

    def downloads(self):
        return (self.root / "log").read_text().split()


NEAR = lines("near", 60)
CODE = lines("code", 60)
PAGE = lines("page", 60)
PACKAGES = [{"name": "other"}, {"name": "meta", "depends": True}, {"name": "docs"},
            {"name": "gone"}]


def tar_of(files):
    bytes_io = io.BytesIO()
    with tarfile.open(fileobj=bytes_io, mode="w:xz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data.encode()))
    return bytes_io.getvalue()


@pytest.fixture
def archive(tmp_path):
    root = tmp_path / "archive"
    root.mkdir()
    archive = Archive(root)
    archive.add("other", {"usr/a.txt": NEAR,
                          **{f"usr/{i}.txt": lines(f"word{letters(i)}", 60) for i in range(90)},
                          **{f"usr/{i}.h": lines(f"int{letters(i)}", 60) for i in range(60)}})
    archive.add("code", {
        "usr/src/tree.tar.xz": tar_of({"tree/code.c": CODE, "tree/again.c": CODE,
                                       "tree/near.c": NEAR + "one line more, and one\n"}),
        "usr/src/empty.tar": b"",
        "usr/src/cut.gz": gzip.compress(CODE.encode())[:-9]})
    archive.add("docs", {
        "usr/doc/page.html": "<html><head><title>no</title></head><body><script>no()</script><p>a "
                             "&lt;b&gt; <b>c</b></p><pre>" + PAGE + "</pre></body></html>",
        "usr/doc/man.1.gz": gzip.compress(lines("man", 60).encode()),
        "usr/doc/latin.txt": (lines("latin", 60) + "é").encode("latin-1"),
        "usr/doc/program": b"\x7fELF\0" + os.urandom(3000),
        "usr/doc/short.txt": "short\n",
        "usr/doc/table.txt": lines("table", 20000),
        "usr/doc/tables.js": lines("script", 60)})
    return archive


def documents(path):
    *texts, end = path.read_bytes().split(b"\0")
    assert end == b""
    return [text.decode() for text in texts]


def files_of(out):
    return {f"{side}/{kind}.txt": documents(out / side / f"{kind}.txt")
            for side in ("train", "held_out") for kind in ("english", "c")}


def test_takes_text_once_of_every_kind_on_both_sides(archive, tmp_path):
    out = tmp_path / "out"
    done = archive.make(out, archive.recipe(PACKAGES))
    assert done.returncode == 0, done.stderr
    assert "no package gone: left out" in done.stderr
    files = files_of(out)
    taken = [text for texts in files.values() for text in texts]
    assert len(set(taken)) == len(taken)
    manifest = json.loads((out / "manifest.json").read_text())
    other, code, docs = manifest["packages"]
    assert (code["package"], code["version"]) == ("code", "1:2.0-1")
    assert {name: code[name] for name in ("files", "length", "duplicates", "near_duplicates",
                                          "kept")} == {
        "files": 5, "length": 2, "duplicates": 1, "near_duplicates": 1, "kept": 1}
    assert {name: docs[name] for name in ("files", "no_text", "length", "kept")} == {
        "files": 7, "no_text": 3, "length": 2, "kept": 2}
    assert min(other["train"], other["held_out"]) > 5
    assert sum(one["train"] + one["held_out"] for one in (other, code, docs)) == len(taken)
    for name, share in {"english": 0.8, "c": 0.2}.items():  # to one document
        for side, part in {"train": 0.7, "held_out": 0.3}.items():
            size = sum(len(text) + 1 for text in files[f"{side}/{name}.txt"])
            assert 0 <= size - int(100000 * share * part) < 3000
    for name, file in manifest["files"].items():
        data = (out / name).read_bytes()
        assert file == {"documents": data.count(b"\0"), "bytes": len(data),
                        "sha256": hashlib.sha256(data).hexdigest()}
    deb = next((out / "packages").glob("code_*.deb")).read_bytes()
    assert code["sha256"] == hashlib.sha256(deb).hexdigest()
    assert not list(out.rglob("*.partial"))


def test_more_documents_move_none_to_the_other_side(archive, tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    archive.make(few, archive.recipe(PACKAGES[:1], bytes=50000))
    archive.make(many, archive.recipe(PACKAGES[:1]))
    for side, other in (("train", "held_out"), ("held_out", "train")):
        assert not set(files_of(few)[f"{side}/english.txt"]) & set(
            files_of(many)[f"{other}/english.txt"])
        assert set(files_of(few)[f"{side}/c.txt"]) < set(files_of(many)[f"{side}/c.txt"])


@pytest.mark.parametrize("name, text, kind", [
    ("tree/a.h", "int f(void);  /* the name of the function is in it */\n", "c"),
    ("tree/a.h", "#define A 0x00184 /* 0x3412 */ 17, 18, 19, 20\n", "tables"),
    ("tree/a.py", "def f(x):\n    return x\n", "code"),
    ("tree/run", "#!/bin/sh\necho\n", "code"),
    ("doc/a.txt", "It is the first of the lines that are read by most of us.\n", "english"),
    ("doc/a.txt", "Dies ist die erste der Zeilen, und das ist nicht die letzte.\n", "languages"),
    ("doc/a.txt", "Это первая строка текста на русском языке.\n", "languages"),
    ("doc/a.txt", "aback abaft abandon abase abash abate abbess abbey abbot\n", "tables"),
])
def test_kinds_follow_from_name_and_words(name, text, kind):
    spec = importlib.util.spec_from_file_location("make_corpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.kind_of(name, text * 20) == kind


def test_a_recipe_may_say_what_it_changes_of_another(archive, tmp_path):
    whole, short = tmp_path / "whole", archive.root / "more" / "short.json"
    archive.make(whole, archive.recipe(PACKAGES, held_out=0.5))
    archive.recipe(PACKAGES)
    short.parent.mkdir()
    short.write_text(json.dumps({"like": "../recipe.json", "held_out": 0.5}))
    done = archive.make(tmp_path / "out", short)
    assert done.returncode == 0 and files_of(tmp_path / "out") == files_of(whole)
    short.write_text(json.dumps({"like": "none.json"}))
    assert archive.make(tmp_path / "out", short).stderr.startswith(f"make_corpus: {short}: is no recipe: ")


def test_what_is_complete_is_left_alone_and_what_changed_is_made_again(archive, tmp_path):
    out, recipe = tmp_path / "out", archive.recipe(PACKAGES)
    archive.make(out, recipe)
    before = {path: path.read_bytes() for path in out.glob("*/*.txt")}
    assert archive.make(out, recipe).stdout == f"{out} is complete\n"
    (out / "train" / "c.txt").write_bytes(b"changed")
    deb = next((out / "packages").glob("docs_*.deb"))
    deb.write_bytes(deb.read_bytes()[:-1])
    assert archive.make(out, recipe).returncode == 0
    assert archive.downloads() == ["other", "code", "docs", "docs"]
    assert before == {path: path.read_bytes() for path in out.glob("*/*.txt")}


def test_goes_on_after_a_kill_to_the_same_files(archive, tmp_path):
    recipe = archive.recipe(PACKAGES)
    whole, out = tmp_path / "whole", tmp_path / "out"
    archive.make(whole, recipe)
    (archive.root / "log").unlink()
    (archive.root / "docs.wait").touch()
    process = subprocess.Popen(archive.command(out, recipe), env=archive.environment,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not (archive.root / "docs.waits").exists():
            assert process.poll() is None
            time.sleep(0.02)
        second = archive.make(out, recipe)
        assert (second.returncode, second.stderr) == (
            2, f"make_corpus: {out}: another process is writing there\n")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(out.glob("*/*.txt")) and not list(out.glob("*.json"))
    (archive.root / "docs.wait").unlink()
    assert archive.make(out, recipe).returncode == 0
    assert archive.downloads() == ["other", "code", "docs"]
    for name in ("train/c.txt", "held_out/english.txt", "manifest.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert not list(out.rglob("*.partial"))


def test_a_share_takes_files_by_their_bytes(archive, tmp_path):
    archive.add("many", {f"usr/{i}.txt": lines(f"term{letters(i)}", 40) for i in range(200)})
    kept = {}
    for share in (0.2, 0.5):
        packages = [PACKAGES[0], {"name": "many", "share": share}]
        out = tmp_path / str(share)
        archive.make(out, archive.recipe(packages))
        kept[share] = json.loads((out / "manifest.json").read_text())["packages"][1]["kept"]
        # Binomial: 5 standard deviations of 200 draws.
        assert abs(kept[share] - 200 * share) < 5 * (200 * share * (1 - share)) ** 0.5
    assert kept[0.2] < kept[0.5]


@pytest.mark.parametrize("packages, changed, message", [
    ([{"name": "gone"}, {"name": "gone2"}], {},
     "apt knows none of the packages; has apt-get update been run?"),
    (PACKAGES, {"bytes": 10**7}, "of the kind english the packages have "),
    (PACKAGES, {"kinds": {"tables": 1}}, "of the kind tables the packages have 0 bytes"),
    (PACKAGES, {"kinds": {"c": 0.5}}, "with shares whose sum is 1"),
    (PACKAGES, {"kinds": {"rhymes": 1}}, "kinds must be of c, code, english, languages, tables"),
    (PACKAGES, {"held_out": 0}, "held_out is 0, must be between 0 and 1"),
    ([{"name": "docs", "share": 0}], {}, "shares of packages must be above 0 and at most 1"),
    ([PACKAGES[0], {"share": 1}], {}, "recipe.json: is no recipe: KeyError('name')"),
])
def test_refusals_leave_no_text(archive, tmp_path, packages, changed, message):
    out = tmp_path / "out"
    done = archive.make(out, archive.recipe(packages, **changed))
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not list(out.glob("*/*.txt*")) and not list(out.glob("*.json*"))


def test_a_download_of_other_bytes_is_refused(archive, tmp_path):
    (archive.root / "bin" / "apt-get").write_text(
        APT_GET.replace('cp "$FAKE', "echo other >a.deb; : \"$FAKE"))
    done = archive.make(tmp_path / "out", archive.recipe(PACKAGES))
    assert done.returncode == 2
    assert "other 1:2.0-1: what was downloaded has not the SHA-256 " in done.stderr
    assert not list((tmp_path / "out" / "packages").iterdir())
