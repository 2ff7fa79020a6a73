"""``parcade profile`` as a user calls it: on one process, on real MPI ranks and on the user's own program."""

import datetime
import errno
import io
import itertools
import json
import math
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from profiles import profile
from profiles import rank as rank_of

from parcade.cli import main
from parcade.cluster import launch, mpi
from parcade.cluster.processes import read_records
from parcade.commands import reports
from parcade.commands.profile import _report
from parcade.errors import UsageError
from parcade.profile import profile_page
from parcade.profile import recorded_command as module
from parcade.profile.advice import advise
from parcade.profile.data import from_json, write_rank
from parcade.profile.recorded_command import RecordedCommand

pytest.importorskip("matplotlib", reason="the extra parcade[plots] is not installed")
pytestmark = pytest.mark.processes
RANKS = Path(__file__).parent / "ranks.py"
# A launcher that ignores SIGTERM, and one of its ranks in a separate session, which registers itself like a
# real rank.
STUBBORN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from parcade.cluster.processes import clear_records, own_record, write_record
run, is_rank = Path(sys.argv[1]), len(sys.argv) > 2
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if is_rank:
    write_record(run, own_record("rank", 0))
else:
    clear_records(run)
    subprocess.Popen([sys.executable, __file__, str(run), "rank"], start_new_session=True)
