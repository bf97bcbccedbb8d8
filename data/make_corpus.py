#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds text for pretraining from Debian packages, which are downloaded and not installed.

usage: make_corpus.py OUT [--recipe FILE]

The recipe (data/corpus.json beside this script) lists packages, each on one side: train or held
out. OUT gets
  packages/       the packages, NAME_VERSION.deb; what is there already is not downloaded again
  train.txt       documents with a byte 0 behind each, as msa-pretrain reads them
  held_out.txt
  manifest.json   packages, versions, what was taken and what was left out, sums; written last
  lock            held while a run writes there
A run that was killed is repeated: files are named *.partial until they are complete.

A document is one file of a package: UTF-8 without control characters, of kBytes, HTML without its
marks. A document that was there before is left out: the same bytes, or most of its shingles (runs
of three lines) seen in documents kept before. Held-out packages come first in the recipe, so that
nothing of theirs is trained on.
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

VERSION = 1  # of the rules below
MIN_BYTES, MAX_BYTES = 1 << 10, 1 << 18  # longer files are tables: registers, firmware, indices
SIDES = ("train", "held_out")
NO_TEXT = (".css", ".ihex", ".js", ".json", ".map", ".svg", ".uu", ".xpm")
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
        packages = recipe["packages"]
        sides = [package["side"] for package in packages]
        shares = [package.get("share", 1) for package in packages]
        recipe["minimum_bytes"] + 0, [package["name"] + "" for package in packages]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: is no recipe: {error!r}") from None
    if set(sides) != set(SIDES) or sides != sorted(sides):
        raise Failure(f"{path}: packages must be held_out or train, both, and held_out first")
    if not all(0 < share <= 1 for share in shares):
        raise Failure(f"{path}: shares must be above 0 and at most 1")
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

class Side:
    """One file of documents, under another name until it is complete."""

    def __init__(self, path):
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


def take(package, share, side, seen):
    """Adds a package's documents to its side; returns what became of them, with raw bytes."""
    counts = dict.fromkeys(("files", "no_text", "length", "beyond_share", "duplicates",
                            "near_duplicates", "kept", "raw_bytes", "kept_bytes"), 0)
    for name, data in files_of(package):
        counts["files"] += 1
        document = text_of(name, data)
        if document is None:
            counts["no_text"] += 1
            continue
        if not MIN_BYTES <= len(document) <= MAX_BYTES:
            counts["length"] += 1
            continue
        digest = hashlib.sha256(document).digest()
        if int.from_bytes(digest[:8], "big") >= share * 2**64:
            counts["beyond_share"] += 1
            continue
        counts["raw_bytes"] += len(document)
        verdict = seen.verdict(document, digest)
        counts[verdict] += 1
        if verdict == "kept":
            counts["kept_bytes"] += len(document)
            side.add(document)
    return counts


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


def fill(sides, recipe, found, files):
    """Adds the documents of all packages to their sides; returns what was taken of each."""
    seen, taken = Seen(), []
    for package in recipe["packages"]:
        name, side, share = package["name"], package["side"], package.get("share", 1)
        if name not in found:
            continue
        counts = take(files[name], share, sides[side], seen)
        real, version, sha256 = found[name]
        print(f"{side:8s} {real} {version}: {counts['kept']} documents, "
              f"{counts['kept_bytes'] / 1e6:.1f} MB of {counts['raw_bytes'] / 1e6:.1f} MB",
              file=sys.stderr)
        taken.append({"package": real, "version": version, "sha256": sha256, "side": side,
                      "share": share, **counts})
    for name, side in sides.items():
        if side.documents == 0:
            raise Failure(f"no document is on the side {name}")
    return taken


def make(out, recipe):
    found = resolve(recipe["packages"])
    files = {name: download(out / "packages", *found[name]) for name in found}
    sides = {side: Side(out / f"{side}.txt") for side in SIDES}
    try:
        taken = fill(sides, recipe, found, files)
        raw = sum(package["raw_bytes"] for package in taken)
        if raw < recipe["minimum_bytes"]:
            raise Failure(f"the packages hold {raw} bytes of text, "
                          f"fewer than minimum_bytes = {recipe['minimum_bytes']}")
        (out / "manifest.json").unlink(missing_ok=True)  # of the texts that are replaced now
        manifest = {"format": "msalab-corpus", "version": VERSION, "recipe": recipe,
                    "raw_bytes": raw, "packages": taken,
                    "files": {side.path.name: side.finish() for side in sides.values()}}
        write_manifest(out / "manifest.json", manifest)
    finally:
        for side in sides.values():
            side.partial.unlink(missing_ok=True)
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
