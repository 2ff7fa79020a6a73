"""Hooks of the documentation site: pages from the repository's root, and links that leave ``docs/``.

Pages link to each other and to files of the repository by relative paths, as a forge shows them. On the site,
a link to a file that is no page leads to the forge. A link to a file that does not exist is a warning, which
``--strict`` makes an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# Pages of the site that lie outside docs/: their paths in the repository, by their names on the site.
OUTSIDE = {Path(path).name: path for path in ("CONTRIBUTING.md", "CHANGELOG.md", "examples/quickstart.ipynb")}
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)#\s:]+)(#[^)\s]*)?\)")

log = logging.getLogger("mkdocs.hooks.links")


@event_priority(50)  # before mkdocs-jupyter looks for notebooks
def on_files(files, config):
    """Add the pages that lie outside ``docs/``."""
    for page, source in OUTSIDE.items():
        folder = str((ROOT / source).parent)
        files.append(File(page, folder, config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown, page, config, files):
    """Make each link to a file of the repository a link to its page, or to the forge."""
    path = page.file.src_uri
    source = OUTSIDE.get(path, f"docs/{path}")

    def on_site(match):
        text, target, anchor = match[1], match[2], match[3] or ""
        return f"{text}{link_on_site(source, path, target, config, files)}{anchor})"

    return LINK.sub(on_site, markdown)


def link_on_site(source: str, page: str, target: str, config, files) -> str:
    """The target of a link in the file ``source`` of the repository, as seen from its page of the site."""
    named = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    on_site = named.removeprefix("docs/") if named.startswith("docs/") else posixpath.basename(named)
    if files.get_file_from_path(on_site) and OUTSIDE.get(on_site, f"docs/{on_site}") == named:
        return posixpath.relpath(on_site, posixpath.dirname(page) or ".")
    if not (ROOT / named).exists():
        log.warning("%s links to %s, which does not exist", source, named)
    return f"{config.extra['repository']}/blob/main/{named}"