time.sleep(120)
"""
SMALL = ["tiny_catch", "--num-envs", "8", "--unroll-length", "16", "--threads-per-rank", "1"]

BAD = {
    "no game": ([], "no game; expected parcade profile GAME"),
    "an unknown game": (["pongg"], "did you mean 'pong'?"),
    "an unknown flag": (["pong", "--secondz", "3"], "unknown flag --secondz; did you mean --seconds?"),
    "a time that is none": (["pong", "--seconds", "0"], "seconds=0.0 is not above 0"),
    "a time without an end": (["pong", "--seconds", "inf"], "seconds=inf is not above 0 and finite; use 30"),
    "a flag without its value": (["pong", "--seconds"], "Missing value for argument '--seconds'"),
    "a time beyond the limit": (
        ["pong", "--seconds", "60", "--limit", "1m"],
        "does not end before --limit 1m",
    ),
    "a resume": (["--resume", "runs/x"], "takes no --resume"),
    "ranks that do not divide": (["pong", "--engine", "mpi", "--ranks", "3"], "num_envs=32 is not divisible"),
    "a system of actors": (
        ["tiny_catch", "--algorithm", "a3c", "--engine", "serial"],
        "a3c is a system of actors and learners",
    ),
    "a profile that is not there": (["--read", "nowhere"], "nowhere does not exist"),
    "a game next to a profile": (["pong", "--read", "x"], "pong is of no use with --read"),
    "a recording next to a profile": (["--read", "x", "--seconds", "3"], "seconds is of no use with --read"),
    "a program that is not given": (["--"], "nothing follows --"),
}


@pytest.mark.quick
@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, says = BAD[mistake]
    assert main(["profile", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and says in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def recorded(folder):
    return from_json(json.loads((folder / "profile.json").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_profile_that_is_ended_ends_its_training_and_leaves_only_the_log(tmp_path, number):
    command = [sys.executable, "-m", "parcade", "profile", *SMALL, "--engine", "serial", "--seconds", "60"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (runs := list(tmp_path.glob(".profile-*/run"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    (run,) = runs
    while not (records := read_records(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.communicate(timeout=120)[1] == "parcade: interrupted\n" and process.returncode == 130
    assert not any(record.is_running_here() for record in records)
    assert [path.name for path in tmp_path.iterdir()] == ["output.log"]


def test_the_report_is_made_again_from_its_data_and_from_nothing_else(tmp_path, capsys):
    flags = [
        *SMALL, "--engine", "serial", "--seconds", "0.3", "--out", str(tmp_path / "out"),
        "--checkpoint-seconds", "0.01",
    ]  # fmt: skip
    assert main(["profile", *flags]) == 0
    printed = capsys.readouterr().out
    taken = recorded(tmp_path / "out")
    assert taken.iterations >= 1 and taken.steps_per_second > 0 and len(taken.ranks) == 1
    assert "checkpoint-too-frequent" in {finding.rule for finding in advise(taken)}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "output.log", "profile.json", "report.html", "report.md", "split.png", "timeline.png"
    }  # fmt: skip
    again = ["--read", str(tmp_path / "out" / "profile.json"), "--out", str(tmp_path / "again")]
    assert main(["profile", *again]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[:5] == printed.splitlines()[1:6]
    (tmp_path / "bad.json").write_text("[]")
    assert main(["profile", "--read", str(tmp_path / "bad.json")]) == 2
    good = json.loads((tmp_path / "out" / "profile.json").read_text())
    capsys.readouterr()
    for damage, says in (
        ({"ranks": []}, "the profile has no ranks"),
        ({"cores": "two"}, "cores is 'two'"),
        ({"config": {"run": 3}}, "config.run is 3"),
        ({"ranks": [good["ranks"][0] | {"seconds": {"learn": 1.0}}]}, "seconds lacks"),
        ({"ranks": [good["ranks"][0] | {"steps": None}]}, "steps is None"),
        ({"ranks": [good["ranks"][0] | {"iteration_seconds": []}]}, "iteration_seconds is empty"),
        ({"ranks": [good["ranks"][0] | {"pools": [["torch", 1], 7]}]}, "pools is"),
        ({"ranks": [good["ranks"][0] | {"pools": [["torch", 1], ["mkl", "2"]]}]}, "is damaged"),
        ({"config": {"run": {"algorithm": 3}}}, "is damaged"),
        ({"machine": {"cores": None}}, "is damaged"),
        (None, "is not a profile (maximum recursion depth"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(good | damage) if damage else "[" * 100_000)
        assert main(["profile", "--read", str(tmp_path / "bad.json")]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1, error


@pytest.mark.quick
def test_a_recording_from_another_host_is_reported_with_that_hosts_cores(tmp_path, capsys):
    there = {"recording": "1", "world_size": 2, "affinity": list(range(96)), "cores_at_once": 96}
    for number in range(2):
        write_rank(rank_of(number, barrier=False, **there), tmp_path)
    assert main(["profile", "--read", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "1.90 of 96 cores used" in printed and "96 of 96" in printed
    assert "load average unknown at the start" in printed
    assert "Recorded without barriers: communicate includes waiting for slower ranks." in printed


def test_a_real_run_of_two_ranks_is_split_and_its_recording_costs_under_two_per_cent(tmp_path, capsys):
    pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")
    flags = ["--engine", "mpi", "--ranks", "2", "--seconds", "1", "--out", str(tmp_path)]
    assert main(["profile", *SMALL, *flags]) == 0
    taken = recorded(tmp_path)
    assert [rank.rank for rank in taken.ranks] == [0, 1]
    first, second = taken.ranks
    assert first.world_size == second.world_size == 2 and first.recording == second.recording != ""
    assert len(first.iteration_seconds) == len(second.iteration_seconds) >= 1
    for rank in taken.ranks:
        assert min(rank.seconds[scope] for scope in ("emulate", "infer", "learn", "communicate", "wait")) > 0
        assert rank.window_seconds == pytest.approx(sum(rank.iteration_seconds), rel=0.02)
        assert 0 < rank.overhead_share < 0.02
        # 3 epochs x 4 minibatches (the defaults of PPO), an Allreduce each
        assert rank.allreduces == rank.updates == 12 * len(rank.iteration_seconds)
        assert rank.bytes_moved == rank.allreduces * rank.gradient_bytes and len(rank.ceiling_seconds) >= 10
        assert all(len(segments) == len(rank.segment_bytes) + 1 for segments in rank.segments)
        assert rank.segment_bytes.count(rank.gradient_bytes) == 12
        assert {threads for _, threads in rank.pools} == {1}
    text = (tmp_path / "report.md").read_text()
    assert "## Communication" in text and "## Imbalance" in text


def test_a_program_with_a_slow_rank_and_a_naive_evaluation_gets_the_advice_of_both(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")
    for name, value in mpi.rank_environment(1).items():
        monkeypatch.setenv(name, value)
    split = [{"emulate": 0.02}, {"emulate": 0.02, "evaluate": 0.06}]
    program = [mpi.find_mpiexec(), "-n", "2", sys.executable, str(RANKS), json.dumps(split)]
    assert main(["profile", "--seconds", "1", "--out", str(tmp_path), "--", *program]) == 0
    taken = recorded(tmp_path)
    found = {finding.rule: finding for finding in advise(taken)}
    assert {"straggler", "evaluation-too-frequent"} <= set(found)
    assert "rank 1" in found["straggler"].says and "mostly in evaluate" in found["straggler"].evidence
    assert shlex.join(program) in (tmp_path / "report.md").read_text()


def test_ranks_that_work_alike_are_called_no_stragglers(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")
    for name, value in mpi.rank_environment(1).items():
        monkeypatch.setenv(name, value)
    split = [{"emulate": 0.2}, {"emulate": 0.2}]
    program = [mpi.find_mpiexec(), "-n", "2", sys.executable, str(RANKS), json.dumps(split)]
    assert main(["profile", "--seconds", "1", "--out", str(tmp_path), "--", *program]) == 0
    rules = {finding.rule for finding in advise(recorded(tmp_path))}
    assert not {"straggler", "evaluation-too-frequent"} & rules and "environment-bound" in rules


@pytest.mark.quick
def test_a_report_is_made_from_the_digits_that_are_kept(tmp_path, capsys):
    """10,000 steps in 5.001254 s are 1,999.4985 steps/s; in 5.00125 s, the six digits kept, 1,999.5001."""
    assert _report(profile(rank_of(0, {"learn": 5.001254})), tmp_path, new=True) == 0
    *printed, _ = capsys.readouterr().out.splitlines()
    assert main(["profile", "--read", str(tmp_path), "--out", str(tmp_path / "again")]) == 0
    *again, _ = capsys.readouterr().out.splitlines()
    assert again == printed and printed[3].startswith("2,000 samples/s")


@pytest.mark.quick
def test_two_reports_of_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    class Now:
        now = staticmethod(lambda: datetime.datetime(2026, 1, 2, 3, 4, 5))

    monkeypatch.setattr(reports, "datetime", SimpleNamespace(datetime=Now))
    monkeypatch.chdir(tmp_path)
    folders = [reports.report_folder("", "profiles") for _ in range(2)]
    assert folders == [Path("profiles/20260102-030405"), Path("profiles/20260102-030405-2")]
    assert not list(folders[1].iterdir())


def test_a_profile_that_is_read_again_gets_its_page_once(tmp_path, monkeypatch, capsys):
    assert _report(profile(rank_of(0, {"learn": 5.001254})), tmp_path, new=True) == 0
    pages, make = [], profile_page.profile_page
    monkeypatch.setattr(
        profile_page, "profile_page", lambda *given, **how: pages.append(1) or make(*given, **how)
    )
    assert main(["profile", "--read", str(tmp_path)]) == 0
    assert pages == [1]


@pytest.mark.quick
def test_a_reader_that_leaves_costs_no_report(tmp_path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        _report(profile(), tmp_path, new=True)
    assert {p.name for p in tmp_path.iterdir()} == {"profile.json", "report.html", "report.md", "split.png"}


@pytest.mark.quick
@pytest.mark.parametrize("code", [2, 3])
def test_a_failure_whose_reason_could_not_be_written_names_the_log(code, tmp_path, monkeypatch, capsys):
    def full(path, mode="r"):
        if mode == "a":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open(path, mode)

    monkeypatch.setattr(module, "open", full, raising=False)
    fails = [sys.executable, "-c", f"raise SystemExit({code})"]
    assert main(["profile", "--out", str(tmp_path), "--", *fails]) == 2
    err = capsys.readouterr().err
    assert f"could not be written to {tmp_path / 'output.log'} (No space left on device); free some" in err
    assert err.count("\n") == 1


@pytest.mark.quick
def test_a_profile_is_recorded_where_its_progress_cannot_be_printed(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def fileno(self):
            return unused.fileno()

    monkeypatch.setattr("parcade.profile.recorded_command.record", lambda *arguments: profile())
    with open(tmp_path / "unused", "w") as unused, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Full())
        main(["profile", "tiny_catch", "--out", str(tmp_path / "report")])
    assert (tmp_path / "report/profile.json").exists() and (tmp_path / "report/report.md").exists()


@pytest.mark.quick
@pytest.mark.parametrize("own_run, remedy", [(True, "--out"), (False, "--run-dir")])
def test_the_directory_that_a_failed_training_asks_for_is_that_of_the_profile(own_run, remedy, tmp_path):
    words = ["--run-dir", str(tmp_path / "run" if own_run else "elsewhere")]
    fails = "print('parcade: the disk is full; use another --run-dir'); raise SystemExit(2)"
    recording = RecordedCommand([sys.executable, "-c", fails, *words], "it", 1.0, False, 60.0)
    with pytest.raises(UsageError, match=f"^the disk is full; use another {remedy}$"):
        module.record(recording, tmp_path, tmp_path)


def test_a_program_that_records_nothing_or_fails_says_so(tmp_path, capsys):
    assert main(["profile", "--out", str(tmp_path / "a"), "--", sys.executable, "-c", "pass"]) == 2
    assert "the command recorded nothing (last output: no output)" in capsys.readouterr().err
    program = ["--", sys.executable, "-c", "print('last words'); raise SystemExit(3)"]
    assert main(["profile", "--out", str(tmp_path / "b"), *program]) == 1
    assert "parcade: the command exited with code 3: last words" in capsys.readouterr().err
    program = ["--", sys.executable, "-c", "import time; time.sleep(60)"]
    assert main(["profile", "--out", str(tmp_path / "c"), "--seconds", "0.5", "--limit", "1s", *program]) == 1
    assert "did not end within 1 s (--limit)" in capsys.readouterr().err


def test_other_files_next_to_the_report_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = [Path("run/config.json"), Path("ranks/rank-0.json"), Path("run/checkpoints/1/checkpoint.json")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a training of long ago")
    assert main(["profile", *SMALL, "--engine", "serial", "--seconds", "0.1", "--out", "."]) == 0
    assert main(["profile", "--out", ".", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 1
    assert [path.read_text() for path in kept] == ["a training of long ago"] * 3
    assert {p.name for p in tmp_path.iterdir()} == {
        "run", "ranks", "output.log", "profile.json", "report.html", "report.md", "split.png", "timeline.png"
    }  # fmt: skip


def over_when(has_begun):
    """A clock on which a limit is over as soon as the command has begun its work.

    Its first reading, from which the limit counts, is 0 even where the command has begun by then.
    """
    readings = itertools.count()
    return SimpleNamespace(monotonic=lambda: math.inf if next(readings) and has_begun() else 0.0)


def test_a_launcher_that_overruns_gets_the_time_to_end_its_ranks_and_what_it_leaves_is_ended(
    tmp_path, monkeypatch
):
    assert module.END_SECONDS > launch.STOP_GRACE_SECONDS
    monkeypatch.setattr(module, "END_SECONDS", 0.5)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    monkeypatch.setattr(module, "time", over_when(lambda: read_records(tmp_path / "run")))
    found = []
    monkeypatch.setattr(module, "read_records", lambda run: found.extend(read_records(run)) or found)
    command = [sys.executable, str(tmp_path / "stubborn.py"), str(tmp_path / "run")]
    with pytest.raises(RuntimeError, match="did not end within"):
        module.record(RecordedCommand(command, "it", 1.0, True, limit_seconds=1.0), tmp_path, tmp_path)
    (rank,) = found
    deadline = time.monotonic() + 120
    while rank.is_running_here() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not rank.is_running_here()


def test_an_interrupted_command_is_ended_by_a_signal_that_no_background_job_ignores(tmp_path, monkeypatch):
    """A script's background jobs, and what they start, ignore SIGINT unless they ask for it."""
    said = "import signal, sys, time\ndef say(number, frame):\n    sys.exit(print(number))\n"
    heard = "for number in (signal.SIGINT, signal.SIGTERM):\n    signal.signal(number, say)\n"
    command = [sys.executable, "-c", said + heard + "print('ready', flush=True)\ntime.sleep(60)"]
    log, readings = tmp_path / "output.log", itertools.count()

    def interrupt_when_ready():
        if next(readings) and "ready" in log.read_text():
            signal.raise_signal(signal.SIGINT)
        return 0.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=interrupt_when_ready))
    with pytest.raises(KeyboardInterrupt):
        module.record(RecordedCommand(command, "it", 1.0, True, limit_seconds=60.0), tmp_path, tmp_path)
    assert log.read_text().split() == ["ready", str(int(signal.SIGTERM))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_leave_a_wait_in_the_middle(tmp_path, monkeypatch, number):
    """An exception that leaves Popen.wait may leave its lock held, and then later waits time out."""
    waits, raised, wait = itertools.count(), [], subprocess.Popen.wait

    def interrupted_wait(process, timeout=None):
        try:
            if next(waits) == 0:
                signal.raise_signal(number)
            return wait(process, timeout)
        except KeyboardInterrupt:
            raised.append(number)
            raise

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted_wait)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(KeyboardInterrupt):
        module.record(RecordedCommand(command, "it", 1.0, True, limit_seconds=60.0), tmp_path, tmp_path)
    assert next(waits) >= 2 and not raised


def test_a_command_that_takes_its_time_to_stop_is_not_killed_meanwhile(tmp_path, monkeypatch):
    slow = "import signal, sys, time\ndef stop(*_):\n    time.sleep(6)\n    sys.exit(print('saved'))\n"
    ready = "signal.signal(signal.SIGTERM, stop)\nprint('ready', flush=True)\ntime.sleep(60)"
    command, log = [sys.executable, "-c", slow + ready], tmp_path / "output.log"
    monkeypatch.setattr(module, "time", over_when(lambda: "ready" in log.read_text()))
    with pytest.raises(RuntimeError, match="did not end within"):
        module.record(RecordedCommand(command, "it", 1.0, True, limit_seconds=1.0), tmp_path, tmp_path)
    assert "saved" in log.read_text()
