#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds text for pretraining from Debian packages, which are downloaded and not installed.

usage: make_corpus.py OUT [--recipe FILE]

The recipe (data/corpus.json beside this script) lists packages, the kinds of text and the share of
each, and the share that is held out. OUT gets
  packages/           the packages, NAME_VERSION.deb; what is there already is not downloaded again
  train/KIND.txt      documents with a byte 0 behind each, as msa-pretrain reads them
  held_out/KIND.txt
  manifest.json       packages, versions, what was taken and what was left out, sums; written last
  lock                held while a run writes there
A run that was killed is repeated: files are named *.partial until they are complete.

A document is one file of a package: UTF-8 without control characters, of kBytes, HTML without its
marks. A document that was there before is left out: the same bytes, or most of its shingles (runs
of three lines) seen in documents kept before.

Its kind follows from its name and its words (kind_of): c (C and C++), code (other languages of
programs), english and languages (text for people), tables (rows of numbers or of names). Which
documents of a kind are taken, and which of them are held out, follows from their bytes alone, so
that every package is on both sides, as far as it has documents enough. Bytes of kinds are in the
recipe's shares, on both sides.
"""

import argparse
import bz2
import fcntl
import gzip
import hashlib
import html.parser
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

VERSION = 2  # of the rules below
MAX_BYTES = 1 << 18  # longer files are indices, firmware and generated tables
SIDES = ("train", "held_out")
NO_TEXT = (".css", ".ihex", ".js", ".json", ".map", ".svg", ".uu", ".xpm", ".po", ".pot")
C = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".ipp", ".inl", ".def")
CODE = (".py", ".pl", ".pm", ".rb", ".go", ".rs", ".erl", ".hrl", ".el", ".sh", ".S", ".s", ".t",
        ".java", ".lua", ".tcl", ".lisp", ".scm", ".awk", ".m4", ".ml", ".hs", ".vim", ".sql", ".y",
        ".l", ".exp", ".dts", ".dtsi", ".mk", ".cmake", ".in", ".ac", ".am")
KINDS = ("c", "code", "english", "languages", "tables")
ENGLISH = set("the of and to in is for that be or with this are as by not it an on from if".split())
OTHERS = set("de la el los que les des et le un une der die das und ist den di il che per non del "
             "w na nie jest se ve bir bu o os para em do da het van een och att det som".split())
WORDS_READ = 20000  # characters of a document whose words are counted
DIGITS, LANGUAGE = 0.15, 0.08  # least shares: of a table's marks, of a language's words
SHINGLE_LINES = 3
SHINGLES_KEPT = 8  # one of as many is remembered
NEAR_SHARE, NEAR_SHINGLES = 0.8, 4  # a near-duplicate: this share was seen, of at least so many
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


class Failure(Exception):
    """What the user can mend; the text is the message."""


def run(command, **options):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except FileNotFoundError:
        raise Failure(f"{command[0]} is not there; this needs Debian's tools") from None
    except subprocess.CalledProcessError as error:
        raise Failure(f"{' '.join(command)}: {error.stderr.strip()}") from None


# ---- packages

def read_recipe(path):
    try:
        recipe = json.loads(path.read_text())
        if "like" in recipe:  # another one beside it, of which it says the rest
            recipe = json.loads((path.parent / recipe.pop("like")).read_text()) | recipe
        shares = [package.get("share", 1) for package in recipe["packages"]]
        kinds = dict(recipe["kinds"])
        recipe["bytes"] + 0, recipe["least_bytes"] + 0, recipe["held_out"] + 0
        [package["name"] + "" for package in recipe["packages"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: is no recipe: {error!r}") from None
    if not all(0 < share <= 1 for share in shares):
        raise Failure(f"{path}: shares of packages must be above 0 and at most 1")
    if not 0 < recipe["held_out"] < 1:
        raise Failure(f"{path}: held_out is {recipe['held_out']}, must be between 0 and 1")
    if not set(kinds) <= set(KINDS) or abs(sum(kinds.values()) - 1) > 1e-9:
        raise Failure(f"{path}: kinds must be of {', '.join(KINDS)}, with shares whose sum is 1")
    return recipe


def resolve(packages):
    """{name in the recipe: (package, version, sha256)} of those that apt knows."""
    known = set(run(["apt-cache", "pkgnames"]).split())
    names = {}
    for package in packages:
        name = package["name"]
        if name in known and package.get("depends"):
            name = re.search(r"Depends: (\S+)", run(["apt-cache", "depends", name])).group(1)
        if name in known:
            names[package["name"]] = name
        else:
            print(f"no package {name}: left out", file=sys.stderr)
    if not names:
        raise Failure("apt knows none of the packages; has apt-get update been run?")
    uris = run(["apt-get", "download", "--print-uris", *dict.fromkeys(names.values())])
    files = re.findall(r"^'[^']*' ([^_\s]+)_([^_\s]+)_\S+ \d+ SHA256:(\w+)$", uris, re.M)
    found = {name: (name, version.replace("%3a", ":"), sha256) for name, version, sha256 in files}
    lost = [name for name in names.values() if name not in found]
    if lost:
        raise Failure(f"apt-get says no place and SHA-256 of {', '.join(lost)}")
    return {name: found[real] for name, real in names.items()}


def sha256_of(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def download(folder, name, version, sha256):
    """The package's file, downloaded unless it is there."""
    path = folder / f"{name}_{version.replace(':', '%3a')}.deb"
    if path.exists() and sha256_of(path) == sha256:
        return path
    partial = folder / "under-way.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"downloading {name} {version}", file=sys.stderr)
    try:
        run(["apt-get", "-q", "download", f"{name}={version}"], cwd=partial)
        files = list(partial.glob("*.deb"))
        if len(files) != 1 or sha256_of(files[0]) != sha256:
            raise Failure(f"{name} {version}: what was downloaded has not the SHA-256 {sha256}")
        files[0].replace(path)
    finally:
        shutil.rmtree(partial)
    return path


