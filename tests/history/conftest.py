"""A directory for runs."""

import pytest


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
