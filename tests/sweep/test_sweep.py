"""``parcade sweep`` without Ray: its files, its trainings, its report, and mistakes on the command line."""

import csv
import dataclasses
import json
import os
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.config import to_json
from parcade.errors import UsageError
from parcade.files.outputs import make_folders
from parcade.files.run_directory import read_json, write_json
from parcade.report.page import Table
from parcade.sweep import sweeping
from parcade.sweep.objective import CHECKS, Budget, Objective
from parcade.sweep.plan import FOLDERS, SweepPlan, open_sweep, read_sweep
from parcade.sweep.runs import Failed, Training, TrialRuns, set_aside_others
from parcade.sweep.sweep_page import _importance_blocks, importances_of
from parcade.sweep.trials import Trial, best_first, efficient_trials, read_trials, run_of, write_trial
from parcade.training_flags import parse_training

SMALL = ("--num-envs", "4", "--unroll-length", "8", "--hidden", "16")
PLAN = SweepPlan(
    training=("tiny_catch", *SMALL), space=("learning_rate=log:1e-4..1e-2", "epochs=1,2"), search="random",
    scheduler="none", objective="score", budget="2k-frames", seeds=(0,), search_seed=0, trials=8, confirm=1,
    confirm_seeds=2,
)  # fmt: skip


def result(score, cpu_seconds):
    return {
        "score_mean": score, "episodes": 100, "cpu_seconds": cpu_seconds, "wall_seconds": 1.0,
        "finished_by": "total_frames",
        "algorithm": "ppo", "frames": 100, "commit": "abc", "machine": {"cpu": "CPU", "cores": 2},
    }  # fmt: skip


def trial(number, *, state="finished", checks=CHECKS, value=1.0, rate=1e-3, seeds=(0,)):
    values = [value] * checks
    return Trial(number, {"learning_rate": rate, "epochs": 1 + number % 2}, seeds, state, values)


def test_a_presets_target_score_does_not_end_trainings_before_their_budget():
    training = ("pong", "--preset", "pong_fast")
    plan = dataclasses.replace(PLAN, training=training, space=("epochs=1,2",), budget="2M-steps")
    assert plan.config.run.target_score is None and plan.config.run.total_frames == 8_000_000
    timed = dataclasses.replace(plan, objective="cpu_seconds_to:15")
    assert timed.config.run.target_score == 15


@pytest.mark.parametrize("score", [1234564, 0.1, -3, 1e22])
def test_trainings_end_at_exactly_the_score_that_the_objective_counts(score):
    plan = dataclasses.replace(PLAN, objective=f"cpu_seconds_to:{score}")
    assert plan.config.run.target_score == plan.goal.target == score


@pytest.fixture
def folder(tmp_path):
    """A sweep of eight trials: six finished, one stopped by the scheduler and one failed."""
    make_folders("sweep", tmp_path, FOLDERS)
    open_sweep(tmp_path, PLAN)
    for number in range(8):
        one = trial(number, value=float(number), rate=1e-4 * 2**number)
        if number == 6:
            one = trial(6, state="stopped", checks=1, value=99.0, rate=2e-3)
        if number == 7:
            one = dataclasses.replace(trial(7, checks=0, state="failed"), reason="exit code 2: a mistake")
        write_trial(tmp_path, "trials", one)
        run = run_of(tmp_path, one, 0)
        run.mkdir(parents=True)
        write_json(run / "result.json", result(float(number), 10.0 - (number == 3)))
    for number, seed, value in ((4, 1, 3.0), (4, 2, 4.0), (5, 1, 2.0)):
        again = trial(number, value=value, rate=1e-4 * 2**number, seeds=(seed,))
        write_trial(tmp_path, "confirmations", again)
    return tmp_path


def test_a_plan_is_read_as_it_was_written_and_can_be_extended(tmp_path):
    make_folders("sweep", tmp_path, FOLDERS)
    open_sweep(tmp_path, PLAN)
    assert read_sweep(tmp_path) == PLAN
    longer = dataclasses.replace(PLAN, trials=30, confirm=5, confirm_seeds=4)
    open_sweep(tmp_path, longer)
    assert read_sweep(tmp_path) == longer
    write_trial(tmp_path, "trials", trial(0))
    with pytest.raises(UsageError, match="holds a sweep with budget=2k-frames, not 3k-frames; use another"):
        open_sweep(tmp_path, dataclasses.replace(PLAN, budget="3k-frames"))
    with pytest.raises(UsageError, match="holds a sweep with space=learning_rate=log"):
        open_sweep(tmp_path, dataclasses.replace(PLAN, space=("epochs=1,2",)))