# ---- documents

class HtmlText(html.parser.HTMLParser):
    """Collects what a reader sees."""

    HIDDEN = {"head", "script", "style", "nav"}
    LINES = {"br", "dd", "div", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "p", "pre",
             "table", "tr", "ul", "ol", "dl", "section", "article", "blockquote"}

    def __init__(self):
        super().__init__()
        self.parts, self.hidden = [], []

    def handle_starttag(self, tag, attrs):
        if tag in self.HIDDEN:
            self.hidden.append(tag)
        elif tag in self.LINES:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if tag in self.hidden:
            del self.hidden[self.hidden.index(tag):]
        elif tag in self.LINES:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)


def text_of_html(text):
    parser = HtmlText()
    parser.feed(text)
    parser.close()
    lines = (line.strip() if not line.startswith("  ") else line.rstrip()
             for line in "".join(parser.parts).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def text_of(name, data):
    """The document's bytes, or None."""
    if name.endswith(NO_TEXT) or CONTROL.search(data):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if name.endswith((".html", ".htm", ".xhtml")):
        return text_of_html(text).encode("utf-8")
    return data


def kind_of(name, text):
    """What a document is, by the end of its name and its words."""
    marks = re.sub(r"\s", "", text[:WORDS_READ])
    if sum(mark.isdigit() for mark in marks) >= DIGITS * len(marks):
        return "tables"
    if name.endswith(C):
        return "c"
    if name.endswith(CODE) or text.startswith("#!"):
        return "code"
    letters = [mark for mark in marks if mark.isalpha()]
    if sum(not mark.isascii() for mark in letters) > 0.2 * len(letters):  # another script
        return "languages"
    words = re.findall(r"[^\W\d_]+", text[:WORDS_READ].lower())
    english, others = (sum(word in known for word in words) for known in (ENGLISH, OTHERS))
    if max(english, others) < LANGUAGE * len(words):
        return "tables"
    return "english" if english >= others else "languages"


def members(archive):
    """(name, bytes) of the files of an open tar archive and of archives in it."""
    for member in archive:
        if not member.isfile():
            continue
        name, file = member.name, archive.extractfile(member)
        if re.search(r"\.(tar(\.(gz|xz|bz2))?|tgz)$", name):
            try:
                with tarfile.open(fileobj=file, mode="r|*") as inner:
                    yield from members(inner)
            except tarfile.TarError:  # an empty one, for a program's own tests
                yield name, b""
            continue
        data = file.read() if member.size <= MAX_BYTES else b""
        for suffix, open_it in ((".gz", gzip), (".xz", lzma), (".bz2", bz2)):
            if name.endswith(suffix):
                try:
                    name, data = name.removesuffix(suffix), open_it.decompress(data)
                except (OSError, EOFError, lzma.LZMAError, zlib.error):
                    data = b""
        yield name, data


def files_of(package):
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
        with tarfile.open(fileobj=tar.stdout, mode="r|") as archive:
            yield from members(archive)
        tar.stdout.read()
    if tar.returncode != 0:
        raise Failure(f"{package}: dpkg-deb cannot read it")


class Seen:
    """What was kept so far."""

    def __init__(self):
        self.documents, self.shingles = set(), set()

    def verdict(self, document, digest):
        """'kept', 'duplicates' or 'near_duplicates'; remembers what is kept."""
        if digest in self.documents:
            return "duplicates"
        lines = [line for line in map(bytes.strip, document.splitlines()) if line]
        crcs = (zlib.crc32(b"\n".join(lines[at:at + SHINGLE_LINES]))
                for at in range(len(lines) - SHINGLE_LINES + 1))
        shingles = {crc for crc in crcs if crc % SHINGLES_KEPT == 0}
        if len(shingles) >= NEAR_SHINGLES:
            if len(shingles & self.shingles) >= NEAR_SHARE * len(shingles):
                return "near_duplicates"
        self.documents.add(digest)
        self.shingles |= shingles
        return "kept"


# ---- the corpus

def number(digest, part):
    """One of four numbers from 0 to 1 that a document's digest holds."""
    return int.from_bytes(digest[8 * part:8 * part + 8], "big") / 2**64


class Pool:
    """All documents that may be taken, in a file of their own, by kind."""

    def __init__(self, path):
        self.file = open(path, "w+b")
        self.kinds = {kind: [] for kind in KINDS}  # (order, held-out number, package, begin, size)
        self.size = 0

    def add(self, kind, digest, package, document):
        self.kinds[kind].append((number(digest, 1), number(digest, 2), package, self.size,
                                 len(document)))
        self.file.write(document)
        self.size += len(document)

    def read(self, begin, size):
        self.file.seek(begin)
        return self.file.read(size)


class Output:
    """One file of documents, under another name until it is complete."""

    def __init__(self, path):
        path.parent.mkdir(exist_ok=True)
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self.file, self.sum = open(self.partial, "wb"), hashlib.sha256()
        self.documents = self.bytes = 0

    def add(self, document):
        for part in (document, b"\0"):
            self.file.write(part)
            self.sum.update(part)
            self.bytes += len(part)
        self.documents += 1

    def finish(self):
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.partial.replace(self.path)
        return {"documents": self.documents, "bytes": self.bytes, "sha256": self.sum.hexdigest()}


def collect(index, package, share, least, pool, seen):
    """Adds a package's documents to the pool; returns what became of its files."""
    counts = dict.fromkeys(("files", "beyond_share", "no_text", "length", "duplicates",
                            "near_duplicates", "kept"), 0)
    for name, data in files_of(package):
        counts["files"] += 1
        if number(hashlib.sha256(data).digest(), 0) >= share:
            counts["beyond_share"] += 1
            continue
        document = text_of(name, data) if len(data) <= 2 * MAX_BYTES else b""
        if document is None:
            counts["no_text"] += 1
            continue
        if not least <= len(document) <= MAX_BYTES:
            counts["length"] += 1
            continue
        digest = hashlib.sha256(document).digest()
        verdict = seen.verdict(document, digest)
        counts[verdict] += 1
        if verdict == "kept":
            pool.add(kind_of(name, document.decode("utf-8")), digest, index, document)
    return counts


def choose(kind, pool, wanted):
    """{side: documents of the kind}, each until its side has the wanted bytes."""
    chosen = {side: [] for side in SIDES}
    left = dict(wanted)
    held_out = wanted["held_out"] / sum(wanted.values())
    for document in sorted(pool.kinds[kind]):
        side = "held_out" if document[1] < held_out else "train"
        if left[side] > 0:
            chosen[side].append(document)
            left[side] -= document[-1] + 1
    for side, missing in left.items():
        if missing > 0:
            raise Failure(f"of the kind {kind} the packages have {wanted[side] - missing} bytes "
                          f"for the side {side}, the recipe wants {wanted[side]}")
    return chosen


def write_manifest(path, manifest):
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(manifest, indent=1) + "\n")
    partial.replace(path)


