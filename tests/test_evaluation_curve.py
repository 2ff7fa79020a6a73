"""Policies that a training keeps for good, and ``parcade eval --curve``, which scores them."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import parcade
from parcade.checkpoint import Checkpointer, read_policy
from parcade.cli import main
from parcade.commands import evaluation_curve
from parcade.files.json_lines import remove_later_lines
from parcade.files.kept_policies import frames_of_agents, kept_policies
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import complete_checkpoints
from parcade.history.evaluations import FILE, Evaluations

FLAGS = ["--num-envs", "4", "--unroll-length", "8", "--engine", "serial", "--threads-per-rank", "1"]
ITERATION = 4 * 8
KEEP = ["--keep-policy-frames", "64"]


def train(run, *flags, frames=256):
    return main(["train", "tiny_catch", *FLAGS, "--total-frames", str(frames), "--run-dir", str(run), *flags])


def resume(run, *flags):
    return main(["train", "--resume", str(run), *flags])


def frames_of(paths):
    return [int(path.name) for path in paths]


def curve(run, *flags):
    return main(["eval", str(run), "--curve", "--episodes", "4", *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that kept four policies."""
    run = tmp_path_factory.mktemp("curve") / "run"
    assert train(run, *KEEP, "--keep-checkpoints", "1") == 0
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def played(monkeypatch):
    """Frames of the policies that really play."""
    original, frames = evaluation_curve.play, []

    def noting(agent, plan, task):
        frames.append(agent.frames)
        return original(agent, plan, task)

    monkeypatch.setattr(evaluation_curve, "play", noting)
    return frames


def test_a_policy_is_kept_at_each_multiple_and_at_the_end(tmp_path, trained):
    assert frames_of(kept_policies(trained)) == [256, 192, 128, 64]
    assert train(tmp_path / "odd", "--keep-policy-frames", "100", frames=230) == 0
    # Iterations have 32 frames: the first at or past 100, 200 and the end.
    assert frames_of(kept_policies(tmp_path / "odd")) == [256, 224, 128]
    assert train(tmp_path / "none") == 0
    assert not (tmp_path / "none" / "policies").exists()


def test_a_kept_policy_has_the_weights_of_its_frames_and_no_more(trained):
    (final,) = complete_checkpoints(trained)
    saved = read_rank_file(final, 0)
    kept = read_rank_file(kept_policies(trained)[0], 0)
    assert kept.keys() == {name for name in saved if name.startswith("policy.")}
    assert all(torch.equal(kept[name], saved[name]) for name in kept)
    earlier, frames = read_policy(trained, 128)
    assert frames == 128
    assert any(not torch.equal(tensor, kept[f"policy.{name}"]) for name, tensor in earlier.items())


def test_an_agent_of_any_kept_policy_can_be_loaded(trained):
    assert frames_of_agents(trained) == [256, 192, 128, 64]
    assert parcade.load(trained).frames == 256
    assert parcade.load(trained, checkpoint_frames=64).frames == 64
    with pytest.raises(parcade.UsageError, match="no checkpoint at 65 frames; it has 256, 192, 128, 64"):
        parcade.load(trained, checkpoint_frames=65)


def test_the_newest_agent_is_the_newest_of_checkpoints_and_kept_policies(run):
    shutil.rmtree(run / "checkpoints")
    assert parcade.load(run).frames == 256
    (run / "policies" / f"{256:014d}" / "rank-0.safetensors").write_bytes(b"damaged")
    assert parcade.load(run).frames == 192


def test_a_resume_removes_what_was_kept_after_its_checkpoint(run, capsys):
    assert curve(run) == 0
    shutil.copytree(run / "policies" / f"{256:014d}", run / "policies" / f"{999:014d}")
    (run / "policies" / f"{320:014d}.making").mkdir()
    rows = Evaluations(run).rows
    later = json.dumps({**rows[-1].to_json(), "frames": 999})
    with open(run / FILE, "a") as file:
        file.write(later + "\n")
    assert resume(run, "--total-frames", "300", "--keep-policy-frames", "32") == 0
    assert frames_of(kept_policies(run)) == [320, 288, 256, 192, 128, 64]
    assert not list((run / "policies").glob("*.*"))
    assert [row.frames for row in Evaluations(run).rows] == [64, 128, 192, 256]


def test_a_policy_that_cannot_be_kept_is_reported_and_training_goes_on(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, *KEEP, frames=64) == 0
    shutil.rmtree(run / "policies")
    (run / "policies").write_text("a file")
    assert resume(run, "--total-frames", "128") == 0
    assert "warning: the policy at 128 frames could not be kept (" in capsys.readouterr().out


