"""A one-page report, rendered as terminal text, as Markdown and as one HTML file with embedded plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd}"
    "td:not(:first-child),th:not(:first-child){text-align:right}img{max-width:100%}"
    ".prose td{text-align:left!important;vertical-align:top}code{background:#f3f3f3;padding:0 .2rem}"
)


@dataclass(frozen=True)
class Heading:
    """A section heading."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of short values.

    With ``prose``, cells hold sentences, and a terminal shows the rows as a list.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: bool = False


@dataclass(frozen=True)
class Image:
    """An image file next to the report."""

    name: str
    alt: str


Block = Heading | Text | Table | Image


@dataclass(frozen=True)
class Page:
    """A title and its blocks."""

    title: str
    blocks: tuple[Block, ...]


def to_text(page: Page) -> str:
    """Render for a terminal, with file names in place of plots."""
    lines = [page.title, "=" * len(page.title), ""]
    for block in page.blocks:
        match block:
            case Heading(text):
                lines += [text, "-" * len(text)]
            case Text(text):
                lines += [text, ""]
            case Table(headers, rows, True):
                for row in rows:
                    lines += [
                        f"* {row[0]}",
                        *(f"    {name}: {value}" for name, value in zip(headers[1:], row[1:], strict=True)),
                    ]
                lines.append("")
            case Table(headers, rows, _):
                lines += [*_aligned([headers, *rows]), ""]
            case Image(name, alt):
                lines += [f"({name}: {alt})", ""]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join([row[0].ljust(widths[0]), *cells])

    return [line(row).rstrip() for row in rows]


def to_markdown(page: Page) -> str:
    """Render as Markdown with linked plots."""
    lines = [f"# {page.title}", ""]
    for block in page.blocks:
        match block:
            case Heading(text):
                lines += [f"## {text}", ""]
            case Text(text):
                lines += [text, ""]
            case Table(headers, rows, prose):
                rule = ["---"] + ["---" if prose else "--:"] * (len(headers) - 1)
                escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
                lines += ["| " + " | ".join(row) + " |" for row in [headers, rule, *escaped]] + [""]
            case Image(name, alt):
                lines += [f"![{alt}]({name})", ""]
    return "\n".join(lines)


def to_html(page: Page, folder: Path) -> str:
    """Render as one self-contained HTML file with the plots, read from ``folder``, embedded."""
    e = html.escape
    lines = [
        "<!doctype html><meta "
        f"charset=utf-8><title>{e(page.title)}</title><style>{_STYLE}</style><h1>{e(page.title)}</h1>"
    ]
    for block in page.blocks:
        match block:
            case Heading(text):
                lines.append(f"<h2>{e(text)}</h2>")
            case Text(text):
                lines.append(f"<p>{e(text)}</p>")
            case Table(headers, rows, prose):
                cells = lambda row, tag: "".join(f"<{tag}>{e(cell)}</{tag}>" for cell in row)  # noqa: E731
                body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
                lines.append(
                    f"<table{' class=prose' if prose else ''}><tr>{cells(headers, 'th')}</tr>{body}</table>"
                )
            case Image(name, alt):
                data = base64.b64encode((folder / name).read_bytes()).decode()
                lines.append(f'<p><img alt="{e(alt)}" src="data:image/png;base64,{data}"></p>')
    return "\n".join(lines) + "\n"


def write_page(page: Page, folder: Path) -> None:
    """Write ``report.md`` and ``report.html`` into the folder that holds the plots."""
    (folder / "report.md").write_text(to_markdown(page))
    (folder / "report.html").write_text(to_html(page, folder))
