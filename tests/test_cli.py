"""The command line as a user calls it: help, starts that fail, and what the ends of runs say."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import parcade
from parcade.cli import main
from parcade.commands.train import _finish
from parcade.durations import parse_duration
from parcade.errors import UsageError


@pytest.mark.processes
def test_a_mistake_in_a_real_process_prints_no_traceback(tmp_path):
    command = [sys.executable, "-m", "parcade", "train", "spaceinvader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "parcade: unknown game 'spaceinvader'; did you mean 'space_invaders'?\n"
    assert done.stdout == ""


def test_help_of_a_command_explains_its_flags(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["train", "--algorithm", "pqn", "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert "--q-lambda" in out and "--frame-skip" in out and "--clip " not in out
    assert "parcade train --resume DIR" in out


def test_help_names_every_preset(capsys):
    from parcade.presets import PRESETS

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert [name for name in PRESETS if name not in out] == []


def test_usage_keeps_calls_and_summaries_apart(capsys):
    from parcade.cli import COMMANDS

    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, row in COMMANDS.items():
        assert any(
            line.startswith(f"  {name} {row.arguments}  ") and line.endswith(f" {row.summary}")
            for line in lines
        ), name


def test_the_doctor_takes_the_precision_of_the_presets(capsys, monkeypatch):
    from parcade.doctor import facts
    from parcade.model.precision import resolve

    plans, found = [], []
    all_facts = facts.all_facts

    def once(plan):  # the machine's load changes between calls
        plans.append(plan)
        found.extend([] if found else [all_facts(plan)])
        return found[0]

    monkeypatch.setattr(facts, "all_facts", once)
    assert main(["doctor", "--precision", "auto", "--json"]) in (0, 1)
    said = json.loads(capsys.readouterr().out)
    plain = [finding["says"] for finding in said["findings"]]
    assert main(["doctor", "--precision", resolve("auto"), "--json"]) in (0, 1)
    assert [finding["says"] for finding in json.loads(capsys.readouterr().out)["findings"]] == plain
    assert [plan.precision for plan in plans] == [resolve("auto")] * 2


def test_memory_is_counted_for_one_process_of_a_run():
    from parcade.config import check_process_memory
    from parcade.training_flags import parse_training

    words = "pong --num-envs 1000 --unroll-length 128".split()  # 3.4 GiB of observations
    check_process_memory(parse_training(words), 4 << 30)
    with pytest.raises(parcade.UsageError, match="unroll_length=128 needs 3.4 GiB for the 1,000 environment"):
        check_process_memory(parse_training(words), 1 << 30)
    check_process_memory(parse_training([*words, "--engine", "mpi", "--ranks", "8"]), 1 << 30)
    check_process_memory(parse_training([*words, "--algorithm", "impala", "--num-actors", "8"]), 1 << 30)


def test_a_run_that_shall_start_later_is_checked_for_the_memory_of_its_consoles(monkeypatch):
    from parcade.train import check_start
    from parcade.training_flags import parse_training

    monkeypatch.setattr("parcade.envs.checks.available_memory_bytes", lambda: 1 << 30)
    large = "pong --image-height 1000 --image-width 1000 --hidden 8 --num-envs 64 --unroll-length 1".split()
    large += ["--num-minibatches", "1"]
    with pytest.raises(parcade.UsageError, match="num_envs=64 environments need .* use [0-9]+ or fewer"):
        check_start(parse_training(large))
    check_start(parse_training([*large, "--engine", "mpi", "--ranks", "8"]))
    check_start(parse_training([*large, "--engine", "mpi"]))  # a launcher may start any number of ranks


def test_observations_that_no_memory_holds_are_advised_to_shrink():
    from parcade.config import check_process_memory
    from parcade.training_flags import parse_training

    config = parse_training(["pong", "--frame-stack", "100000"])
    with pytest.raises(
        parcade.UsageError, match="memory are free; use smaller images or a shorter --frame-stack$"
    ):
        check_process_memory(config, 8 << 30)


def test_no_command_shows_usage_and_is_a_mistake_while_help_is_not(capsys):
    assert main([]) == 2 and main(["--help"]) == 0
    assert capsys.readouterr().out.count("usage: parcade COMMAND") == 2


def test_games_lists_what_can_be_trained(capsys):
    assert main(["games", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed["atari"]) >= 104 and "tiny_catch" in listed["tiny"]
    assert main(["games"]) == 0
    assert "space_invaders" in capsys.readouterr().out


def test_a_mistake_in_a_job_step_without_mpi_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert main(["bench", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("parcade: unknown bench 'nothing'")


def test_a_run_of_one_process_in_a_job_step_is_no_rank(tmp_path, capsys, monkeypatch):
    """Slurm gives every program of a step a rank, whether it uses MPI or not."""
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    words = ["--total-frames", "200", "--num-envs", "4", "--unroll-length", "4", "--threads-per-rank", "1"]
    command = ["train", "tiny_catch", *words, "--run-dir", str(tmp_path / "run")]
    assert main(command) == 0
    monkeypatch.setenv("PMIX_NAMESPACE", "slurm.pmix.7.0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main(command) == 2
    assert "4 ranks were started, but engine local is one process" in capsys.readouterr().err


def test_a_working_directory_that_was_deleted_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["train", "tiny_catch"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "parcade: the working directory is gone (No such file or directory); change to one that exists, "
        "e.g. with cd ~\n"
    )


@pytest.mark.parametrize(
    "left", [{"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": ""}, {"TORCHELASTIC_RUN_ID": "none"}]
)
def test_launch_variables_without_a_rank_are_ignored(left, tmp_path, monkeypatch):
    """Scripts export them empty, or a part of them, and programs inherit them."""
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    words = ["--total-frames", "200", "--num-envs", "4", "--unroll-length", "4", "--threads-per-rank", "1"]
    assert main(["train", "tiny_catch", *words, "--run-dir", str(tmp_path / "run")]) == 0


def test_an_unwritable_run_directory_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", "tiny_catch", "--run-dir", str(tmp_path / "file" / "run")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_is_refused_at_its_start_leaves_nothing_in_the_way(tmp_path, capsys):
    command = ["train", "pong", "--run-dir", str(tmp_path / "run"), "--action-subset"]
    assert main([*command, "9"]) == 2
    assert "action" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_disk_that_is_full_at_the_start_is_named_and_leaves_nothing_in_the_way(
    tmp_path, capsys, monkeypatch
):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("parcade.files.run_directory.write_json", fail)
    run = tmp_path / "run"
    assert main(["train", "tiny_catch", "--run-dir", str(run)]) == 2
    assert f"run directory {run} cannot be written (No space left on device)" in capsys.readouterr().err
    assert not run.exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("10m", 600), ("0:01:30", 90), ("36:00:00", 129_600)]
    + [("1-12:00:05", 129_605)],
)
def test_durations_may_have_units_or_be_written_as_slurm_writes_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1:30", "1:60:00", "1-2", "-1:00:00", "1h30", "1:00:00s"])
def test_what_is_no_duration_or_could_mean_two_is_refused(text):
    with pytest.raises(UsageError, match="is not a duration; expected e.g. 90s, 10m, 1.5h or 8:00:00"):
        parse_duration(text)


def test_whole_numbers_may_be_written_as_people_write_them():
    from parcade.training_flags import parse_training

    config = parse_training(
        ["pong", "--total-frames", "1e6", "--num-envs=2_0", "--seed", "1_000", "--learning-rate", "1e-3"]
    )
    assert (config.run.total_frames, config.hyper.num_envs, config.run.seed, config.hyper.learning_rate) == (
        1_000_000,
        20,
        1000,
        1e-3,
    )
    assert parse_training(["pong", "--total-frames", "2.3M"]).run.total_frames == 2_300_000
    for wrong in ("1.5", "inf", "M", "1e400000000", "1.0000001M"):
        with pytest.raises(
            parcade.UsageError, match="total-frames: expected an integer, e.g. 100, 4e6 or 4M"
        ):
            parse_training(["pong", "--total-frames", wrong])


def test_whole_numbers_that_may_be_left_out_may_be_written_so_too():
    from parcade.commands.evaluate import EvalFlags
    from parcade.commands.resume import ResumeFlags
    from parcade.flags import parse

    assert parse(ResumeFlags, ["--resume", "x", "--total-frames", "3e4"], prog="x").total_frames == 30_000
    assert parse(EvalFlags, ["x", "--episodes=1e1"], prog="x").episodes == 10


@pytest.mark.parametrize("written", [["--env_preset", "machado_2018"], ["--env_preset=machado_2018"]])
def test_flags_that_choose_defaults_may_be_written_with_underscores(written):
    from parcade.training_flags import parse_training

    env = parse_training(["pong", *written]).env
    assert env.sticky_actions == 0.25 and env.full_action_set


def test_the_public_names_are_listed():
    import parcade

    assert {"make_vec", "Arcade", "load", "TrainConfig", "__version__"} <= set(dir(parcade))


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("export", "usage: parcade export [-h] RUN [FILE] "),
        ("dashboard", "usage: parcade dashboard [-h] [RUNS] "),
        ("suite", "usage: parcade suite [-h] [OPTIONS] [GAMES]"),
        ("eval", "usage: parcade eval [-h] [OPTIONS] RUN"),
    ],
)
def test_brackets_show_what_may_be_left_out(command, usage, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert usage in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "count", "hint"),
    [(["duel"], 1, "(required)"), (["train", "--resume", "RUN"], 16, "(default: unchanged)")],
)
def test_the_help_says_what_is_required_and_what_stays(words, count, hint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = capsys.readouterr().out
    assert shown.count(hint) == count and "(default: None)" not in shown and "(default: )" not in shown


def test_help_of_a_command_has_two_spellings(capsys):
    texts = []
    for words in (["games", "--help"], ["help", "games"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert not end.value.code
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "usage: parcade games" in texts[0]
    assert main(["help", "gamse"]) == 2
    assert "did you mean 'games'?" in capsys.readouterr().err


def test_the_version_is_a_flag_and_the_usage_says_so(capsys):
    assert main(["--help"]) == 0
    assert "parcade --version" in capsys.readouterr().out
    assert main(["version"]) == 2
    assert capsys.readouterr().err == "parcade: unknown command 'version'; did you mean '--version'?\n"


@pytest.mark.processes
def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "parcade", "games"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()  # before a line is written
    assert process.wait(60) == 0 and process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    ("mean", "episodes", "said"),
    [
        (None, 0, "total_frames: no episode ended, so there is no score, 40 frames, 2 s (1 CPU-s)"),
        (3.0, 1, "total_frames: score 3.00 of one episode, 40 frames, 2 s (1 CPU-s)"),
        (3.0, 100, "total_frames: mean score 3.00 over all 100 episodes, 40 frames, 2 s (1 CPU-s)"),
        (3.0, 1234, "total_frames: mean score 3.00 over the last 100 of 1,234 episodes, 40 frames"),
    ],
)
def test_the_last_line_of_a_run_says_what_its_score_is_of(mean, episodes, said, capsys):
    times = {"frames": 40, "wall_seconds": 2.0, "cpu_seconds": 1.0}
    ended = {"finished_by": "total_frames", "game": "tiny_catch", **times}
    assert _finish({**ended, "score_mean": mean, "episodes": episodes}, Path("runs/DIR")) == 0
    assert capsys.readouterr().out.startswith(said)


def test_a_finished_run_says_so_and_how_to_extend_it(tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--num-envs", "4", "--unroll-length", "4", "--run-dir", str(run), "--threads-per-rank", "1"]
    flags += ["--epochs", "1", "--num-minibatches", "1"]
    assert main(["train", "tiny_catch", *flags, "--target-score", "-1", "--total-frames", "1e5"]) == 0
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 2
    said = capsys.readouterr()
    assert (
        "is finished: its mean score of" in said.err
        and "set a higher --target-score" in said.err
        and said.out == ""
    )
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before
    assert main(["train", "--resume", str(run), "--target-score", "2", "--total-frames", "3000"]) == 0
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) != before
    kept = json.loads((run / "config.json").read_text())["run"]
    assert (kept["target_score"], kept["total_frames"]) == (2.0, 3000)
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 2
    assert "of 3,000 frames" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--total-frames", "4000", "--time-limit", "0.001s"]) == 2
    assert "s of 0.001s; to continue, set a longer --time-limit" in capsys.readouterr().err


def test_a_resume_may_remove_the_target_score(tmp_path):
    run = tmp_path / "run"
    flags = ["--num-envs", "4", "--unroll-length", "4", "--run-dir", str(run), "--threads-per-rank", "1"]
    flags += ["--epochs", "1", "--num-minibatches", "1"]
    assert main(["train", "tiny_catch", *flags, "--target-score", "-1", "--total-frames", "1e5"]) == 0
    assert main(["train", "--resume", str(run), "--target-score", "None", "--total-frames", "3000"]) == 0
    assert json.loads((run / "config.json").read_text())["run"]["target_score"] is None
    assert json.loads((run / "result.json").read_text())["finished_by"] == "total_frames"


@pytest.mark.parametrize("name", ["config.json", "checkpoint.json"])
def test_deeply_nested_json_in_a_run_directory_is_refused_in_one_line(tmp_path, capsys, name):
    run = tmp_path / "run"
    flags = [
        "--num-envs", "4", "--unroll-length", "4", "--run-dir", str(run), "--threads-per-rank", "1",
        "--total-frames", "100",
    ]  # fmt: skip
    assert main(["train", "tiny_catch", *flags]) == 0
    (path,) = run.rglob(name)
    path.write_text("[" * 100_000 + "]" * 100_000)
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.processes
def test_a_mistyped_flag_does_not_speak_of_compiling_that_nobody_waits_for(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "parcade", "train", "pong", "--learning-rat", "1"]
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert refused.returncode == 2 and "--learning-rate" in refused.stderr
    assert "compil" not in refused.stderr


@pytest.mark.processes
def test_ctrl_c_while_the_consoles_compile_is_one_line_and_leaves_nothing(tmp_path):
    """With an empty cache, compiling is the first slow step; training would save on an interrupt."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [
        sys.executable, "-m", "parcade", "train", "pong", "--run-dir", str(tmp_path / "run"),
        "--threads-per-rank", "1",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    patience = threading.Timer(300, process.kill)
    patience.start()
    try:
        for line in process.stderr:
            if "compiling the consoles" in line:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    finally:
        patience.cancel()
        process.kill()
        process.wait()
    # On a busy machine the compilation may have ended before the signal.
    lines = [line for line in said.splitlines() if not line.startswith("parcade: compiled in ")]
    assert process.returncode == 130 and lines == ["parcade: interrupted"]
    assert not (tmp_path / "run").exists()


def test_track_none_keeps_metrics_jsonl_alone():
    from parcade.training_flags import parse_training

    assert parse_training(["pong", "--track", "none"]).run.track == ()
