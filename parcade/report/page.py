"""A one-page report, rendered as terminal text, as Markdown and as one HTML file with embedded plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

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


def table_of(items: Iterable[T], columns: dict[str, Callable[[T], str]]) -> Table:
    """Return a table with one row per item. ``columns`` gives the text of a cell by header."""
    return Table([*columns], [[text(item) for text in columns.values()] for item in items])


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
                for first, *others in rows:
                    lines.append(f"* {first}")
                    lines += [f"    {name}: {cell}" for name, cell in zip(headers[1:], others, strict=True)]
                lines.append("")
            case Table(headers, rows, _):
                lines += [*_aligned([headers, *rows]), ""]
            case Image(name, alt):
                lines += [f"({name}: {alt})", ""]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    left, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(left), *map(str.rjust, others, widths)]).rstrip() for first, *others in rows
    ]


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
                first, *escaped = [[_markdown_cell(cell) for cell in row] for row in [headers, *rows]]
                lines += ["| " + " | ".join(row) + " |" for row in [first, rule, *escaped]] + [""]
            case Image(name, alt):
                lines += [f"![{alt}]({name})", ""]
    return "\n".join(lines)


def _markdown_cell(text: str) -> str:
    """Escape what would end a cell or its row, or begin an HTML tag."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").splitlines())


def to_html(page: Page, folder: Path) -> str:
    """Render as one self-contained HTML file with the plots, read from ``folder``, embedded."""
    e = html.escape
    title = e(page.title)
    lines = [
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    ]
    for block in page.blocks:
        match block:
            case Heading(text):
                lines.append(f"<h2>{e(text)}</h2>")
            case Text(text):
                lines.append(f"<p>{e(text)}</p>")
            case Table(headers, rows, prose):
                body = _html_row(headers, "th") + "".join(_html_row(row, "td") for row in rows)
                lines.append(f"<table{' class=prose' if prose else ''}>{body}</table>")
            case Image(name, alt):
                data = base64.b64encode((folder / name).read_bytes()).decode()
                lines.append(f'<p><img alt="{e(alt)}" src="data:image/png;base64,{data}"></p>')
    return "\n".join(lines) + "\n"


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def write_page(page: Page, folder: Path) -> None:
    """Write ``report.md`` and ``report.html`` into the folder that holds the plots."""
    (folder / "report.md").write_text(to_markdown(page))
    (folder / "report.html").write_text(to_html(page, folder))
