"""Measured work, the model of the Allreduce, and the simulation, against hand-computed cases."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from points import FIXED, PER_ENV, point

from parcade.errors import UsageError
from parcade.scale import on_ranks
from parcade.scale.allreduce_model import AllreduceModel, Link, Timing, fit_model, relative_errors
from parcade.scale.rank_work import RankWork, rank_work_of
from parcade.scale.simulate import simulate

pytest.importorskip("scipy", reason="the extra parcade[reports] is not installed")
pytestmark = pytest.mark.quick

FREE = AllreduceModel((0.0,) * 5, cores=4)


def test_a_ranks_work_is_split_into_what_grows_with_its_environments_and_what_does_not():
    shared = point(4, 32, shares_cores=True, relative=((9.0, 9.0, 9.0),))
    work = rank_work_of([point(1, 32), point(2, 32), shared])
    assert work.fixed[:2] == pytest.approx(FIXED[:2]) and work.per_env[:2] == pytest.approx(PER_ENV[:2])
    assert work.segments(64, first=True)[0, :2] == pytest.approx((FIXED + 64 * PER_ENV)[:2])
    assert work.steps_per_env == 64 and work.call_bytes.tolist() == [1000, 8]
    assert "by the CPU clock" in work.stands_on and "4 rank(s)" not in work.stands_on


def test_with_several_threads_the_work_is_taken_by_wall_clock():
    one, two = rank_work_of([point(1, 32)]), rank_work_of([point(1, 32, threads=2)])
    first = [each.segments(32, first=True)[0, 0] for each in (one, two)]
    assert first[1] == pytest.approx(2 * first[0]) and "wall clock" in two.stands_on


def test_iterations_that_all_start_with_a_report_have_the_same_segments_as_others():
    """Iterations of one rank are longer than the time between reports, those of two ranks are not."""
    reports, plain = point(1, 32), point(2, 32)
    for rank in reports.profiles[0].ranks:
        rank.segment_bytes = [8, 8, *rank.segment_bytes]
        rank.cpu_segments = [[0.01, 0.02, row[0] - 0.03, *row[1:]] for row in rank.cpu_segments]
    for points in ([reports, plain], [plain, reports]):
        work = rank_work_of(points)
        assert work.fixed[:2] == pytest.approx(FIXED[:2]) and work.per_env[:2] == pytest.approx(PER_ENV[:2])
        assert work.call_bytes.tolist() == [1000, 8]


def test_parts_need_a_size_with_a_core_for_every_rank():
    with pytest.raises(UsageError, match="include 1 in --ranks"):
        rank_work_of([point(4, 32, shares_cores=True)])


def plain_work(relative=((1.0, 1.0),), first=None):
    first = np.ones(len(relative), bool) if first is None else np.array(first)
    fixed, call_bytes = np.array([1.0, 0.5]), np.array([4e6])
    return RankWork(fixed, np.zeros(2), np.array(relative), first, call_bytes, 10.0, "hand")


def test_ranks_that_work_alike_and_talk_for_nothing_scale_perfectly():
    for ranks in (1, 4, 1000):
        found = simulate(plain_work(), FREE, ranks=ranks, num_envs=8 * ranks, ranks_per_host=4)
        assert found.steps_per_second == pytest.approx(80 * ranks / 1.5)
        assert found.work_share == pytest.approx(1.0) and found.wait_share == pytest.approx(0.0)


def test_a_thousand_ranks_wait_for_the_slowest_of_each_stretch():
    work = plain_work(relative=((1.0, 1.0), (3.0, 1.0)))
    found = simulate(work, FREE, ranks=1000, num_envs=1000, ranks_per_host=4)
    assert found.steps_per_second == pytest.approx(10 * 1000 / 3.5)
    assert found.wait_share == pytest.approx(1 - 2.5 / 3.5, rel=0.02)


def test_a_simulation_takes_no_memory_per_rank():
    work = plain_work(relative=((1.0, 1.0), (3.0, 1.0), (1.0, 1.0)), first=[True, False, False])
    found = simulate(work, FREE, ranks=10**17, num_envs=10**18, ranks_per_host=4)
    assert found.steps_per_second == pytest.approx(10 * 10**18 / 3.5)
    assert found.wait_share == pytest.approx(1 - 2.5 / 3.5, rel=1e-6)


def test_simulated_ranks_are_as_slow_as_ranks_that_draw_one_by_one():
    """Of 3 ranks, the first and one of two others: the mean of the slowest by hand.

    Others draw 1 or 3 s for the first stretch: the slowest of two takes 3 s in 3 of 4 iterations.
    """
    work = plain_work(relative=((1.0, 1.0), (1.0, 1.0), (3.0, 1.0)), first=[True, False, False])
    found = simulate(work, FREE, ranks=3, num_envs=3, ranks_per_host=4)
    assert found.steps_per_second == pytest.approx(10 * 3 / (0.25 * 1.5 + 0.75 * 3.5), rel=0.03)
    assert found.work_share == pytest.approx((1.5 + 2 * 2.5) / 3 / 3.0, rel=0.03)


def test_what_only_the_first_rank_does_holds_all_up_once_and_counts_though_it_is_rare():
    """A report in one of ten iterations takes ten times as long: 1.5 s an iteration and 9 s every tenth."""
    rows = [(1.0, 1.0)] * 9 + [(10.0, 1.0)] + [(1.0, 1.0)] * 5
    work = plain_work(relative=rows, first=[True] * 10 + [False] * 5)
    for ranks in (1, 16, 1000):
        found = simulate(work, FREE, ranks=ranks, num_envs=ranks, ranks_per_host=4)
        assert found.steps_per_second == pytest.approx(10 * ranks / (1.5 + 0.9), rel=0.15)


def test_more_ranks_than_cores_take_turns_unless_they_sleep():
    options = {"ranks": 8, "num_envs": 8, "ranks_per_host": 8}
    awake = simulate(plain_work(), FREE, **options)
    asleep = simulate(plain_work(), FREE, **options, sleeping=True)
    assert asleep.steps_per_second == pytest.approx(2 * awake.steps_per_second)


def test_the_link_between_hosts_adds_latency_and_bandwidth():
    model = AllreduceModel((0.0,) * 5, cores=4, link=Link(1e-5, 1e9))
    # 16 hosts: 2 log2(16) x 10 us + 2 x 4 MB x 15/16 / 1 GB/s
    assert model.seconds(64, 4e6, 4) == pytest.approx(8e-5 + 7.5e-3)
    assert model.seconds(4, 4e6, 4) == 0.0
    found = simulate(plain_work(), model, ranks=64, num_envs=64, ranks_per_host=4)
    assert found.hosts == 16 and found.communicate_share == pytest.approx(7.58e-3 / (1.5 + 7.58e-3))


def test_the_allreduce_model_is_found_again_from_its_own_timings():
    true = AllreduceModel((2e-6, 3e-6, 4e-10, 1e-9, 5e-4), cores=2)
    timings = [Timing(n, b, true.seconds(n, b, n)) for n in (2, 4, 8) for b in (8, 4096, 65536, 2**21)]
    found = fit_model([*timings, Timing(1, 8, 1e-7)], cores=2)
    assert max(map(abs, relative_errors(found, timings))) < 1e-6
    assert found.seconds(16, 2**23, 16) == pytest.approx(true.seconds(16, 2**23, 16), rel=1e-4)
    assert found.seconds(1, 2**23, 1) == 0.0  # one rank has nobody to add to
    assert len(relative_errors(found, [*timings, Timing(1, 8, 1e-7)])) == len(timings)
    with pytest.raises(ValueError, match="2 ranks or more"):
        fit_model([Timing(1, 8, 1e-7)], cores=2)


def test_ranks_with_two_threads_need_two_cores_each():
    """FREE has 4 cores: 4 ranks of 2 threads on one host take turns, on two hosts they do not."""
    options = {"ranks": 4, "num_envs": 32, "threads": 2}
    crowded = simulate(plain_work(), FREE, ranks_per_host=4, **options)
    spread = simulate(plain_work(), FREE, ranks_per_host=2, **options)
    assert spread.steps_per_second == pytest.approx(2 * crowded.steps_per_second)
    assert (crowded.hosts, spread.hosts) == (1, 2)


def test_a_job_beyond_its_limit_leaves_neither_process_nor_pipe(monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(RuntimeError, match="did not end within 0 s"):
        on_ranks._run([sys.executable, "-c", "import time; time.sleep(600)"], 0.1)
    (process,) = started
    assert process.returncode is not None and process.stdout.closed


def test_a_signal_ends_a_job_and_does_not_leave_a_wait_in_the_middle(monkeypatch):
    """An exception that leaves a wait of Popen may leave its lock held, and then later waits never end."""
    processes, raised, communicate = [], [], subprocess.Popen.communicate

    def interrupted_communicate(process, *arguments, **options):
        try:
            if process not in processes:
                processes.append(process)
                signal.raise_signal(signal.SIGINT)
            return communicate(process, *arguments, **options)
        except KeyboardInterrupt:
            raised.append(process)
            raise

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted_communicate)
    with pytest.raises(KeyboardInterrupt):
        on_ranks._run([sys.executable, "-c", "import time; time.sleep(600)"], 300.0)
    (process,) = processes
    assert process.returncode == -signal.SIGTERM and process.stdout.closed and not raised