def test_confirmation_uses_seeds_that_the_search_has_not():
    assert not set(PLAN.fresh_seeds) & set(PLAN.seeds)
    plan = dataclasses.replace(PLAN, seeds=(7, 3), confirm_seeds=3)
    assert plan.fresh_seeds == (8, 9, 10)


def test_trials_are_ordered_by_state_then_value_then_progress(folder):
    order = [each.number for each in best_first(read_trials(folder, "trials"), PLAN.goal)]
    assert order == [5, 4, 3, 2, 1, 0, 6, 7]
    cheapest = best_first(read_trials(folder, "trials"), Objective(target=3.0))
    assert [each.number for each in cheapest] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_setting_whose_fresh_seeds_failed_is_not_the_best(folder):
    """However good the others are: a mean of survivors is no mean of its seeds."""
    write_trial(folder, "confirmations", trial(5, value=9.0, rate=1e-4 * 2**5, seeds=(1,)))
    failed = dataclasses.replace(trial(5, checks=0, state="failed", seeds=(2,)), reason="exit code 1")
    write_trial(folder, "confirmations", failed)
    main(["sweep", "--report-only", str(folder)])
    text = (folder / "report.md").read_text()
    assert (
        "--learning-rate 0.0016"
        in text.replace("=", " ").split("Train with the best settings")[1].split("\n")[0]
    )
    assert "Trials with fewer than 2 fresh seeds come last" in text
    for seed in (1, 2):
        failed = dataclasses.replace(trial(4, checks=0, state="failed", seeds=(seed,)), reason="exit code 1")
        write_trial(folder, "confirmations", failed)
    main(["sweep", "--report-only", str(folder)])
    text = (folder / "report.md").read_text()
    assert "so none is recommended" in text and "Train with the best settings" not in text


def test_a_confirmation_of_other_settings_is_not_that_of_a_trial_of_its_number(folder):
    plan = dataclasses.replace(PLAN, confirm=2)
    left = [(5, (2,))]  # of trials 5 and 4, with seeds 1 and 2
    assert [(each.number, each.seeds) for each in sweeping._to_confirm(folder, plan)] == left
    write_trial(folder, "trials", trial(5, value=5.0, rate=2e-3))  # its file was deleted meanwhile
    left = [(5, (1,)), (5, (2,))]
    assert [(each.number, each.seeds) for each in sweeping._to_confirm(folder, plan)] == left
    main(["sweep", "--report-only", str(folder)])
    assert "| 5 | 5 | 2 | 1: 2 |" not in (folder / "report.md").read_text()


def test_more_fresh_seeds_than_the_last_command_names_recommend_a_setting_too(folder):
    open_sweep(folder, dataclasses.replace(PLAN, confirm_seeds=1))
    main(["sweep", "--report-only", str(folder)])
    text = (folder / "report.md").read_text()
    assert "| 4 | 4 | 3.5 | 1: 3, 2: 4 |" in text and "fresh seeds come last" not in text
    recommended = text.split("Train with the best settings")[1].split("\n")[0]
    assert "--learning-rate=0.0016 --epochs=1" in recommended


def test_the_report_separates_searched_and_confirmed_seeds_and_names_failures(folder, capsys):
    assert main(["sweep", "--report-only", str(folder)]) == 1  # a trial has failed
    text = (folder / "report.md").read_text()
    assert "Sweep of ppo on tiny_catch" in text and "Sweep of ppo" in capsys.readouterr().out
    assert "8 of 8 trials: 6 finished, 1 stopped, 1 failed" in text
    assert "| 4 | 4 | 3.5 | 1: 3, 2: 4 |" in text and "| 5 | 5 | 2 | 1: 2 |" in text
    assert "parcade train tiny_catch" in text and "--learning-rate=0.0016 --epochs=1" in text
    assert "exit code 2: a mistake" in text
    assert (folder / "sweep.png").stat().st_size > 1000 and (folder / "report.html").exists()
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [row["state"] for row in rows] == ["finished"] * 6 + ["stopped", "failed"]
    before = text, (folder / "trials.csv").read_text()
    main(["sweep", "--report-only", str(folder)])
    assert ((folder / "report.md").read_text(), (folder / "trials.csv").read_text()) == before


def test_the_summary_counts_trials_that_are_not_over(folder, capsys):
    """It said "8 of 8 trials: 5 finished, 1 stopped, 1 failed" of a sweep to be continued."""
    write_trial(folder, "trials", trial(3, state="started", checks=0, rate=1e-4 * 2**3))
    assert main(["sweep", "--report-only", str(folder)]) == 1
    assert "8 of 8 trials: 5 finished, 1 stopped, 1 failed, 1 not over." in capsys.readouterr().out


