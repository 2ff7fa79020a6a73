"""The script that parcade slurm writes, and the requests it refuses, without a Slurm."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.commands.resume import resume_flags, start_of
from parcade.config import load_config

pytestmark = pytest.mark.quick
PARTS = "-- train tiny_catch --algorithm a3c --engine ray --num-learners 4".split()
JOB = ["--", "train", "tiny_catch", "--engine", "mpi", "--ranks", "4", "--num-envs", "8"]


@pytest.fixture
def written(tmp_path, capsys):
    """Writes a script, checks its syntax with bash, and returns its text."""

    def write(*flags, job=JOB):
        path = tmp_path / "job.sbatch"
        run = str(tmp_path / "the run")
        assert main(["slurm", "--script", str(path), *flags, *job, "--run-dir", run]) == 0
        assert f"submit it with: sbatch {path}" in capsys.readouterr().out
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=120)
        return path.read_text()

    return write


def directives(text):
    """The directives as sbatch parses them, one word per line."""
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    words = [shlex.split(line) for line in lines]
    assert all(len(line) == 1 for line in words)
    return [word for (word,) in words]


def test_the_script_asks_for_a_task_a_rank_and_a_warning_before_the_limit(written):
    asked = directives(written("--nodes", "2", "--time", "90m", "--warning", "2m", "--partition", "long"))
    for word in (
        "--nodes=2",
        "--ntasks=4",
        "--ntasks-per-node=2",
        "--time=90",
        "--signal=B:USR1@120",
        "--requeue",
    ):
        assert word in asked
    assert "--partition=long" in asked and "--open-mode=append" in asked


def test_a_job_of_one_process_asks_for_one_task(written):
    assert "--ntasks=1" in directives(written(job=["--", "train", "tiny_catch"]))


def test_a_job_of_parts_starts_a_ray_cluster_on_its_nodes(written):
    job = "-- train tiny_catch --algorithm a3c --engine ray --num-learners 4 --interface eth1".split()
    text = written("--nodes", "2", "--cpus-per-rank", "3", job=job)
    asked = directives(text)
    for word in ("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=3"):
        assert word in asked
    assert '--engine ray --num-learners 4 --interface eth1 --address auto --run-dir "$run"' in text
    assert 'head "$port" eth1 &' in text and 'worker "$RAY_ADDRESS" eth1 &' in text


@pytest.mark.parametrize("job_id", [1, 11_999, 12_000, 4_012_768, 67_108_863])
def test_the_port_of_a_cluster_is_none_that_the_kernel_gives_to_connections(written, job_id):
    (line,) = (
        line for line in written("--cpus-per-rank", "5", job=PARTS).splitlines() if line.startswith("port=")
    )
    job = {**os.environ, "SLURM_JOB_ID": str(job_id)}
    port = subprocess.run(["bash", "-c", f'{line}; echo "$port"'], env=job, capture_output=True, timeout=120)
    assert int(port.stdout) == 20_000 + job_id % 12_000 < 32_768


def test_the_first_start_is_the_users_own_command_and_later_ones_resume(written):
    text = written()
    assert (
        "-m parcade train tiny_catch --engine mpi --ranks 4 --num-envs 8 --threads-per-rank 1 "
        '--run-dir "$run"' in text
    )
    assert '-m parcade train --resume "$run"' in text
    assert "the run'" in text  # a name with a space is quoted


def test_further_words_reach_sbatch(written):
    asked = directives(written("--extra=--mem=8G --exclusive --comment='two words'"))
    assert {"--mem=8G", "--exclusive", "--comment=two words"} <= set(asked)


def test_the_log_has_a_directory_to_be_opened_in_and_a_name_that_slurm_reads_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", "--script", "job.sbatch", "--", "train", "tiny_catch"]) == 0
    (log,) = [
        Path(word.split("=", 1)[1])
        for word in directives(Path("job.sbatch").read_text())
        if "--output" in word
    ]
    assert log.parent == tmp_path / "runs" and log.parent.is_dir()
    run = str(tmp_path / "50% of it" / "the run")
    assert main(["slurm", "--script", "job.sbatch", "--", "train", "tiny_catch", "--run-dir", run]) == 0
    assert f"--output={tmp_path}/50%% of it/the run.slurm.log" in directives(Path("job.sbatch").read_text())
    assert Path(run).parent.is_dir()


def test_a_run_directory_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    run = str(tmp_path / "file" / "run")
    assert (
        main(
            ["slurm", "--script", str(tmp_path / "job.sbatch"), "--", "train", "tiny_catch", "--run-dir", run]
        )
        == 2
    )
    err = capsys.readouterr().err
    assert "cannot be created (" in err and "use another --run-dir" in err and err.count("\n") == 1


def test_a_line_break_does_not_end_a_directive(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", "--partition", "a\nb", "--", "train", "tiny_catch"]) == 2
    err = capsys.readouterr().err
    assert "'--partition=a\\nb' has a line break, which sbatch does not take" in err and err.count("\n") == 1
    assert not list(tmp_path.rglob("*.sbatch"))


PYTHON = """#!/bin/bash
case "$*" in
    *"ray_node address"*) echo 10.0.0.1 ;;
    *"ray_node wait"*) exit $WAIT_CODE ;;
    *"ray_node"*) ;;
    *"-c import"*) echo token ;;
    *" train "*)
        echo "$*" >> "$LOG"
        sleep 1  # imports
        mkdir -p "$RUN"
        rm -f "$RUN/stop"  # as a start or a resume does
        while [ ! -e "$RUN/stop" ]; do sleep 0.1; done
        echo '{"finished_by": "stopped"}' > "$RUN/result.json" ;;
