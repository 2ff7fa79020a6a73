"""``parcade scale`` as a user calls it."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from parcade.cli import main
from parcade.commands.scale import ScaleFlags, _plan
from parcade.errors import UsageError
from parcade.machine import facts
from parcade.scale import measure as measuring
from parcade.scale import study as studying
from parcade.scale.jobs import TrainJob
from parcade.training_flags import parse_training

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("matplotlib", reason="the extra parcade[reports] is not installed")
pytest.importorskip("scipy", reason="the extra parcade[reports] is not installed")
pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")

BAD = {
    "no game": ([], "no game; expected parcade scale GAME"),
    "an unknown game": (["pongg"], "did you mean 'pong'?"),
    "an unknown flag": (["pong", "--rankz", "3"], "unknown flag --rankz; did you mean --ranks?"),
    "a flag that only scale has": (
        ["pong", "--simulat", "9"],
        "unknown flag --simulat; did you mean --simulate?",
    ),
    "one with its value": (["pong", "--simulat=9"], "unknown flag --simulat=9; did you mean --simulate?"),
    "ranks that are no numbers": (["pong", "--ranks", "1,two"], "--ranks '1,two' is not a list of numbers"),
    "ranks that do not divide": (
        ["pong", "--ranks", "1,3"],
        "size of 3 ranks (strong scaling): num_envs=32 is not divisible",
    ),
    "several hosts": (["pong", "--hosts", "F"], "measures one host; leave out --hosts"),
    "an engine": (["pong", "--engine", "mpi"], "parcade scale sets --engine itself"),
    "no repeats": (["pong", "--repeats", "0"], "repeats=0 is not above 0 and finite; use 1 or more"),
    "a window without an end": (["pong", "--seconds", "inf"], "seconds=inf is not above 0"),
    "a simulation of two threads at once": (
        ["pong", "--overlap", "--simulate", "64"],
        "with --overlap they learn while they play; leave out --overlap, or measure only",
    ),
    "a window beyond the limit": (
        ["pong", "--seconds", "60", "--limit", "1m"],
        "seconds=60 does not end before --limit 1m; use a longer --limit",
    ),
    "no time to the score": (
        ["pong", "--score", "18", "--minutes", "0", "--curve", "runs/x"],
        "minutes=0 is not above 0 and finite; use the time you have",
    ),
    "a score that is no number": (
        ["pong", "--score", "nan", "--minutes", "1", "--curve", "x"],
        "score=nan is not finite",
    ),
    "a rate that is no number": (["pong", "--rate", "nan"], "rate=nan is not above 0 and finite"),
    "a negative price": (
        ["pong", "--rate", "9", "--price", "-3"],
        "price=-3 is not 0 or more and finite; use the price",
    ),
    "a node without cores": (
        ["pong", "--rate", "9", "--cores-per-node", "-4"],
        "cores_per_node=-4 is not 0 or more",
    ),
    "a score without its time": (["pong", "--score", "18"], "--score, --minutes and --curve belong together"),
    "a curve that is not there": (
        ["tiny_catch", "--score", "1", "--minutes", "1", "--curve", "nowhere"],
        "holds no result.json",
    ),
    "a synthetic size that does not divide": (
        ["pong", "--ranks", "2,4", "--synthetic", "5"],
        "--synthetic 5 is not a multiple",
    ),
    "a synthetic size below all": (["pong", "--ranks", "2,4", "--synthetic", "1"], "of --ranks, 2; use 2"),
    "a size that is no number": (["pong", "--ranks", "²"], "'²' is not a list of numbers"),
    "a size that no counter holds": (
        ["pong", "--simulate", "9" * 5000],
        "--simulate '999999999999...9999999999999' has more than 18 digits",
    ),
    "a simulation of threads without cores": (
        ["tiny_catch", "--threads", "4096", "--simulate", "4"],
        "--simulate and --synthetic need a size with a core for every thread, and 4096 thread(s)",
    ),
    "a price of nothing": (
        ["pong", "--price", "2"],
        "--price is for the cores of an answer; add --rate or",
    ),
    "a link between no hosts": (
        ["pong", "--link-gbit", "5"],
        "--link-gbit describes hosts to simulate; add --simulate",
    ),
    "a system of actors": (
        ["tiny_catch", "--algorithm", "impala"],
        "impala is a system of actors and learners: train it with other --num-actors",
    ),
    "a program that is not there": (["--"], "nothing follows --"),
    "a program under a launcher": (
        ["--", "mpiexec", "-n", "2", "x"],
        "parcade scale starts the ranks itself; leave mpiexec",
    ),
    "a program that should grow": (
        ["--scaling", "weak", "--", "sh"],
        "does not grow with its ranks; use --scaling strong",
    ),
    "environments of a program": (["--envs", "4", "--", "sh"], "--envs needs a training of parcade"),
    "a report under a name that is too long": (
        ["tiny_catch", "--out", "x" * 300],
        "cannot be written (File name too long); use another --out",
    ),
    "ranks that no memory holds": (
        ["tiny_catch", "--ranks", "1,100000000", "--scaling", "weak"],
        "ranks=100,000,000: that many ranks need 9,765,625.0 GiB or more, but only",
    ),
    "ranks of a program that no memory holds": (
        ["--ranks", "100000000", "--", "sh"],
        "ranks=100,000,000: that many ranks need",
    ),
    "synthetic ranks that no memory holds": (
        ["tiny_catch", "--ranks", "1", "--scaling", "weak", "--synthetic", "4,100000000"],
        "synthetic=100,000,000: that many ranks need",
    ),
    "one size with a core for every rank": (
        ["tiny_catch", "--ranks", "1", "--simulate", "4"],
        "under strong scaling need two sizes with a core for every thread",
    ),
    "a game next to a study": (["pong", "--read", "x"], "pong is of no use with --read, which runs nothing"),
    "a run next to a study": (["--read", "x", "--repeats", "5"], "repeats is of no use with --read"),
    "a study that is not there": (
        ["--read", "nowhere"],
        "nowhere cannot be read (No such file or directory)",
    ),
}


@pytest.mark.quick
def test_a_job_of_several_nodes_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert main(["scale", "tiny_catch", "--ranks", "1"]) == 2
    error = capsys.readouterr().err
    assert "measures one host, and this Slurm job has 2" in error and error.count("\n") == 1


@pytest.mark.quick
@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, says = BAD[mistake]
    assert main(["scale", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and says in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.cluster
def test_a_study_measures_goes_beyond_the_cores_simulates_and_compares(tmp_path, capsys):
    job = ["tiny_catch", "--num-envs", "8", "--unroll-length", "16"]
    plan = ["--ranks", "1,2", "--synthetic", "4", "--simulate", "8,512", "--repeats", "1", "--seconds", "0.2"]
    kept = [tmp_path / "profile.json", tmp_path / "output.log", tmp_path / "run" / "config.json"]
    (tmp_path / "run").mkdir()
    for path in kept:
        path.write_text("of an earlier day")
    assert main(["scale", *job, *plan, "--rate", "1000000000000", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [path.read_text() for path in kept] == ["of an earlier day"] * 3, "existing files are unchanged"
    new = {p.name for p in tmp_path.iterdir()} - {"profile.json", "output.log", "run"}
    assert new == {"report.html", "report.md", "scale-0.png", "scale.json"}
    found = json.loads((tmp_path / "scale.json").read_text())
    (series,) = found["series"]
    run = [(p["size"]["ranks"], p["kind"]) for p in series["points"]]
    assert run == [(1, "measured"), (2, "measured"), (4, "synthetic")]
    assert all(p["steps_per_second"][0] > 0 for p in series["points"])
    assert [s["ranks"] for s in series["validation"]] == [1, 2, 4]
    assert [s["ranks"] for s in series["simulated"]] == [8] and series["simulated"][0]["hosts"] >= 2
    assert "512 ranks exceed 8 environments, not simulated" in printed
    assert {t["ranks"] for t in found["timings"]} == {2, 4}
    assert "The simulation compared with every size that was run" in printed and "synthetic" in printed
    before = (tmp_path / "report.md").read_text()
    asked = ["--price", "2", "--rate", "1", "--out", str(tmp_path / "asked")]
    assert main(["scale", "--read", str(tmp_path / "scale.json"), *asked]) == 0
    assert "Cost is for one hour" in capsys.readouterr().out and (tmp_path / "asked" / "report.md").exists()
    assert (tmp_path / "report.md").read_text() == before, "a question leaves the study's own report"


@pytest.mark.cluster
def test_a_program_of_ones_own_is_scaled(tmp_path, capsys):
    """The supervised example on 1 and 2 ranks, which share one batch."""
    plan = [
        "--ranks", "1,2", "--simulate", "64", "--repeats", "1", "--seconds", "0.3", "--out",
        str(tmp_path / "study"),
    ]  # fmt: skip
    program = [sys.executable, str(ROOT / "examples" / "mnist.py"), "--epochs", "1000"]
    assert main(["scale", *plan, "--", *program]) == 0
    printed = capsys.readouterr().out
    assert "1 job in total" in printed and "2 rank(s), 0.5 job each" in printed
    (series,) = json.loads((tmp_path / "study" / "scale.json").read_text())["series"]
    assert [p["size"]["ranks"] for p in series["points"]] == [1, 2]
    assert all(p["steps_per_second"][0] > 0 for p in series["points"])
    assert series["simulated"][0]["ranks"] == 64


@pytest.mark.quick
def test_one_measured_size_is_enough_under_weak_scaling():
    plan = _plan(ScaleFlags(ranks="1", scaling="weak", simulate="4"))
    words = ["tiny_catch", "--num-envs", "8"]
    studying.check(plan, TrainJob(words, parse_training(words)))


@pytest.mark.quick
def test_a_container_with_less_than_a_core_for_every_thread_cannot_be_simulated_from(monkeypatch):
    monkeypatch.setattr(facts, "available_cores", lambda: 16)
    monkeypatch.setattr(facts, "cgroup_cores", lambda: 1.5)
    plan = _plan(ScaleFlags(ranks="2", scaling="weak", simulate="4"))
    words = ["tiny_catch", "--num-envs", "8"]
    with pytest.raises(UsageError, match=r"2 rank\(s\) are more than the 1 core\(s\) here"):
        studying.check(plan, TrainJob(words, parse_training(words)))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "shared"),
    [([], [False, False]), (["--overlap"], [False, True]), (["--overlap", "--threads", "2"], [False, True])],
)
def test_ranks_that_learn_while_they_play_need_two_cores(rates_of_a_study, flags, shared, tmp_path, capsys):
    study = ["scale", "tiny_catch", "--ranks", "1,2", "--repeats", "1", "--seconds", "0.1", *flags]
    assert main([*study, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(", shared") == shared.count(True)
    (series,) = json.loads((tmp_path / "scale.json").read_text())["series"]
    assert [point["shares_cores"] for point in series["points"]] == shared


@pytest.fixture
def rates_of_a_study(tmp_path, monkeypatch):
    """A study of ranks 1 and 2 whose runs take no time, and the rates in its ``scale.json`` by kind."""

    def take(recording, folder, made):
        return SimpleNamespace(steps_per_second=1.0, cores_used=1.0, share=lambda *_: 0.0)

    monkeypatch.setattr(measuring, "record", take)
    monkeypatch.setattr(studying, "cores_at_once", lambda: 2)
    monkeypatch.setattr(studying, "rank_work_of", lambda points, unit: None)

    def kept():
        (series,) = json.loads((tmp_path / "scale.json").read_text())["series"]
        return [(p["kind"], p["size"]["ranks"], len(p["steps_per_second"])) for p in series["points"]]

    return kept


STUDY = ["scale", "tiny_catch", "--ranks", "1,2", "--synthetic", "4", "--repeats", "2", "--seconds", "0.1"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("failure", "code"), [("an error", 1), ("a mistake", 2), ("Ctrl-C", 130), ("SIGTERM", 130)]
)
def test_complete_synthetic_repeats_are_kept_when_a_later_one_fails(
    rates_of_a_study, failure, code, tmp_path, monkeypatch, capsys
):
    calls = []

    def run_synthetic(*arguments, seed):
        calls.append(seed)
        if seed == 0:
            return 5.0, 0.1
        if failure == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        errors = {"an error": RuntimeError("mpiexec exited with code 1"), "a mistake": UsageError("no room")}
        raise errors.get(failure, KeyboardInterrupt)

    monkeypatch.setattr(studying, "run_synthetic", run_synthetic)
    monkeypatch.setattr(time, "time", lambda: 4e9)  # a clock that is set meanwhile does not matter
    assert main([*STUDY, "--out", str(tmp_path)]) == code and calls == [0, 1]
    printed = capsys.readouterr()
    assert f"parcade scale --read {tmp_path / 'scale.json'}" in printed.out and "Traceback" not in printed.err
    assert rates_of_a_study() == [("measured", 1, 2), ("measured", 2, 2), ("synthetic", 4, 1)]


@pytest.mark.quick
def test_a_synthetic_size_with_fewer_environments_than_ranks_is_named_and_left_out(
    rates_of_a_study, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(studying, "run_synthetic", lambda *arguments, seed: (5.0, 0.1))
    few = ["--num-envs", "4", "--synthetic", "4,8", "--out", str(tmp_path)]
    assert main([*STUDY, *few]) == 0
    assert "strong: 8 ranks exceed 4 environments, not run" in capsys.readouterr().out
    assert rates_of_a_study() == [("measured", 1, 2), ("measured", 2, 2), ("synthetic", 4, 2)]


@pytest.mark.quick
def test_a_study_that_cannot_be_stored_is_one_line_and_leaves_no_files(
    rates_of_a_study, tmp_path, monkeypatch, capsys
):
    (tmp_path / "scale.json").mkdir()
    assert main([*STUDY, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "scale.json could not be written" in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["scale.json"]


def test_the_log_of_a_run_that_fails_is_kept_where_the_error_says(tmp_path, capsys):
    program = ["--", sys.executable, "-c", "print('last words'); raise SystemExit(3)"]
    assert main(["scale", "--ranks", "1", "--repeats", "1", "--out", str(tmp_path), *program]) == 1
    err = capsys.readouterr().err
    log = Path(err.rsplit("full output in ", 1)[1].rstrip(")\n"))
    assert "last words" in log.read_text() and not list(log.parent.glob(".profile-*"))
