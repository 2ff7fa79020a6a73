"""The facts that the doctor reads, the thread pools of its probe process, and its command line."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.cluster.processes import ProcessRecord, own_record, start_ticks, write_record
from parcade.config import RunConfig, TrainConfig, to_json
from parcade.doctor import facts, pools
from parcade.doctor.pools import PlannedRun
from parcade.doctor.running import RunningProcess, examine_running, has_parts_on_ray, look_at_run
from parcade.doctor.start import plan_of, warn_at_start
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.files.run_directory import write_json
from parcade.machine.facts import available_cores
from parcade.model.precision import resolve
from parcade.training_flags import parse_training


@pytest.fixture
def without_pools(monkeypatch):
    """Leave out the process that counts thread pools, which takes seconds to import torch."""
    monkeypatch.setattr(facts, "planned_processes", lambda plan: ())


@pytest.mark.quick
def test_lists_of_cores_are_read_and_written_as_the_kernel_does():
    from parcade.commands.doctor import _cores

    assert facts.parse_cpu_list("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11) and facts.parse_cpu_list("") == ()
    assert _cores((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"


@pytest.mark.quick
def test_facts_of_this_machine_are_there():
    found = facts.quick_facts()
    assert found.cores >= len(found.usable_cores) >= 1 and found.core_budget <= len(found.usable_cores)
    assert found.cpu and found.memory_bytes > 2**28


def test_cached_kernels_are_counted_where_numba_keeps_them():
    from parcade.atari.compiling.jit import separate_functions
    from parcade.atari.compiling.kernel_cache import STAMP
    from parcade.atari.compiling.prepare import prepare

    prepare()
    for dispatcher, _ in separate_functions().values():
        assert Path(dispatcher.stats.cache_path).is_relative_to(facts.kernel_cache()[1])
    assert facts.quick_facts().numba_kernels_cached >= len(separate_functions())
    assert facts.KERNELS_STAMP == STAMP


@pytest.mark.quick
def test_a_home_that_is_another_users_or_none_is_no_error(tmp_path, monkeypatch):
    """Of a container's user who runs an installation of root's: stat fails below root's directory."""

    def refused(path, *args, **kwargs):
        if str(path).startswith(str(tmp_path / "root" / ".cache")):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, *args, **kwargs)

    real_stat = os.stat
    (tmp_path / "root").mkdir()
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(facts.os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        found = facts.quick_facts()
    assert found.numba_cache == "in the user's cache directory"
    assert not found.numba_cache_writable and found.numba_kernels_cached == 0
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert facts.kernel_cache() == ("in the user's cache directory", Path("~/.cache/numba"))


@pytest.mark.quick
def test_the_cache_of_macos_is_where_numba_has_it(monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/Users/ada")
    monkeypatch.setattr(facts.os, "access", lambda path, mode: False)
    monkeypatch.setattr(facts.sys, "platform", "darwin")
    assert facts.kernel_cache()[1] == Path("/Users/ada/Library/Caches/numba")


@pytest.mark.quick
def test_a_load_that_the_system_does_not_tell_is_unknown(monkeypatch, capsys):
    from parcade.commands.doctor import _print

    def unobtainable():
        raise OSError("Load average was unobtainable")

    monkeypatch.setattr(os, "getloadavg", unobtainable)
    _print(facts.quick_facts(), [], [])
    assert "load unknown" in capsys.readouterr().out


@pytest.mark.quick
def test_kernels_of_other_projects_are_none_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "other.nbc").touch()
    assert facts.quick_facts().numba_kernels_cached == 0
    (tmp_path / facts.KERNELS_STAMP).touch()
    found = facts.quick_facts()
    assert (found.numba_cache, found.numba_kernels_cached) == ("NUMBA_CACHE_DIR", 1)


@pytest.mark.quick
def test_a_package_that_cannot_be_written_to_has_its_kernels_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(facts.os, "access", lambda path, mode: False)
    assert facts.kernel_cache() == ("in the user's cache directory", tmp_path / "numba")


def test_the_pools_of_a_rank_are_as_wide_as_the_run_would_make_them(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (sized,) = pools.planned_processes(facts.PlannedRun(engine="mpi", ranks=3, threads_per_rank=1))
    assert sized.count == 3 and {pool.threads for pool in sized.pools} == {1}
    (unmanaged,) = pools.planned_processes(facts.PlannedRun(engine="mpi", ranks=3, threads_per_rank=-1))
    assert unmanaged.widest.threads == available_cores()
    assert {"torch"} < {pool.library for pool in unmanaged.pools}


def test_the_parts_of_a_run_on_ray_are_the_planned_processes(monkeypatch):
    flags = ["pong", "--algorithm", "gorila", "--engine", "ray", "--no-bundled", "--num-learners", "3"]
    flags += ["--num-shards", "4", "--threads-per-rank", "2"]
    parts = plan_of(parse_training(flags)).parts
    assert parts == (("actor", 2, 1), ("learner", 3, 2), ("shard", 5, 1))
    elsewhere = parse_training([*flags, "--address", "10.0.0.1:6379"])
    assert plan_of(elsewhere).parts == plan_of(parse_training(["pong"])).parts == ()
    reserved = plan_of(parse_training([*flags, "--threads-per-rank", "0", "--learner-cpus", "4.5"])).parts
    assert reserved == (("actor", 2, 1), ("learner", 3, 4), ("shard", 5, 1))
    unmanaged = plan_of(parse_training([*flags, "--threads-per-rank", "-1"])).parts
    assert unmanaged == (("actor", 2, -1), ("learner", 3, -1), ("shard", 5, -1))
    learner, actor = pools.planned_processes(
        facts.PlannedRun(engine="ray", parts=(("learner", 3, 2), ("actor", 2, 1)))
    )
    assert (learner.what, learner.count, actor.count) == ("learner on Ray", 3, 2)
    assert {pool.library: pool.threads for pool in learner.pools}["torch"] == 2
    assert {pool.threads for pool in actor.pools} == {1}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("seconds", "program", "says"),
    [
        (0.1, "import time; time.sleep(60)", "did not finish within 0.1 s: the machine is busy"),
        (60, "raise SystemExit('no memory')", "pools failed: no memory"),
    ],
)
def test_a_process_that_cannot_be_looked_at_is_one_line(
    tmp_path, monkeypatch, capsys, seconds, program, says
):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(pools, "PROBE_SECONDS", seconds)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("parcade: the process that counts thread pools")
    assert says in err and err.count("\n") == 1


def test_doctor_prints_facts_and_ends_with_1_on_a_problem(capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    ranks = str(4 * available_cores())
    code = main(["doctor", "--engine", "mpi", "--ranks", ranks, "--threads-per-rank", "2", "--json"])
    printed = json.loads(capsys.readouterr().out)
    rules = {finding["rule"] for finding in printed["findings"]}
    assert code == 1 and {"threads-oversubscribed", "more-ranks-than-cores"} <= rules
    assert printed["facts"]["games"] > 50


def test_the_flags_of_a_training_are_the_planned_run(capsys, monkeypatch, without_pools):
    seen = []
    monkeypatch.setattr("parcade.doctor.machine_rules.examine", lambda facts, plan: seen.append(plan) or [])
    words = ["--preset", "pong_fast", "--engine", "mpi", "--ranks", "2", "--backend", "ale"]
    for flags in (["pong", *words], words, [*words, "breakout"]):
        assert main(["doctor", *flags, "--json"]) == 0
        assert seen.pop() == PlannedRun("mpi", 2, 1, "ale", "cpu", resolve("auto"), possible_ranks=(1, 2))
        assert json.loads(capsys.readouterr().out)["findings"] == []


def test_of_several_hosts_the_fullest_one_is_examined(tmp_path, capsys, monkeypatch, without_pools):
    seen, hosts = [], tmp_path / "hosts"
    hosts.write_text("127.0.0.1 slots=2\n127.0.0.2 slots=3\n")
    monkeypatch.setattr("parcade.doctor.machine_rules.examine", lambda facts, plan: seen.append(plan) or [])
    assert main(["doctor", "--engine", "mpi", "--ranks", "5", "--hosts", str(hosts)]) == 0
    assert seen[0].ranks == 3


def test_a_current_run_is_examined_with_its_own_plan(tmp_path, capsys, monkeypatch, without_pools):
    seen, run = [], tmp_path / "run"
    run.mkdir()
    config = parse_training(["tiny_catch", "--threads-per-rank", "2", "--precision", "bfloat16"])
    write_json(run / "config.json", to_json(config) | {"game": "a_module:Env-v0"})
    monkeypatch.setattr("parcade.doctor.machine_rules.examine", lambda facts, plan: seen.append(plan) or [])
    monkeypatch.setattr("parcade.doctor.running.look_at_run", lambda run, seconds: [])
    assert main(["doctor", "--run", str(run)]) == 0
    assert seen == [PlannedRun("local", 1, 2, "native", "cpu", "bfloat16")]


@pytest.mark.quick
def test_a_current_run_is_examined_in_a_mode_that_other_games_lack(tmp_path, monkeypatch):
    write_json(tmp_path / "config.json", to_json(parse_training(["breakout", "--mode", "8"])))
    seen = []
    monkeypatch.setattr("parcade.doctor.running.look_at_run", lambda run, seconds: [])
    monkeypatch.setattr(
        "parcade.doctor.facts.all_facts", lambda plan: seen.append(plan) or facts.quick_facts()
    )
    main(["doctor", "--run", str(tmp_path), "--json"])
    assert [plan.engine for plan in seen] == ["local"]


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes by /proc of Linux")
def test_a_doctor_that_is_ended_ends_its_probe():
    process = subprocess.Popen([sys.executable, "-m", "parcade", "doctor", "pong"])
    children, deadline = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + 60
    probes: list[Path] = []
    while not probes and time.monotonic() < deadline:
        time.sleep(0.01)
        with contextlib.suppress(OSError):  # it has just ended
            there = [Path("/proc", child) for child in children.read_text().split()]
            probes = [each for each in there if b"doctor.pools" in (each / "cmdline").read_bytes()]
    # Until it waits for the probe, the call that starts it has not returned, and no block would end it.
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S" and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert probes and not any(probe.exists() for probe in probes)


@pytest.mark.quick
def test_the_possible_ranks_of_absurdly_many_are_found_at_once():
    config = parse_training(["tiny_catch", "--engine", "mpi", "--ranks", "1000000000000"])
    assert plan_of(config).possible_ranks == (1, 2, 4, 8, 16, 32)


@pytest.mark.quick
def test_a_current_fit_is_examined_without_a_config_and_needs_no_mpi(tmp_path, monkeypatch, capsys):
    seen = []
    without_mpi = dataclasses.replace(facts.quick_facts(), mpi_library=None, mpi_launcher=None)
    ranks = [RunningProcess(f"rank {i}", 1, 1.0, 1, 1, (i,), 2**28, 0.0, 0.0) for i in range(2)]
    monkeypatch.setattr("parcade.doctor.running.look_at_run", lambda run, seconds: ranks)
    monkeypatch.setattr("parcade.doctor.facts.all_facts", lambda plan: seen.append(plan) or without_mpi)
    main(["doctor", "--run", str(tmp_path), "--json"])
    assert seen == [PlannedRun("mpi", 2)]
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert "mpi-missing" not in rules and "mpiexec-missing" not in rules
    main(["doctor", "--engine", "mpi", "--ranks", "2", "--json"])
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert "mpi-missing" in rules and "mpiexec-missing" in rules


def test_the_load_of_a_run_is_not_that_of_other_programs(tmp_path, capsys, monkeypatch, without_pools):
    run = tmp_path / "run"
    run.mkdir()
    write_json(run / "config.json", to_json(parse_training(["tiny_catch"])))
    rank = RunningProcess("rank 0", 1, 1.0, 1, 1, (0,), 2**28, 0.0, 0.0)
    monkeypatch.setattr("parcade.doctor.running.look_at_run", lambda run, seconds: [rank])
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 99.0, 99.0))
    main(["doctor", "--run", str(run)])
    assert "load 99.0" in (printed := capsys.readouterr().out) and "other programs" not in printed
    main(["doctor"])
    assert "other programs are running" in capsys.readouterr().out