def is_complete(out, recipe):
    """Is there what this recipe and these rules make?"""
    try:
        manifest = json.loads((out / "manifest.json").read_text())
        return (manifest["version"] == VERSION and manifest["recipe"] == recipe and
                all(sha256_of(out / name) == file["sha256"]
                    for name, file in manifest["files"].items()))
    except (OSError, ValueError, KeyError):
        return False


def read_packages(recipe, found, files, pool):
    """Fills the pool; returns what was taken of each package."""
    seen, taken = Seen(), []
    for package in recipe["packages"]:
        name, share = package["name"], package.get("share", 1)
        if name not in found:
            continue
        counts = collect(len(taken), files[name], share, recipe["least_bytes"], pool, seen)
        real, version, sha256 = found[name]
        print(f"{real} {version}: {counts['kept']} documents", file=sys.stderr)
        taken.append({"package": real, "version": version, "sha256": sha256, "share": share,
                      **counts, **{side: 0 for side in SIDES}})
    return taken


def write_text(out, recipe, pool, taken, outputs):
    """Writes the chosen documents of every kind, and counts them in `taken` by side."""
    for kind, share in recipe["kinds"].items():
        of_kind = recipe["bytes"] * share
        wanted = {"train": int(of_kind * (1 - recipe["held_out"])),
                  "held_out": int(of_kind * recipe["held_out"])}
        for side, documents in choose(kind, pool, wanted).items():
            outputs.append(Output(out / side / f"{kind}.txt"))
            for _, _, package, begin, size in documents:
                outputs[-1].add(pool.read(begin, size))
                taken[package][side] += 1


