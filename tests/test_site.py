"""Links of the documentation site: to pages of the site, to the forge, and to files that do not exist."""

import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="needs mkdocs: `make docs` installs it")
pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md", "api.md", "gpu.md", "howto/algorithm.md", "CONTRIBUTING.md", "quickstart.ipynb"}


@pytest.fixture
def on_site():
    """The Markdown of a page as the site gets it."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in PAGES else None)
    config = SimpleNamespace(extra={"repository": "https://forge/parcade"})

    def changed(path: str, markdown: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=path))
        return hooks.on_page_markdown(markdown, page, config, files)

    return changed


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("howto/algorithm.md", "../api.md#training", "../api.md#training"),
        ("howto/algorithm.md", "../../CONTRIBUTING.md#rules", "../CONTRIBUTING.md#rules"),
        ("CONTRIBUTING.md", "docs/gpu.md", "gpu.md"),
        ("index.md", "../examples/quickstart.ipynb", "quickstart.ipynb"),
        ("gpu.md", "../examples/mnist.py", "https://forge/parcade/blob/main/examples/mnist.py"),
        ("gpu.md", "https://arxiv.org/abs/1709.06009", "https://arxiv.org/abs/1709.06009"),
        ("gpu.md", "#the-stand-in", "#the-stand-in"),
    ],
)
def test_a_link_leads_to_the_page_or_to_the_forge(on_site, page, link, expected, caplog):
    assert on_site(page, f"see [text]({link}).") == f"see [text]({expected})."
    assert not caplog.records


def test_a_link_to_a_missing_file_is_a_warning_which_strict_makes_an_error(on_site, caplog):
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        on_site("gpu.md", "see [text](../benchmarks/results/missing.json)")
    assert "docs/gpu.md links to benchmarks/results/missing.json, which does not exist" in caplog.text
