"""The docs name what there is: every metric, every algorithm and its flags."""

import dataclasses
from pathlib import Path

import pytest

from parcade.algorithms.table import ALGORITHMS, support_matrix
from parcade.report.metrics import METRICS

pytestmark = pytest.mark.quick
DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_every_metric_has_its_row():
    text = (DOCS / "metrics.md").read_text()
    assert [name for name in METRICS if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_its_page_with_no_flag_that_is_gone(algorithm):
    import re

    text = (DOCS / "algorithms" / f"{algorithm}.md").read_text()
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].config)}
    known = {f"--{name.replace('_', '-')}" for name in fields} | {"--preset", "--lstm", "--layer-norm", "--dueling", "--normalize-input"}
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `--"))
    named = set(re.findall(r"--[a-z-]+", rows))
    assert named and named <= known


def test_the_support_matrix_in_the_docs_is_the_one_there_is():
    assert support_matrix() in (DOCS / "algorithms" / "README.md").read_text()