def make(out, recipe):
    found = resolve(recipe["packages"])
    files = {name: download(out / "packages", *found[name]) for name in found}
    pool, outputs = Pool(out / "pool.partial"), []
    try:
        taken = read_packages(recipe, found, files, pool)
        write_text(out, recipe, pool, taken, outputs)
        (out / "manifest.json").unlink(missing_ok=True)  # of the texts that are replaced now
        manifest = {"format": "msalab-corpus", "version": VERSION, "recipe": recipe,
                    "pool_bytes": {kind: sum(document[-1] for document in documents)
                                   for kind, documents in pool.kinds.items()},
                    "packages": taken,
                    "files": {str(output.path.relative_to(out)): output.finish()
                              for output in outputs}}
        write_manifest(out / "manifest.json", manifest)
    finally:
        pool.file.close()
        for path in (out / "pool.partial", *(output.partial for output in outputs)):
            path.unlink(missing_ok=True)
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", type=Path,
                        default=Path(__file__).resolve().with_name("corpus.json"))
    options = parser.parse_args()
    out = options.out
    try:
        recipe = read_recipe(options.recipe)
        out.mkdir(parents=True, exist_ok=True)
        with open(out / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"{out}: another process is writing there") from None
            if is_complete(out, recipe):
                print(f"{out} is complete")
            else:
                for name, file in make(out, recipe)["files"].items():
                    print(f"{out / name}: {file['documents']} documents, {file['bytes']} bytes, "
                          f"sha256 {file['sha256']}")
    except (Failure, OSError) as error:
        print(f"make_corpus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("make_corpus: interrupted; the packages that are there stay", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
