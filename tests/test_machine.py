"""The provenance of results."""

import subprocess
from pathlib import Path

import pytest

from parcade.machine import commit

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
def test_a_result_names_the_commit_of_its_source_tree():
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert commit() in (head, f"{head}-dirty")