def test_the_table_of_trials_tells_settings_of_a_narrow_span_apart(tmp_path, capsys):
    make_folders("sweep", tmp_path, FOLDERS)
    open_sweep(tmp_path, dataclasses.replace(PLAN, space=("gamma=0.9999..0.99999",)))
    for number, gamma in enumerate((0.9999123, 0.9999456)):
        write_trial(tmp_path, "trials", dataclasses.replace(trial(number), settings={"gamma": gamma}))
    assert main(["sweep", "--report-only", str(tmp_path)]) == 0
    table = capsys.readouterr().out.partition("Trials of the search")[2]
    assert "  0.9999123\n" in table and "  0.9999456\n" in table


def test_importance_compares_trials_after_the_same_part_of_the_budget(folder):
    found, check = importances_of(PLAN, read_trials(folder, "trials"))
    assert check == 1  # as far as the stopped trial got
    assert found[0].name == "learning_rate"


def test_no_importance_has_a_probability_of_zero():
    trials = [trial(number, value=float(number), rate=1e-4 * 1.3**number) for number in range(16)]
    table = next(block for block in _importance_blocks(PLAN, trials) if isinstance(block, Table))
    assert table.rows[0] == ["learning_rate", "1.00", "< 0.001"]


def test_efficient_trials_are_those_without_a_cheaper_and_better_one(folder):
    assert efficient_trials(folder, read_trials(folder, "trials")) == {3, 5}


def test_ten_thousand_trials_are_in_the_order_of_their_numbers(tmp_path):
    make_folders("sweep", tmp_path, FOLDERS)
    numbers, seeds = [999, 1000, 1001, 9999, 10_000, 10_001, 100_000], [(2,), (10,)]
    for number in reversed(numbers):
        write_trial(tmp_path, "trials", trial(number))
        for each in seeds:
            write_trial(tmp_path, "confirmations", trial(number, seeds=each))
    assert [each.number for each in read_trials(tmp_path, "trials")] == numbers
    confirmed = [(each.number, each.seeds) for each in read_trials(tmp_path, "confirmations")]
    assert confirmed == [(number, each) for number in numbers for each in seeds]


