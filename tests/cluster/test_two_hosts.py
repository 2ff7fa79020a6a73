"""Two hosts with separate addresses: jobs on both, and failures of the link or of a host."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import HANGING, HARD_LIMIT_SECONDS, ROOT, TrainingJob, mpi_programs, newest_frames, resume
from nethosts import NETWORK, net_hosts  # noqa: F401

pytestmark = pytest.mark.cluster


def host_flags(net_hosts, *slots):  # noqa: F811
    file = str(net_hosts.host_file(*slots))
    return [
        "--ranks", "2", "--hosts", file, "--network-interface", NETWORK,
        "--remote-shell", str(net_hosts.remote_shell),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_job_runs_over_two_hosts_and_its_ranks_agree(name, net_hosts, tmp_path):  # noqa: F811
    shell = ["--remote-shell", f"env OF_THE_SHELL=1 {net_hosts.remote_shell}"]
    flags = [*host_flags(net_hosts, 1, 1)[:-2], *shell, "--report-seconds", "0.01", "--total-frames", "2048"]
    with TrainingJob(mpi_programs(name), tmp_path / "run", flags=flags) as job:
        _, err = job.finish()
    assert job.process.returncode == 0, err
    assert [record.host for record in job.records()] == ["node1", "node2"]
    result = json.loads((job.run / "result.json").read_text())
    # Every report compares the parameters of both ranks bit for bit.
    assert result["frames"] == 2048 and len((job.run / "metrics.jsonl").read_text().splitlines()) > 2


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_silent_link_is_named_and_the_job_goes_on_once_it_is_healed(name, net_hosts, tmp_path):  # noqa: F811
    programs = mpi_programs(name)
    try:
        with TrainingJob(programs, tmp_path / "run", flags=[*HANGING, *host_flags(net_hosts, 1, 1)]) as job:
            job.wait_for_checkpoint()
            net_hosts.silence(2)
            _, err = job.finish()
    finally:
        net_hosts.heal(2)
    assert job.process.returncode == 1
    assert "the link between hosts node1, node2 is silent" in err
    assert f"resume with: parcade train --resume {job.run}" in err
    stood = newest_frames(job.run)
    assert resume(programs, job.run, "--total-frames", str(stood + 1024))["frames"] > stood


def test_a_dead_host_ends_the_job_and_it_goes_on_without_it(net_hosts, tmp_path):  # noqa: F811
    programs = mpi_programs("openmpi")
    try:
        with TrainingJob(programs, tmp_path / "run", flags=[*HANGING, *host_flags(net_hosts, 1, 1)]) as job:
            job.wait_for_checkpoint()
            net_hosts.kill(2)
            _, err = job.finish()
        assert job.process.returncode == 1
        assert f"resume with: parcade train --resume {job.run}" in err
        stood = newest_frames(job.run)
        # The dead host is refused by name before anything starts.
        code, err = refused(programs, "--resume", str(job.run))
        assert (
            code == 2
            and err.startswith("parcade: host 10.77.0.2 cannot start ")
            and "no route to host" in err
        )
        rest = str(net_hosts.host_file(2))
        result = resume(programs, job.run, "--total-frames", str(stood + 1024), "--hosts", rest)
        assert result["frames"] > stood
        assert {record.host for record in job.records()} == {"node1"}
    finally:
        net_hosts.up()


def test_a_host_with_other_code_is_refused_by_name(net_hosts, tmp_path):  # noqa: F811
    other = tmp_path / "other"
    shutil.copytree(ROOT / "parcade", other / "parcade", ignore=shutil.ignore_patterns("__pycache__"))
    changed = other / "parcade" / "__init__.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    shell = tmp_path / "shell"
    change = f'case $1 in 10.77.0.2) set -- "$1" "env PYTHONPATH={other} ${{2#env PYTHONPATH=* }}";; esac'
    shell.write_text(f'#!/bin/bash\n{change}\nexec {net_hosts.remote_shell} "$@"\n')
    shell.chmod(0o755)
    flags = host_flags(net_hosts, 1, 1)[:-1] + [str(shell)]
    code, err = refused(
        mpi_programs("openmpi"), "tiny_catch", "--engine", "mpi", *flags, "--run-dir", str(tmp_path / "run")
    )
    assert code == 2 and err.startswith("parcade: host 10.77.0.2 has code of parcade ")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_hosts_do_not_share_is_refused(net_hosts):  # noqa: F811
    run = Path("/dev/shm/parcade-not-shared")  # not shared: every host has its own memory
    flags = ["--engine", "mpi", *host_flags(net_hosts, 1, 1), "--run-dir", str(run)]
    code, err = refused(mpi_programs("openmpi"), "tiny_catch", *flags)
    assert code == 2
    assert f"parcade: run directory {run} is not visible on host node1, node2; " in err
    assert "use a --run-dir that all hosts share" in err
    assert not run.exists()


def refused(programs, *words):
    """The exit code and the error output of a training that does not start."""
    command = [programs.python, "-m", "parcade", "train", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HARD_LIMIT_SECONDS
    )
    return done.returncode, done.stderr.strip()


def test_gloo_learns_over_the_chosen_interface_at_a_limited_rate(net_hosts, tmp_path):  # noqa: F811
    """Two hosts at 20 megabits: the fit equals that of a single process and uses only eth0."""
    program = (
        "import sys, torch, torch.nn.functional as F\n"
        "from torch.utils.data import TensorDataset\n"
        "from pathlib import Path\n"
        "from parcade.data_parallel import FitConfig, connect, fit\n"
        "x = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))\n"
        "torch.manual_seed(0)\n"
        "module = torch.nn.Linear(64, 2)\n"
        "exchange = connect(network_interface=sys.argv[1])\n"
        "fit(module, TensorDataset(x, (x.sum(1) > 0).long()), F.cross_entropy,\n"
        "    FitConfig(epochs=3, batch_size=32), exchange=exchange,\n"
        "    optimizer=lambda p: torch.optim.SGD(p, 0.5), run=Path(sys.argv[2]))\n"
        "exchange.close()\n"
    )
    path = tmp_path / "program.py"
    path.write_text(program)
    net_hosts.limit_rate(20)
    common = (
        "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29511 --rdzv-id parcade"
    )
    words = [sys.executable, "-m", "torch.distributed.run", *common.split()]
    run = tmp_path / "run"
    processes = [
        subprocess.Popen(
            [
                str(net_hosts.remote_shell),
                f"node{i}",
                "env",
                f"PYTHONPATH={ROOT}",
                "OMP_NUM_THREADS=1",
                "GLOO_SOCKET_IFNAME=eth0",
            ]
            + [*words, "--local-addr", f"10.77.0.{i}", str(path), "eth0", str(run)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for i in (1, 2)
    ]
    try:
        for process in processes:
            _, err = process.communicate(timeout=HARD_LIMIT_SECONDS)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    code = subprocess.run(
        [sys.executable, str(path), "lo", str(tmp_path / "alone")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=HARD_LIMIT_SECONDS,
    ).returncode
    assert code == 0
    import safetensors.torch
    import torch

    both, alone = (safetensors.torch.load_file(d / "module.safetensors") for d in (run, tmp_path / "alone"))
    torch.testing.assert_close(both["weight"], alone["weight"])
