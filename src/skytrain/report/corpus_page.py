"""A corpus as one self-contained HTML page: what each stage and rule removed, with examples, and near-duplicates side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Any

from ..config import format_bytes, format_count, plural
from ..corpus import CorpusManifest
from .page import html_page, html_section, html_table

STYLE = """
.stage-bar { display: grid; grid-template-columns: 11rem 1fr 14rem; gap: .3rem .8rem; align-items: center; margin: .2rem 0; }
.stage-bar i { display: block; height: 14px; border-radius: 2px; background: #3a9bdc; min-width: 1px; }
.stage-bar span:last-child { color: var(--faint); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: .8rem; margin-bottom: 1.4rem; }
.pair div { min-width: 0; } .pair pre { margin: .3rem 0 0; } .pair p, .example p { margin: .6rem 0 0; overflow-wrap: anywhere; } .example pre { margin: .3rem 0 0; }
mark { background: #fbbf2466; color: inherit; border-radius: 2px; }
@media (max-width: 640px) { .stage-bar { grid-template-columns: 1fr; } }
"""
WORD = re.compile(r"\s+|\S+")


def corpus_html(corpus: CorpusManifest, examples: Mapping[str, Any], url: str) -> str:
    """Return the page of a corpus; `examples` is its report.json."""
    return html_page(
        f"{corpus.dataset}@{corpus.version}",
        [
            f'<p class="note" style="overflow-wrap: anywhere">{escape(url)}</p>',
            _tiles(corpus, examples),
            html_section("Stages", _stages(corpus)),
            html_section("Rules", _rules(corpus, examples.get("examples", {}))),
            html_section("Near-duplicates", _near(examples.get("near_duplicates") or {})),
        ],
        style=STYLE,
    )


def _tiles(corpus: CorpusManifest, examples: Mapping[str, Any]) -> str:
    near = (examples.get("near_duplicates") or {}).get("removed")
    tiles = [
        ("documents read", format_count(corpus.documents_read)),
        ("documents kept", format_count(corpus.documents)),
        ("text read", format_bytes(corpus.text_bytes_read)),
        ("text kept", format_bytes(corpus.text_bytes)),
        ("share of text kept", f"{corpus.text_bytes / corpus.text_bytes_read:.1%}" if corpus.text_bytes_read else None),
        ("near-duplicates removed", format_count(near) if near is not None else None),
    ]
    shown = "\n".join(f"<div><span>{name}</span><b>{text}</b></div>" for name, text in tiles if text)
    return f'<div class="tiles">\n{shown}\n</div>'


def _stages(corpus: CorpusManifest) -> str:
    """Return a bar for what is left after each stage, in documents."""
    most = max((stage.documents_in for stage in corpus.stages), default=0)
    rows = [("read", corpus.documents_read, corpus.text_bytes_read)]
    rows += [(stage.name, stage.documents_out, stage.bytes_out) for stage in corpus.stages]
    return "\n".join(
        f'<div class="stage-bar"><span>{escape(name)}</span>'
        f'<span><i style="width:{100 * count / max(1, most, corpus.documents_read):.2f}%"></i></span>'
        f"<span>{count:,} documents, {format_bytes(size)}</span></div>"
        for name, count, size in rows
    )


def _rules(corpus: CorpusManifest, examples: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    read = max(1, corpus.documents_read)
    rows = [(rule, f"{count:,}", f"{count / read:.2%}") for rule, count in corpus.removed.items()]
    table = html_table([("rule", "documents removed", "of those read"), *rows])
    shown = [
        f"<details><summary>{escape(rule)}: {plural(len(examples[rule]), 'example')}</summary>"
        + "".join(
            f'<div class="example"><p class="note">{escape(each["id"])}</p>{_text(each)}</div>'
            for each in examples[rule]
        )
        + "</details>"
        for rule in corpus.removed
        if examples.get(rule)
    ]
    return "\n".join([table, *shown]) if rows else ""


def _text(example: Mapping[str, str]) -> str:
    return f"<pre>{escape(example['text'])}</pre>"


def _near(near: Mapping[str, Any]) -> str:
    """Return the clusters by size, and the stored pairs with the words that only one side has marked."""
    if not near:
        return ""
    sizes = html_table(
        [("documents in a cluster", "clusters"), *((size, f"{n:,}") for size, n in near["cluster_sizes"].items())]
    )
    notes = [f"{plural(near['removed'], 'document')} removed, {plural(near['clusters'], 'cluster')}."]
    if below := near.get("below_min_similarity"):
        notes.append(f"{below:,} of the removed are similar to the kept document only through other removed ones.")
    pairs = "\n".join(_pair(pair) for pair in near["examples"])
    return f'<p class="note">{" ".join(notes)}</p>{sizes}\n{pairs}'


def _pair(pair: Mapping[str, Any]) -> str:
    kept = pair.get("kept") or pair["kept_or_joined"]  # the name in older reports
    sides = zip(
        ("kept", "removed"),
        (kept, pair["removed"]),
        marked_difference(kept["text"], pair["removed"]["text"]),
        strict=True,
    )
    columns = "".join(
        f'<div><p class="note">{what}: {escape(document["id"])}</p><pre>{text}</pre></div>'
        for what, document, text in sides
    )
    alike = ", the beginnings below are equal" if kept["text"] == pair["removed"]["text"] else ""
    return f'<p>Jaccard similarity {pair["jaccard"]:.3g}{alike}</p>\n<div class="pair">{columns}</div>'


def marked_difference(left: str, right: str) -> tuple[str, str]:
    """Return both texts as HTML, with the words that the other one lacks marked."""
    words = [WORD.findall(text) for text in (left, right)]
    html: tuple[list[str], list[str]] = ([], [])
    for kind, a, b, c, d in SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, part in zip(html, (words[0][a:b], words[1][c:d]), strict=True):
            text = escape("".join(part))
            side.append(text if kind == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(html[0]), "".join(html[1])