def test_a_damaged_file_of_a_trial_gets_one_line(folder):
    (folder / "trials" / "0002.json").write_text('{"number": 2}')
    with pytest.raises(UsageError, match="0002.json is no trial of parcade sweep; delete it"):
        read_trials(folder, "trials")
    (folder / "trials" / "0002.json").write_text('{"number": ')
    with pytest.raises(UsageError, match="parcade, delete it to train this trial again$"):
        read_trials(folder, "trials")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("trials/0002.json", {"settings": {"learning_rate": 1e-3}}, "0002.json is no trial of parcade sweep"),
        ("trials/0002.json", {"values": ["high"]}, "0002.json is no trial of parcade sweep"),
        ("trials/0002.json", {"state": "lost"}, "0002.json is no trial of parcade sweep"),
        *(
            (
                "trials/0002.json",
                {"settings": {"learning_rate": rate, "epochs": epochs}},
                "0002.json is no trial",
            )
            for rate, epochs in ((1e-3, 7), (1e-3, [1]), ("fast", 1), (None, 1), (-1.0, 1), (5.0, 1))
        ),
        ("trials/0002.json", {"seeds": ["a"]}, "0002.json is no trial"),
        ("trials/0002.json", {"number": True}, "0002.json is no trial"),
        ("confirmations/0004-s1.json", {"seeds": []}, "0004-s1.json is no trial"),
        ("sweep.json", {"seeds": []}, "sweep.json: seeds=[] is damaged"),
        ("sweep.json", {"seeds": 3}, "sweep.json: seeds=3 is damaged"),
        ("runs/t0002-s0/result.json", {"cpu_seconds": ...}, "result.json lacks 'cpu_seconds'; it is damaged"),
    ],
)
def test_a_report_of_damaged_files_is_one_line(folder, file, change, message, capsys):
    data = {**read_json(folder / file), **change}
    write_json(folder / file, {name: value for name, value in data.items() if value is not ...})
    assert main(["sweep", "--report-only", str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_sweep_with_a_damaged_file_starts_nothing(folder, monkeypatch):
    monkeypatch.setattr(sweeping, "RayEngine", lambda *_: pytest.fail("Ray started"))
    settings = {"learning_rate": "fast", "epochs": 1}
    write_trial(folder, "confirmations", dataclasses.replace(trial(4, seeds=(1,)), settings=settings))
    with pytest.raises(UsageError, match="0004-s1.json is no trial of parcade sweep; delete it"):
        sweeping.run_sweep(folder, PLAN, sweeping.Room("", 1, 0.0), print)


def test_a_sweep_tells_ray_of_no_more_cpus_than_its_trials_can_use(folder, monkeypatch):
    class Told(Exception):
        pass

    def start(settings, needed):
        raise Told(needed)

    monkeypatch.setattr(sweeping, "RayEngine", start)
    with pytest.raises(Told) as told:
        sweeping.run_sweep(folder, PLAN, sweeping.Room("", 10**12, 0.0), print)
    assert told.value.args == ({"CPU": PLAN.trials},)


def training(folder, frames, *flags):
    plan = dataclasses.replace(PLAN, training=(*PLAN.training, *flags), budget=f"{frames}-frames")
    run = run_of(folder, trial(0), 0)
    run.parent.mkdir(exist_ok=True)
    start = plan.training_of({"epochs": 1}, 0, run)
    return Training(str(run), start, plan.resuming(run), str(folder)), Budget("frames", frames)


def all_values(runs):
    while len(runs.values) < CHECKS:
        assert runs.next_value(60), "a training takes more than a minute"
    return runs.values


@pytest.mark.cluster
def test_a_stopped_trial_is_resumed_and_a_finished_one_is_only_read(tmp_path):
    job, budget = training(tmp_path, 8000, "--checkpoint-seconds", "0.1", "--report-seconds", "0.1")
    runs = TrialRuns([job], budget, Objective())
    assert runs.next_value(60)
    runs.stop()
    result = read_json(Path(job.run) / "result.json")
    assert result["finished_by"] == "stopped" and result["frames"] < 8000
    values = all_values(TrialRuns([job], budget, Objective()))
    result = read_json(Path(job.run) / "result.json")
    assert result["finished_by"] == "total_frames" and result["score_mean"] == values[-1]
    unable = job._replace(start=["train", "nothing"], resume=["train", "nothing"])
    assert all_values(TrialRuns([unable], budget, Objective()))[-1] == values[-1]


def test_a_run_of_other_settings_is_not_taken_for_that_of_a_new_trial(tmp_path):
    """A search may give new settings to the number of a trial whose file was deleted."""
    run = tmp_path / "t0000-s0"
    old, new = (PLAN.training_of({"learning_rate": rate, "epochs": 1}, 0, run) for rate in (1e-3, 2e-3))
    set_aside_others(run, old)  # nothing is there
    for start, kept in ((old, True), (new, False)):
        if not run.exists():
            run.mkdir()
        write_json(run / "config.json", to_json(parse_training(old[1:])))
        set_aside_others(run, start)
        assert run.exists() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["t0000-s0.other"]
    run.mkdir()  # of a start that was killed before it wrote a config
    set_aside_others(run, new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t0000-s0.other", "t0000-s0.other-2"]


def test_a_finished_trial_has_the_mean_of_its_seeds_at_every_check(tmp_path):
    jobs = []
    for seed, offset in ((0, 0.0), (1, 10.0)):
        run = tmp_path / f"t0000-s{seed}"
        run.mkdir()
        scores = [None, *(offset + i for i in range(1, 18))]  # the first episode ends after the first report
        reports = [{"frames": 100 * i, "score_mean": score} for i, score in enumerate(scores, 1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
        write_json(run / "result.json", result(scores[-1], 1.0))
        jobs.append(Training(str(run), [], [], str(tmp_path)))
    runs = TrialRuns(jobs, Budget("frames", 1800), Objective())
    assert all_values(runs) == [5.0 + i for i in range(1, 18, 2)]
    runs = TrialRuns(jobs, Budget("frames", 900), Objective())
    assert all_values(runs) == [None, *(5.0 + i for i in range(1, 8)), 22.0]  # at last, the run's end


def test_a_run_that_its_frames_end_early_counts_as_if_it_had_used_its_time(tmp_path):
    """Without progress, it would else beat one that has trained all the time and come half the way."""
    seconds, jobs = {"short": 10.0, "long": 100.0}, {}
    for name, end in seconds.items():
        run = tmp_path / name
        run.mkdir()
        report = {"frames": 100, "wall_seconds": end, "cpu_seconds": end, "episodes": 100}
        scores = [0.0] * 9 + [0.0 if name == "short" else 5.0]
        lines = [
            json.dumps({**report, "wall_seconds": end * i / 10, "score_mean": score}) + "\n"
            for i, score in enumerate(scores, 1)
        ]
        (run / "metrics.jsonl").write_text("".join(lines))
        write_json(run / "result.json", result(scores[-1], end))
        jobs[name] = Training(str(run), [], [], str(tmp_path))
    ends = {
        name: all_values(TrialRuns([job], Budget("wall_seconds", 100.0), Objective(10.0)))[-1]
        for name, job in jobs.items()
    }
    assert ends == {"short": 1000.0, "long": 200.0}  # ten times a complete run; twice a run half the way


def test_a_training_that_fails_gives_the_last_line_of_its_output(tmp_path):
    job, budget = training(tmp_path, 2000)
    runs = TrialRuns([job._replace(start=[*job.start, "--epochs", "0"])], budget, Objective())
    with pytest.raises(Failed, match="exit code 2: parcade: epochs=0 is below 1"):
        all_values(runs)
    runs.stop()


BASE = ["sweep", "tiny_catch", "--space", "epochs=1,2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep"], "no game; expected parcade sweep GAME"),
        (["sweep", "tiny_catch"], "no --space given"),
        (["sweep", "tiny_catch", "--space", "epoch=1,2"], "did you mean 'epochs'?"),
        (["sweep", "tiny_catch", "--space", "epochs"], "is not NAME=VALUES"),
        (["sweep", "tiny_catch", "--space", "gamma=0.9..1.5"], "gamma=1.5 is not in [0, 1]"),
        (
            ["sweep", "tiny_catch", "--engine", "mpi", "--ranks", "2", "--space", "num_envs=8,9"],
            "--space num_envs, value 9: num_envs=9 is not divisible",
        ),
        (["sweep", "tiny_catch", "--space", "network=mlp,mpl"], "--space network, value mpl: unknown"),
        (
            ["sweep", "pong", "--space", "epochs=1,2", "--action-subset", "1", "9"],
            "parcade: action_subset=(1, 9): expected actions of this game, 0 to 5",
        ),
        (
            ["sweep", "pong", "--space", "epochs=1,2", "--start-states", "none.json"],
            "there is no file none.json",
        ),
        (
            ["sweep", "pong", "--from", "zoo:pong", "--space", "layer_norm=false,true"],
            "--space layer_norm, value True: the weights of zoo:pong do not fit this run",
        ),
        ([*BASE, "--hiden", "3"], "did you mean --hidden?"),
        ([*BASE, "--budget", "fast"], "is not a budget"),
        ([*BASE, "--seeds", "a"], "are not seeds"),
        ([*BASE, "--trials", "0"], "trials=0 is below 1"),
        ([*BASE, "--trials", "1e12"], "trials=1,000,000,000,000 is above 100,000; use 100,000 or less"),
        ([*BASE, "--confirm", "1e12"], "confirm=1,000,000,000,000 is above 100,000"),
        ([*BASE, "--confirm-seeds", "1e12"], "confirm_seeds=1,000,000,000,000 is above 1,000"),
        ([*BASE, "--objective", "reward"], "objective 'reward' is not one of"),
        ([*BASE, "--search", "grid"], "invalid choice 'grid'"),
        ([*BASE, "--seed", "3"], "parcade sweep sets --seed itself; use --seeds"),
        ([*BASE, "--total-frames=1000"], "parcade sweep sets --total-frames itself; use --budget"),
        ([*BASE, "--budget=1h", "--time-limit=1h"], "parcade sweep sets --time-limit itself; use --budget"),
        ([*BASE, "--serch", "random"], "unknown flag --serch; did you mean --search?"),
        ([*BASE, "--algorithm", "pppo"], "unknown algorithm"),
        ([*BASE, "--gpus", "0.5"], "gpus=0.5 is for trainings with --device cuda; add that, or leave it out"),
        (["sweep", "pongg", "--space", "epochs=1,2"], "pongg"),
        (
            ["sweep", "--report-only", "/nowhere"],
            "sweep.json does not exist; expected the directory of a parcade sweep",
        ),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [["--epochs", "4"], ["--epochs=4"], []])
def test_a_flag_that_the_space_searches_is_noted(words, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parcade.sweep.sweeping.run_sweep", stop)
    assert main(["sweep", "tiny_catch", *words, "--space", "epochs=1..3"]) == 130
    noted = "note: --space searches --epochs; its value in the command is not used" in capsys.readouterr().err
    assert noted == bool(words)


def test_a_missing_package_of_the_extra_gets_one_line(monkeypatch, capsys):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "optuna" else find(name))
    assert main([*BASE, "--search", "optuna"]) == 2
    message = "--search optuna needs optuna, which is not installed; run: pip install 'parcade[sweep]'"
    assert message in capsys.readouterr().err