esac
"""
SCONTROL = """#!/bin/bash
[ "$1" = requeue ] && echo "$*" >> "$LOG" || echo node1
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def job(tmp_path, written):
    """Starts a written script with stand-ins for Slurm's programs and for the training; ends all of it."""
    started = []

    def start(words, before_wait="", **variables):
        text = written("--cpus-per-rank", "5", job=words)
        text = text.replace('wait "$child"', f'{before_wait}wait "$child"').splitlines()
        for name, program in (("python", PYTHON), ("scontrol", SCONTROL), ("srun", SRUN)):
            (tmp_path / name).write_text(program)
            (tmp_path / name).chmod(0o755)
        text = [f"python={tmp_path}/python" if line.startswith("python=") else line for line in text]
        (tmp_path / "job.sbatch").write_text("\n".join(text))
        known = {
            "LOG": str(tmp_path / "log"), "RUN": str(tmp_path / "the run"), "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1",
        }  # fmt: skip
        paths = f"{tmp_path}:{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", str(tmp_path / "job.sbatch")],
            env={**os.environ, "PATH": paths, **known, **variables},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("before_wait", ["", "sleep 0.5; "])
def test_a_warning_while_the_training_starts_is_not_lost(job, tmp_path, before_wait):
    process = job(["--", "train", "tiny_catch"], before_wait)
    deadline = time.monotonic() + 120
    while not (tmp_path / "log").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "time limit reached; requeueing the job" in out
    assert (tmp_path / "log").read_text().splitlines()[-1] == "requeue 7"


def test_a_cluster_that_does_not_form_is_tried_again_and_a_mistake_is_not(job, tmp_path):
    process = job(PARTS, WAIT_CODE="1")
    out, _ = process.communicate(timeout=120)
    assert "the job failed; requeueing it" in out
    assert (tmp_path / "log").read_text() == "requeue 7\n", "it was not requeued, or has trained"
    (tmp_path / "log").unlink()
    process = job(PARTS, WAIT_CODE="2")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and not (tmp_path / "log").exists()