def test_the_next_checkpoint_keeps_a_policy_that_could_not_be_kept(tmp_path, monkeypatch):
    run, failures = tmp_path / "run", ["a full disk"]
    original = Checkpointer.keep_policy
    monkeypatch.setattr(
        Checkpointer, "keep_policy", lambda self: failures.pop() if failures else original(self)
    )
    assert train(run, *KEEP, "--checkpoint-seconds", "0.000001", frames=160) == 0
    assert frames_of(kept_policies(run)) == [160, 128, 96]


def test_distributed_systems_keep_policies_too(tmp_path):
    replayed = ["--learning-starts", "32"]
    for algorithm, more in (("impala", []), ("apex", replayed), ("gorila", replayed)):
        run = tmp_path / algorithm
        flags = ["--algorithm", algorithm, "--engine", "serial", "--keep-policy-frames", "1000", *more]
        assert main(["train", "tiny_catch", *flags, "--total-frames", "2000", "--run-dir", str(run)]) == 0
        first, *_ = reversed(frames_of(kept_policies(run)))
        assert 1000 <= first < 2000 and curve(run) == 0


def test_the_curve_is_printed_stored_and_not_played_again(run, played, capsys):
    assert curve(run) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:4]] == ["64", "128", "192", "256"]
    assert "over 4 episodes" in printed and "--metric evaluation/sampled" in printed
    assert played == [64, 128, 192, 256]
    assert curve(run) == 0
    assert capsys.readouterr().out == printed and len(played) == 4
    rows = [json.loads(line) for line in (run / FILE).read_text().splitlines()]
    assert [row["frames"] for row in rows] == played
    assert all(row["evaluation/sampled"] == row["result"]["score_mean"] for row in rows)
    assert [row["updates"] for row in rows] == sorted({row["updates"] for row in rows})