BAD = {
    "no ranks": (["--ranks", "0"], "ranks"),
    "another algorithm's flag": (["breakout", "--algorithm", "dqn", "--overlap"], "dqn supports neither"),
    "ranks of one process": (["--ranks", "2"], "ranks=2 needs --engine mpi"),
    "an unknown flag": (["--rank", "2"], "unknown flag --rank; did you mean --ranks?"),
    "a flag that only doctor has": (["--jsn"], "unknown flag --jsn; did you mean --json?"),
    "a run that is not running": (["--run", "nowhere"], "no process on this machine trains in nowhere"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, says = BAD[mistake]
    assert main(["doctor", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and says in err and err.count("\n") == 1


@contextlib.contextmanager
def rank_of(run, program):
    """Register a process that runs a Python program as rank 0 of a run, once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        process.stdout.readline()
        (run / "processes").mkdir()
        here = ProcessRecord("rank", 0, process.pid, start_ticks(process.pid), socket.gethostname())
        write_record(run, here)
        yield here
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_process_of_a_run_is_found_and_its_threads_are_watched(tmp_path):
    program = (
        "import threading\ndef spin():\n    while True: sum(range(10**6))\n"
        "threading.Thread(target=spin).start()\nprint(flush=True)\nspin()"
    )
    with rank_of(tmp_path, program) as here:
        write_record(tmp_path, ProcessRecord("rank", 1, here.pid, 1, here.host))  # has ended
        (seen,) = look_at_run(tmp_path, 1.0)
        assert (seen.name, seen.pid, seen.threads) == ("rank 0", here.pid, 2)
        assert seen.cores_used > 0 and seen.affinity == tuple(sorted(os.sched_getaffinity(0)))


def test_the_context_switches_of_all_threads_are_counted(tmp_path):
    program = (
        "import threading, time\ndef nap():\n    while True: time.sleep(0.002)\n"
        "threading.Thread(target=nap).start()\nprint(flush=True)"
    )
    with rank_of(tmp_path, program):
        (seen,) = look_at_run(tmp_path, 1.0)
        assert seen.voluntary_switches > 10, "its first thread waits for the second"


@pytest.mark.quick
def test_a_run_whose_processes_cannot_be_watched_is_not_said_to_have_no_problems(tmp_path, monkeypatch):
    (tmp_path / "processes").mkdir()
    write_record(tmp_path, own_record("rank", 0))
    monkeypatch.setattr("parcade.doctor.running._sample", lambda pid: None)
    with pytest.raises(UsageError, match="no process of .* could be watched"):
        look_at_run(tmp_path, 0.01)


def test_a_process_that_waits_for_its_children_is_not_said_to_do_nothing(tmp_path):
    """A training waits so while the consoles are compiled."""
    child = "print(flush=True)\nwhile True: sum(range(10**6))"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with rank_of(tmp_path, program):
        (seen,) = look_at_run(tmp_path, 1.0)
        assert seen.child_cores_used > 0
        works = dataclasses.replace(seen, cores_used=0.0, child_cores_used=1.0)
        assert list(examine_running([works], cores=2.0)) == []


@pytest.mark.quick
def test_only_a_run_on_ray_has_processes_without_records(tmp_path):
    assert not has_parts_on_ray(tmp_path), "a run of parcade.data_parallel has no config.json"
    for engine, expected in (("local", False), ("ray", True)):
        (tmp_path / "config.json").write_text(json.dumps({"run": {"engine": engine}}))
        assert has_parts_on_ray(tmp_path) is expected


@pytest.mark.quick
@pytest.mark.parametrize("end", ["ended", "left"])
def test_a_process_that_lives_on_after_its_work_is_not_watched(tmp_path, end):
    (tmp_path / "processes").mkdir()
    write_record(tmp_path, dataclasses.replace(own_record("rank", 0), **{end: True}))
    with pytest.raises(UsageError, match="no process on this machine trains in"):
        look_at_run(tmp_path, 0.0)


def test_training_warns_of_too_many_threads_in_one_line(tmp_path, capsys):
    threads = str(8 * available_cores())
    flags = ["--total-frames", "64", "--unroll-length", "4", "--num-envs", "4", "--threads-per-rank", threads]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    problems = [line for line in lines if line.startswith("problem")]  # a pinned process is also warned
    assert len(problems) == 1 and f"{threads} threads would compute on" in problems[0]
    flags = [*flags[:-1], "1", "--run-dir", str(tmp_path / "sane")]
    assert main(["train", "tiny_catch", *flags]) == 0
    assert "threads would compute" not in capsys.readouterr().out


def test_a_rank_is_examined_with_the_ranks_and_cores_of_its_host(monkeypatch):
    config = TrainConfig("tiny_catch", RunConfig(engine="mpi", ranks=4096))
    examined = []
    monkeypatch.setattr(
        "parcade.doctor.start.examine",
        lambda facts, plan, rules: examined.append((plan.ranks, facts.usable_cores)) or [],
    )
    warn_at_start(config, 2, (4, 5), print)
    assert examined == [(2, (4, 5))]


@pytest.mark.parametrize(
    ("start_states", "device", "lines"), [("exact", "cuda", 1), ("cached", "cuda", 0), ("exact", "cpu", 0)]
)
def test_training_on_a_gpu_warns_of_starts_that_all_consoles_wait_for(start_states, device, lines):
    config = TrainConfig(
        "pong", RunConfig(device=device, env_device=device), EnvSettings(start_states=start_states)
    )
    said = []
    warn_at_start(config, 1, (0, 1), said.append)
    assert len([line for line in said if "use --start-states cached" in line]) == lines


@pytest.mark.quick
@pytest.mark.parametrize(
    ("program", "answer", "says"),
    [
        (None, None, None),
        ("/usr/bin/sinfo", "slurm 22.05.8", "slurm 22.05.8"),
        ("/usr/bin/sinfo", None, "installed, but sinfo --version fails"),
    ],
)
def test_a_slurm_without_its_configuration_is_not_called_missing(monkeypatch, program, answer, says):
    monkeypatch.setattr(facts.shutil, "which", lambda name: program)
    monkeypatch.setattr(facts, "ask", lambda *command: answer)
    assert facts._slurm() == says
