"""Provenance of results."""

import subprocess
from pathlib import Path

import pytest

from parcade.machine import commit

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tests run outside a git repository")
def test_the_commit_is_that_of_the_checkout():
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    found = commit()
    assert found is not None and head.stdout.startswith(found.removesuffix("-dirty"))
