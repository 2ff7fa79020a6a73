"""What an error tells the user to do."""

import errno
import os

import pytest

from parcade.errors import UsageError, remedy
from parcade.files.run_directory import read_json
from parcade.suite.plan import write_plan


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EFBIG, "free some space"),
        (errno.ENOENT, "restore its directory"),
        (errno.EROFS, "make it writable"),
        (errno.EACCES, "make it writable"),
    ],
)
def test_a_file_that_cannot_be_written_has_the_remedy_of_its_error(tmp_path, monkeypatch, number, advice):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("parcade.suite.plan.write_json", fail)
    assert remedy(OSError(number, "")) == advice
    with pytest.raises(UsageError, match=rf"suite.json cannot be written \(.*\); {advice}, or use another"):
        write_plan(tmp_path / "suite.json", {})


def test_a_file_where_a_runs_directory_is_expected_is_not_called_damaged(tmp_path):
    (tmp_path / "run").write_text("no directory")
    with pytest.raises(
        UsageError, match="config.json does not exist; expected the directory of a parcade run"
    ):
        read_json(tmp_path / "run" / "config.json")


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(
        UsageError, match=r"cannot be read \(Too many levels of symbolic links\); expected the"
    ):
        read_json(tmp_path / "config.json")