def test_a_job_on_gpus_asks_for_them(written):
    # A machine without a GPU writes jobs for nodes that have some.
    cuda = ["--", "train", "pong", "--device", "cuda"]
    assert "--gpus-per-node=1" in directives(written(job=cuda))
    ranks = [*cuda, "--engine", "mpi", "--ranks", "4"]
    assert "--gpus-per-node=2" in directives(written("--nodes", "2", job=ranks))
    own = directives(written("--extra=--gres=gpu:a100:4", job=ranks))
    assert "--gres=gpu:a100:4" in own and not any("gpus-per-node" in word for word in own)
    parts = [*PARTS, "--learner-gpus", "0.5", "--device", "cuda"]
    assert "--gpus-per-node=2" in directives(written("--cpus-per-rank", "5", job=parts))
    # A part is on one node: four learners with 2 GPUs each take two nodes' 4, or three nodes' 4, not 8 / 3.
    parts = [*PARTS, "--learner-gpus", "2", "--device", "cuda"]
    for nodes, gpus in ((1, 8), (2, 4), (3, 4), (4, 2), (8, 2)):
        job = written("--nodes", str(nodes), "--cpus-per-rank", "5", job=parts)
        assert f"--gpus-per-node={gpus}" in directives(job)
    assert not any(word.startswith("--gpus") for word in directives(written()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected the job after --"),
        (["--", "eval", "runs/x"], "expected the job after --"),
        (["--extra=--comment='two", *JOB], "is not a list of arguments (No closing quotation)"),
        (["--", "train", "--resume", "runs/x"], "the job resumes automatically"),
        (["--", "train", "pongg"], "unknown game 'pongg'"),
        (["--nodes", "8", *JOB], "nodes=8 for 4 rank(s); use 1 to 4 nodes"),
        (["--nodes", "2", "--", "train", "tiny_catch"], "nodes=2 needs --engine mpi or ray"),
        (
            ["--nodes", "2", *PARTS],
            "the parts reserve 4.5 CPUs, the largest 1, and do not fit on 2 node(s) with --cpus-per-rank 1; "
            "use --cpus-per-rank 3",
        ),
        ([*PARTS, "--address", "auto"], "this job starts its own; leave it out"),
        (["--time", "2m", "--warning", "3m", *JOB], "warning=3m does not fit into time=2m"),
        (["--time", "24h", "--warning", "19h", *JOB], "warning=19h is more than the 65,535 s that sbatch"),
        (
            ["--", "train", "tiny_catch", "--engine", "mpi", "--ranks", "64"],
            "num_envs=32 is fewer than world_size=64",
        ),
        (["--", "train", "pong", "--action-subset", "9"], "expected actions of this game, 0 to 5"),
        (["--", "train", "pong", "--start-states", "nope"], "there is no file nope"),
        (
            ["--", "train", "pong", "--from", "zoo:breakout"],
            "the weights of zoo:breakout do not fit this run",
        ),
        (
            ["--", "train", "tiny_catch", "--run-dir", "/etc/hosts"],
            "(Not a directory); use another --run-dir",
        ),
    ],
)
def test_a_job_that_could_not_run_is_refused_before_it_queues(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_jobs_written_in_the_same_second_have_a_directory_and_a_script_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parcade.train.default_run_directory", lambda config: Path("runs/now"))
    for rate in ("0.001", "0.0001"):
        assert main(["slurm", "--", "train", "tiny_catch", "--learning-rate", rate]) == 0
    texts = {path.name: path.read_text() for path in (tmp_path / "runs").glob("*.sbatch")}
    assert texts.keys() == {"now.sbatch", "now-2.sbatch"}
    assert "--learning-rate 0.001 " in texts["now.sbatch"]
    assert "--learning-rate 0.0001 " in texts["now-2.sbatch"]
    assert f"run={tmp_path / 'runs' / 'now-2'}\n" in texts["now-2.sbatch"]


def test_the_directory_of_another_run_is_refused(tmp_path, capsys):
    run = tmp_path / "run"
    train = ["train", "tiny_catch", "--num-envs", "4", "--unroll-length", "8", "--run-dir", str(run)]
    assert main([*train, "--total-frames", "64"]) == 0
    job = ["slurm", "--script", str(tmp_path / "job.sbatch"), "--"]
    assert main([*job, *train, "--total-frames", "4000"]) == 0, "the run itself may go on"
    capsys.readouterr()
    assert main([*job, "train", "tiny_memory", "--run-dir", str(run)]) == 2
    assert "holds a run with game=tiny_catch, not tiny_memory" in capsys.readouterr().err
    assert main([*job, *train, "--learning-rate", "1e-4"]) == 2
    assert "holds a run with other settings (hyper-parameters)" in capsys.readouterr().err


def test_a_job_that_resumes_a_run_takes_the_new_settings_that_a_resume_takes(tmp_path, capsys):
    run = tmp_path / "run"
    train = ["train", "tiny_catch", "--num-envs", "4", "--unroll-length", "8", "--run-dir", str(run)]
    assert main([*train, "--total-frames", "64"]) == 0
    script = tmp_path / "job.sbatch"
    job = ["slurm", "--script", str(script), "--"]
    assert main([*job, *train, "--total-frames", "4000", "--target-score=None"]) == 0
    assert '--resume "$run" --total-frames 4000 --target-score None &' in script.read_text()
    capsys.readouterr()
    assert main([*job, *train, "--total-frames", "64"]) == 2
    assert "already played 64 of 64 frames; to continue, set a higher" in capsys.readouterr().err


def test_a_run_of_another_engine_is_refused_and_one_of_other_ranks_continues_on_those_of_the_job(
    tmp_path, capsys
):
    run = tmp_path / "run"
    train = ["train", "tiny_catch", "--num-envs", "4", "--unroll-length", "8", "--run-dir", str(run)]
    assert main([*train, "--total-frames", "64"]) == 0
    job = ["slurm", "--script", str(tmp_path / "job.sbatch"), "--"]
    capsys.readouterr()
    assert main([*job, *train, "--engine", "mpi", "--ranks", "2"]) == 2
    assert f"{run} holds a run with engine=local, not mpi" in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    config["run"] |= {"engine": "mpi", "ranks": 4}
    (run / "config.json").write_text(json.dumps(config))
    more = ["--engine", "mpi", "--total-frames", "640", "--ranks"]
    assert main([*job, *train, *more, "2"]) == 0
    text = (tmp_path / "job.sbatch").read_text()
    (resume,) = (line for line in text.splitlines() if "train --resume" in line)
    assert "--ranks 2" in resume and "--total-frames 640" in resume and "--ntasks=2" in directives(text)
    assert main([*job, *train, *more, "3"]) == 2  # as for a new run
    assert "num_envs=4 is not divisible by world_size=3" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    assert main([*job, *train, "--engine", "mpi", "--ranks", "2"]) == 0, "the job starts it from scratch"


def test_a_job_of_parts_can_resume_what_its_first_start_left(tmp_path):
    run = tmp_path / "run"
    small = ["--num-envs", "4", "--unroll-length", "4", "--run-dir", str(run)]
    train = ["train", "tiny_catch", "--algorithm", "impala", *small, "--total-frames"]
    assert main([*train, "64", "--engine", "serial"]) == 0
    config = json.loads((run / "config.json").read_text())
    config["run"]["engine"] = "ray"
    (run / "config.json").write_text(json.dumps(config))
    job = ["slurm", "--script", str(tmp_path / "job.sbatch"), "--cpus-per-rank", "8", "--"]
    assert main([*job, *train, "128", "--engine", "ray"]) == 0
    (resume,) = (w for w in (tmp_path / "job.sbatch").read_text().splitlines() if "--resume" in w)
    words = ["--resume", str(run), *resume.split('"$run"')[1].replace("&", "").split()]
    assert "--engine ray" in resume
    config = start_of(run, load_config(run, ""), resume_flags(words)).config
    assert (config.run.engine, config.run.total_frames) == ("ray", 128)


def started(tmp_path, text, code, **environment):
    """Run a script whose Python only exits with ``code``; return its exit code and its calls."""
    calls = tmp_path / "calls"
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, end in (("python", code), ("scontrol", 0)):
        (tools / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {shlex.quote(str(calls))}\nexit {end}\n')
        (tools / name).chmod(0o755)
    lines = [
        f"python={shlex.quote(str(tools / 'python'))}" if line.startswith("python=") else line
        for line in text.splitlines()
    ]
    path = os.environ["PATH"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], timeout=120, capture_output=True,
        env={"PATH": f"{tools}:{path}", "SLURM_JOB_ID": "7", **environment},
    )  # fmt: skip
    found = calls.read_text()
    calls.unlink()
    return done.returncode, found


def test_a_run_whose_name_has_signs_of_patterns_is_resumed(tmp_path):
    run = tmp_path / "run[1]*"
    script = tmp_path / "job.sbatch"
    job = ["train", "tiny_catch", "--run-dir", str(run)]
    assert main(["slurm", "--script", str(script), "--", *job]) == 0
    (run / "checkpoints" / "000100").mkdir(parents=True)
    (run / "checkpoints" / "000100" / "checkpoint.json").write_text("{}")
    code, calls = started(tmp_path, script.read_text(), 0)
    assert code == 0 and f"train --resume {run}" in calls


@pytest.mark.parametrize("code", [1, 137])
def test_only_failures_count_as_failures_and_killed_processes_do(written, tmp_path, code):
    text = written("--restarts", "2")
    requeued = lambda calls: "scontrol requeue 7" in calls  # noqa: E731
    for restart, expected in ((0, True), (5, True), (6, False)):
        ended, calls = started(tmp_path, text, code, SLURM_RESTART_COUNT=str(restart))
        assert requeued(calls) == expected and ended == (0 if expected else code), restart
    ended, calls = started(tmp_path, text, code, SLURM_RESTART_COUNT="0")
    assert requeued(calls), "a new job counts from zero"
    for mistake in (2, 130):
        ended, calls = started(tmp_path, text, mistake, SLURM_RESTART_COUNT="0")
        assert ended == mistake and not requeued(calls)


def test_where_there_is_no_slurm_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    script = str(tmp_path / "job.sbatch")
    assert main(["slurm", "--submit", "--script", script, *JOB, "--run-dir", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err.strip()
    expected = "parcade: sbatch is not on PATH, so Slurm is not available here; on a login node, run: sbatch "
    assert err == expected + script
