import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from versions import further_versions


def pytest_configure(config):
    config.addinivalue_line("markers", "exact: compares every game with ale-py; minutes")


@pytest.fixture(autouse=True)
def no_further_versions():
    """Fail a test that compiles a separate function once more, for arguments of other types."""
    before = further_versions()
    yield
    assert further_versions() == before
