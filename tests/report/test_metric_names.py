"""Metrics under the names of other libraries."""

import re
from pathlib import Path

import pytest

from parcade.errors import UsageError
from parcade.report.metric_names import METRIC_NAMES, names_for
from parcade.report.metrics import METRICS
from parcade.report.tensorboard_writer import TensorBoardWriter

pytestmark = pytest.mark.quick
DOCS = Path(__file__).resolve().parents[2] / "docs"
HEADS = ("actor_critic", "q")
REPORT = {
    "frames": 400,
    "steps": 100,
    "score_mean": None,
    "score_last": 3.0,
    "loss/value": 0.5,
    "policy/entropy": 1.5,
}


@pytest.mark.parametrize("library", METRIC_NAMES)
def test_every_alias_is_of_a_documented_metric_and_unlike_any_other_name(library):
    for head in HEADS:
        names = names_for(library, head)
        aliases = [alias.name for alias in names.aliases]
        assert {names.axis, *(alias.metric for alias in names.aliases)} <= set(METRICS)
        assert len(set(aliases)) == len(aliases) and not set(aliases) & set(METRICS)


def test_every_alias_has_its_row_in_the_docs():
    rows = re.findall(r"^\| `([^|]*)` \|(.*)\|(.*)\|$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    documented = {
        (library, alias, metric)
        for metric, *cells in rows
        for library, cell in zip(("sb3", "cleanrl"), cells, strict=True)
        for alias in re.findall(r"`([^`]+)`", cell)
    }
    expected = {
        (library, alias.name, alias.metric)
        for library, names in METRIC_NAMES.items()
        for alias in names.aliases
    }
    assert documented == expected


def test_sb3s_entropy_loss_is_negative_and_its_loss_is_the_td_loss_of_dqn_alone():
    renamed = names_for("sb3", "actor_critic").rename(REPORT)
    assert renamed["train/entropy_loss"] == -1.5 and renamed["train/value_loss"] == 0.5
    assert renamed["time/total_timesteps"] == 100 and "train/loss" not in renamed
    renamed = names_for("sb3", "q").rename(REPORT)
    assert renamed["train/loss"] == 0.5 and "train/value_loss" not in renamed


def test_cleanrls_value_loss_is_half_the_squared_error_and_its_entropy_positive():
    renamed = names_for("cleanrl", "actor_critic").rename(REPORT)
    assert renamed["losses/value_loss"] == 0.25 and renamed["losses/entropy"] == 1.5
    assert names_for("cleanrl", "q").rename(REPORT)["losses/td_loss"] == 0.5


def test_a_metric_without_an_alias_keeps_its_name_and_none_is_left_out():
    renamed = names_for("cleanrl", "q").rename(REPORT)
    assert renamed["frames"] == 400 and renamed["charts/episodic_return"] == 3.0
    assert "score_last" not in renamed and "score_mean" not in renamed
    assert names_for("parcade", "q").rename(REPORT) == {n: v for n, v in REPORT.items() if v is not None}


def test_an_unknown_library_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="unknown metric_names 'rllib'; expected one of parcade, sb3"):
        names_for("rllib", "q")


@pytest.mark.parametrize(
    ("library", "step", "tag"), [("parcade", 400, "score_last"), ("sb3", 100, "time/fps")]
)
def test_tensorboard_reads_back_the_names_over_the_librarys_axis(tmp_path, library, step, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path, names_for(library, "actor_critic"))
    writer.write({**REPORT, "steps_per_second": 7.0})
    writer.close(failed=False)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert tag in events.Tags()["scalars"]
    assert {event.step for name in events.Tags()["scalars"] for event in events.Scalars(name)} == {step}


def test_tensorboard_keeps_the_report_at_which_a_run_was_resumed(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def write(resumed_at, *frames):
        writer = TensorBoardWriter(tmp_path, names_for("parcade", "q"), resumed_at)
        for each in frames:
            writer.write({"frames": each})
        writer.close(failed=False)

    write(None, 100, 200, 300)  # killed after its checkpoint at 200
    (earlier,) = tmp_path.iterdir()
    earlier.rename(tmp_path / "events.out.tfevents.1")  # TensorBoard reads files in the order of their names
    write(200, 250)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("frames")] == [100, 200, 250]
