"""Real English prose for the benchmarks: the documentation in Debian packages, as JSON lines.

    python benchmarks/corpus/debian_text.py FOLDER

downloads the packages below with apt-get (a Debian machine with its package lists fetched), takes the text out
of their HTML and plain files, and writes FOLDER/debian.jsonl. Licences are those of the packages; the text is
not part of this repository.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.lang import detect_fast

HERE = Path(__file__).parent
PACKAGES = [
    "anarchism",
    "apache2-doc",
    "autoconf-doc",
    "bash-doc",
    "bible-kjv-text",
    "bind9-doc",
    "cmake-doc",
    "debian-handbook",
    "debian-policy",
    "debian-reference-en",
    "developers-reference",
    "dict-foldoc",
    "dict-gcide",
    "dict-jargon",
    "docutils-doc",
    "emacs-common",
    "erlang-doc",
    "fortunes",
    "gap-doc",
    "gcl-doc",
    "gimp-help-en",
    "git-doc",
    "gnu-standards",
    "gnumeric-doc",
    "harden-doc",
    "installation-guide-amd64",
    "kicad-doc-en",
    "libboost1.81-doc",
    "lilypond-doc-html",
    "linux-doc-6.1",
    "lyx-common",
    "manpages",
    "manpages-dev",
    "maxima-doc",
    "nodejs-doc",
    "octave-doc",
    "openjdk-17-doc",
    "perl-doc",
    "postgresql-doc-15",
    "python-django-doc",
    "python3.11-doc",
    "qtbase5-doc-html",
    "r-doc-html",
    "rust-doc",
    "scilab-doc",
    "slurm-wlm-doc",
    "vim-doc",
    "zsh-doc",
]
MIN_CHARS = 1000
MAX_CHARS = 200_000
MIN_PROSE_CHARS = 400
MARKUP = re.compile(r"[{}\\\\<>=|_#*@~^]")


def fetch(package: str, folder: Path) -> Path | None:
    """The package unpacked; None where this release has none of that name."""
    target = folder / "unpacked" / package
    if target.is_dir():
        return target
    found = list(folder.glob(f"{package}_*.deb"))
    if not found:
        got = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True)
        found = list(folder.glob(f"{package}_*.deb"))
        if got.returncode or not found:
            print(f"{package}: not in this release", file=sys.stderr)
            return None
    target.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-x", str(found[0]), str(target)], check=True)
    return target


def texts(path: Path) -> Iterator[str]:
    name = path.name.removesuffix(".gz").removesuffix(".dz")
    if (
        not name.endswith((".html", ".htm", ".txt", ".rst", ".pod", ".dict", ".1", ".2", ".3", ".5", ".7", ".8"))
        and "fortunes" not in path.parts
    ):
        return
    body = path.read_bytes()
    if body[:2] == b"\x1f\x8b":
        body = gzip.decompress(body)
    text = bytes_to_str(body, detect_encoding(body))
    if name.endswith((".html", ".htm")):
        text = extract_plain_text(text, main_content=True, links=False)
    if name.endswith(".dict"):  # a dictionary is one file: pages of it
        yield from (text[i : i + 8000] for i in range(0, len(text), 8000))
    else:
        yield text


def prose(text: str) -> str:
    """The paragraphs that are sentences, each once and on one line; code, tables, menus and lists of names are left out."""
    paragraphs: dict[str, None] = {}
    for block in re.split(r"\n\s*\n|\n(?=\S[^\n]{200,})", text):
        paragraph = " ".join(re.sub(r"[{}]", "", block).split())
        letters = sum(map(str.isalpha, paragraph))
        if (
            len(paragraph) >= 60
            and letters > 0.7 * len(paragraph)
            and paragraph.endswith((".", "!", "?", '"', ")"))
            and len(MARKUP.findall(paragraph)) <= 2
        ):
            paragraphs[paragraph] = None
    return "\n\n".join(paragraphs)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    count = size = 0
    with (folder / "debian.jsonl").open("w") as out:
        for package in PACKAGES:
            root = fetch(package, folder)
            before = size
            for path in sorted(root.rglob("*")) if root else []:
                if not path.is_file() or path.is_symlink():
                    continue
                for i, text in enumerate(texts(path)):
                    if not (MIN_CHARS <= len(text) <= MAX_CHARS and detect_fast(text[:2000])[0] == "en"):
                        continue
                    text = prose(text)
                    if len(text) >= MIN_PROSE_CHARS:
                        out.write(json.dumps({"id": f"{package}/{path.relative_to(root)}#{i}", "text": text}) + "\n")
                        count, size = count + 1, size + len(text.encode())
            print(f"{package}: {(size - before) / 1e6:.1f} MB")
    print(f"{count} documents, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"))