def test_a_row_of_the_curve_is_what_eval_gives_for_that_policy(run, capsys):
    assert curve(run, "--seed", "3", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    command = ["eval", str(run), "--episodes", "4", "--seed", "3", "--checkpoint-frames", "128", "--json"]
    assert main(command) == 0
    assert rows[1]["result"] == json.loads(capsys.readouterr().out)


def test_other_rules_are_another_curve_or_refused(run, played, capsys):
    assert curve(run) == 0
    assert curve(run, "--greedy") == 0
    assert len(played) == 8
    assert {row.metric for row in Evaluations(run).rows} == {"evaluation/sampled", "evaluation/greedy"}
    capsys.readouterr()
    for flags, name in ((["--episodes", "5"], "episodes=4, got 5"), (["--seed", "1"], "seed=0, got 1")):
        assert curve(run, *flags) == 2
        assert f"{FILE} holds evaluation/sampled with {name}; use the same" in capsys.readouterr().err
    assert len(played) == 8


def scalars(run, metric, tag):
    """Points that TensorBoard shows of a curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / metric)).Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]


def points(run, metric, axis="frames"):
    rows = [row for row in Evaluations(run).rows if row.metric == metric]
    return [(row.progress[axis], round(row.result["score_mean"], 4)) for row in rows]


def test_tensorboard_shows_the_curve_of_each_rules(run):
    metric = "evaluation/sampled"
    assert curve(run) == 0
    assert len(points(run, metric)) == 4
    assert scalars(run, metric, metric) == points(run, metric)
    assert curve(run, "--greedy") == 0
    assert scalars(run, "evaluation/greedy", "evaluation/greedy") == points(run, "evaluation/greedy")
    # A resume removes the last policy and its scores; the one file shows what is stored now.
    shutil.rmtree(run / "policies" / f"{256:014d}")
    remove_later_lines(run / FILE, 64)
    assert curve(run) == 0
    assert [step for step, _ in scalars(run, metric, metric)] == [64, 128, 192]
    assert scalars(run, metric, metric) == points(run, metric)
    assert len(list((run / metric).iterdir())) == 1
    shutil.rmtree(run / "evaluation")
    assert curve(run) == 0, "nothing is played, as of a curve that an earlier version scored"
    assert scalars(run, metric, metric) == points(run, metric)


def test_tensorboard_shows_the_scores_of_all_processes(run, monkeypatch):
    metric, played = "evaluation/sampled", evaluation_curve.play

    def another_process_scores_all_meanwhile(agent, plan, task):
        monkeypatch.setattr(evaluation_curve, "play", played)
        assert curve(run) == 0
        return played(agent, plan, task)

    monkeypatch.setattr(evaluation_curve, "play", another_process_scores_all_meanwhile)
    assert curve(run) == 0
    assert len(points(run, metric)) == 4 and scalars(run, metric, metric) == points(run, metric)


def test_scores_that_an_earlier_version_stored_without_steps_still_count(run, played):
    metric = "evaluation/sampled"
    assert curve(run) == 0
    rows = [json.loads(line) for line in (run / FILE).read_text().splitlines()]
    (run / FILE).write_text("".join(json.dumps({**row, "steps": None}) + "\n" for row in rows))
    with pytest.raises(parcade.UsageError, match="damaged"):
        Evaluations(run)
    for row in rows:
        del row["steps"]
    (run / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert curve(run) == 0 and len(played) == 4
    assert scalars(run, metric, metric) == points(run, metric)


def test_a_curve_has_the_names_and_the_axis_of_another_library(tmp_path):
    run = tmp_path / "run"
    assert train(run, *KEEP, "--metric-names", "sb3") == 0
    assert curve(run) == 0
    found = scalars(run, "evaluation/sampled", "eval/mean_reward")
    assert found == points(run, "evaluation/sampled", "steps") and len(found) == 4
    assert train(tmp_path / "untracked", *KEEP, "--track", "none") == 0
    assert curve(tmp_path / "untracked") == 0
    assert not (tmp_path / "untracked" / "evaluation").exists()


def test_a_score_that_tensorboard_cannot_show_is_stored(run, capsys):
    (run / "evaluation").write_text("a file")
    assert curve(run) == 0
    assert (
        capsys.readouterr().err.count("warning: TensorBoard does not show the curve (Not a directory)") == 1
    )
    assert len(points(run, "evaluation/sampled")) == 4


def test_a_policy_with_other_weights_is_played_again(run, played, tmp_path):
    assert curve(run) == 0
    assert train(tmp_path / "other", *KEEP, "--seed", "1", frames=64) == 0
    changed = run / "policies" / f"{64:014d}"
    shutil.rmtree(changed)
    shutil.copytree(tmp_path / "other" / "policies" / changed.name, changed)
    assert curve(run) == 0
    assert len(played) == 5 and len(Evaluations(run).rows) == 4


def test_following_waits_for_policies_until_the_training_ends(run, played, monkeypatch):
    aside = run / "aside"
    aside.mkdir()
    for frames in (192, 256):
        shutil.move(run / "policies" / f"{frames:014d}", aside)
    waits = []

    def wait(seconds):
        waits.append(seconds)
        shutil.move(sorted(aside.iterdir())[0], run / "policies")

    states = [True] * 6 + [False]
    monkeypatch.setattr(evaluation_curve.time, "sleep", wait)
    monkeypatch.setattr(evaluation_curve, "_is_training", lambda runs: states.pop(0))
    assert curve(run, "--follow") == 0
    assert played == [64, 128, 192, 256] and len(waits) == 2


def test_a_run_that_keeps_none_is_refused_at_once(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, frames=32) == 0
    capsys.readouterr()
    assert curve(run, "--follow") == 2
    assert "kept no policies, which make a curve; train with --keep-policy-frames" in capsys.readouterr().err
    assert train(tmp_path / "early", "--keep-policy-frames", "1000", frames=32) == 0
    shutil.rmtree(tmp_path / "early" / "policies")
    assert curve(tmp_path / "early") == 2
    assert "has kept no policy so far" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--curve", "--video", "a.mp4"],
        ["--curve", "--out", "a.json"],
        ["--curve", "--checkpoint-frames", "64"],
    ],
)
def test_flags_of_one_policy_are_refused_for_a_curve(trained, flags, capsys):
    assert main(["eval", str(trained), *flags]) == 2
    assert "leave out --checkpoint-frames, --video and --out" in capsys.readouterr().err


def test_following_needs_a_curve_and_a_line_has_room_for_its_scores(trained, capsys):
    assert main(["eval", str(trained), "--follow"]) == 2
    assert "add --curve" in capsys.readouterr().err
    assert main(["eval", str(trained), "--curve", "--episodes", "5001"]) == 2
    assert "episodes=5,001 is above 5,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "[1]", "{}", '{"evaluation/a": 1}', '{"evaluation/a": 1, "evaluation/b": 1}', "[" * 100_000],
)
def test_a_damaged_file_is_refused_by_line(run, line, capsys):
    assert curve(run) == 0
    with open(run / FILE, "a") as file:
        file.write(line + "\n")
    capsys.readouterr()
    assert curve(run) == 2
    assert f"{FILE}, line 5, is damaged; delete the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"frames": float("nan")},
        {"frames": 1.5},
        {"updates": 10**400},
        {"policy_sha256": 1},
        {"result": {"score_mean": float("inf"), "scores": [1.0]}},
        {"result": {"score_mean": 1.0, "scores": []}},
        {"result": {"score_mean": 1.0, "scores": [10**400]}},
        {"result": {"score_mean": "1", "scores": [1.0]}},
    ],
    ids=str,
)
def test_values_that_no_evaluation_has_are_refused(run, change, capsys):
    assert curve(run) == 0
    row = Evaluations(run).rows[0].to_json()
    (run / FILE).write_text(json.dumps({**row, **change}) + "\n")
    capsys.readouterr()
    assert curve(run) == 2
    assert f"{FILE}, line 1, is damaged" in capsys.readouterr().err


def test_a_damaged_kept_policy_is_named(run, capsys):
    (run / "policies" / f"{128:014d}" / "checkpoint.json").write_text("{}")
    assert curve(run) == 2
    assert f"{128:014d} is damaged; delete it" in capsys.readouterr().err
    assert [row.frames for row in Evaluations(run).rows] == [64]


def test_a_policy_under_the_frames_of_another_is_damaged(run, capsys):
    shutil.copytree(run / "policies" / f"{256:014d}", run / "policies" / f"{999:014d}")
    assert curve(run) == 2
    assert f"{999:014d} is damaged; delete it" in capsys.readouterr().err


def test_a_kept_policy_plays_where_the_checkpoint_of_its_frames_is_damaged(run, played):
    (final,) = complete_checkpoints(run)
    (final / "rank-0.safetensors").write_bytes(b"damaged")
    assert parcade.load(run).frames == parcade.load(run, checkpoint_frames=256).frames == 256
    assert curve(run) == 0 and played == [64, 128, 192, 256]
    (run / "policies" / final.name / "rank-0.safetensors").write_bytes(b"damaged, too")
    with pytest.raises(parcade.UsageError, match="truncated or was changed"):
        parcade.load(run, checkpoint_frames=256)


def test_a_policy_is_kept_before_the_checkpoint_from_which_a_resume_would_not_keep_it(tmp_path, monkeypatch):
    run = tmp_path / "run"

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", killed)
        assert train(run, *KEEP, "--checkpoint-seconds", "3600", frames=64) == 130
    assert frames_of(kept_policies(run)) == [64] and not complete_checkpoints(run)


def test_scores_of_a_policy_that_a_resume_removed_meanwhile_are_not_stored(run, monkeypatch, capsys):
    original = evaluation_curve.play

    def and_remove(agent, plan, task):
        result = original(agent, plan, task)
        if agent.frames == 192:
            for frames in (192, 256):
                shutil.rmtree(run / "policies" / f"{frames:014d}")
        return result

    monkeypatch.setattr(evaluation_curve, "play", and_remove)
    assert curve(run) == 0
    assert [row.frames for row in Evaluations(run).rows] == [64, 128]
    assert "192 frames" not in capsys.readouterr().out


def test_evaluations_of_several_processes_at_once_lose_no_row(run):
    assert curve(run) == 0
    template = Evaluations(run).rows[0]
    with ThreadPoolExecutor(4) as pool:
        adding = [
            pool.submit(Evaluations(run).add, dataclasses.replace(template, metric=f"evaluation/rules{i}"))
            for i in range(24)
        ]
        assert all(each.result() for each in adding)
    assert len(Evaluations(run).rows) == 4 + 24


def test_a_curve_of_another_epsilon_is_refused(tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--algorithm", "dqn", "--learning-starts", "32", "--replay-capacity", "500", "--batch-size", "8"]
    assert main(["train", "tiny_catch", *flags, *KEEP, "--total-frames", "128", "--run-dir", str(run)]) == 0
    assert curve(run) == 0
    capsys.readouterr()
    assert curve(run, "--protocol", "null-op") == 2
    assert "holds evaluation/sampled with epsilon=0.01, got 0.05; use the same" in capsys.readouterr().err


def test_a_run_directory_that_cannot_be_written_is_refused_before_an_episode(
    run, played, monkeypatch, capsys
):
    monkeypatch.setattr(evaluation_curve, "why_not_writable", lambda path: "Read-only file system")
    assert curve(run) == 2 and played == []
    assert "cannot be written (Read-only file system); evaluate a copy" in capsys.readouterr().err


def test_a_bad_file_of_evaluations_does_not_keep_a_training_from_its_resume(run, capsys):
    (run / FILE).mkdir()
    assert resume(run, "--total-frames", "300") == 0
    assert f"{FILE} keeps scores of removed policies (Is a directory)" in capsys.readouterr().out
    (run / FILE).rmdir()
    (run / FILE).write_text("[" * 200_000 + "\n")
    assert resume(run, "--total-frames", "400") == 0
    assert (run / FILE).read_text() == ""
