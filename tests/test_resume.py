"""An interrupted and resumed run ends bit-identical to an uninterrupted one."""

import errno
import json
import os

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from parcade.algorithms.table import ALGORITHMS
from parcade.cli import main
from parcade.config import RunConfig, TrainConfig, from_json, to_json
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.files.kept_policies import kept_policies
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.history.evaluations import training_of
from parcade.model.image_networks import SpectralConv2d
from parcade.model.networks import NETWORKS
from parcade.model.policy import NetworkConfig
from parcade.rl.losses import squared_error_loss
from parcade.train import run_training, start_run

SMALL = NetworkConfig(network="mlp", hidden=16)
REMEMBERING = NetworkConfig(network="mlp", hidden=16, lstm=8)
ATOMS = NetworkConfig(network="mlp", hidden=16, dueling=True, value_head="c51", num_atoms=11)
QUANTILES = NetworkConfig(network="mlp", hidden=16, value_head="quantile", num_quantiles=8)
SPECTRAL = NetworkConfig(network="one_spectral_layer")
# The replay's rings are full, and written a second time, when the run is cut in half.
RINGS = {"learning_starts": 125, "replay_capacity": 375}
REPLAYED = {**RINGS, "unroll_length": 8, "priority_exponent": 0.5}
CASES = {
    "ppo": ("ppo", "tiny_catch", {"unroll_length": 8, "network": SMALL}, {}),
    "ppo following its KL": (
        "ppo",
        "tiny_catch",
        {"unroll_length": 8, "network": SMALL, "target_kl": 0.01},
        {},
    ),
    "ppo with overlap": ("ppo", "tiny_catch", {"unroll_length": 8, "network": SMALL}, {"overlap": True}),
    "ppo with an LSTM": ("ppo", "tiny_memory", {"unroll_length": 8, "network": REMEMBERING}, {}),
    "ppo with spectral normalisation": (
        "ppo",
        "tiny_catch",
        {"unroll_length": 8, "epochs": 1, "network": SPECTRAL},
        {},
    ),
    "pqn with an LSTM and burn-in": (
        "pqn",
        "tiny_memory",
        {"unroll_length": 8, "epochs": 1, "burn_in": True, "network": REMEMBERING},
        {},
    ),
    "a2c with an LSTM and overlap": ("a2c", "tiny_memory", {"network": REMEMBERING}, {"overlap": True}),
    "ppo with continuous actions": ("ppo", "tiny_aim", {"unroll_length": 8, "network": SMALL}, {}),
    "pqn": ("pqn", "tiny_forever", {"unroll_length": 8, "network": SMALL}, {}),
    "dqn": ("dqn", "tiny_forever", {**RINGS, "network": SMALL}, {}),
    "dqn with priorities": (
        "dqn",
        "tiny_catch",
        {**RINGS, "priority_exponent": 0.6, "network": SMALL},
        {},
    ),
    "dqn of atoms": (
        "dqn",
        "tiny_catch",
        {**REPLAYED, "network": ATOMS},
        {},
    ),
    "dqn of quantiles": (
        "dqn",
        "tiny_catch",
        {**REPLAYED, "network": QUANTILES},
        {},
    ),
    "reinforce": ("reinforce", "tiny_catch", {"games_per_update": 20, "network": SMALL}, {}),
    "vtrace with continuous actions": (
        "vtrace",
        "tiny_aim",
        {"num_envs": 6, "num_groups": 3, "unroll_length": 6, "network": SMALL},
        {},
    ),
    "vtrace": (
        "vtrace",
        "tiny_forever",
        {"num_envs": 6, "num_groups": 3, "unroll_length": 6, "network": SMALL},
        {},
    ),
}
CONSOLES = {
    "a2c": {"num_envs": 8},
    "dqn": {"num_envs": 4, **RINGS, "replay_capacity": 512},  # four environments store 16 steps at once
    "ppo": {"num_envs": 8, "unroll_length": 8},
    "pqn": {"num_envs": 8, "unroll_length": 8},
    "vtrace": {"num_envs": 6, "num_groups": 3, "unroll_length": 6},
}
# Chosen so that every schedule is still running when the run is cut in half.
FRAMES = 1_024
FEW_UPDATES = [
    "--num-envs", "4", "--unroll-length", "4", "--threads-per-rank", "1",
    "--epochs", "1", "--num-minibatches", "1",
]  # fmt: skip


class OneSpectralLayer(torch.nn.Module):
    """A spectrally normalised convolution of the board of ``tiny_catch``."""

    num_features = 4 * 6 * 5

    def __init__(self):
        super().__init__()
        self.conv = SpectralConv2d(1, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu().flatten(1)


@pytest.fixture(autouse=True)
def one_spectral_layer(monkeypatch):
    monkeypatch.setitem(NETWORKS, "one_spectral_layer", lambda shape, config: OneSpectralLayer())


def config_for(case, directory, frames, **run):
    algorithm, game, hyper, options = CASES[case]
    settings = {"checkpoint_seconds": 3600, "engine": "local", **options, **run}
    run_config = RunConfig(
        algorithm=algorithm, total_frames=frames, run_dir=str(directory), seed=3, **settings
    )
    return TrainConfig(game, run_config, hyper=ALGORITHMS[algorithm].config(**hyper))


def final_state(run):
    directory, state, _ = newest_checkpoint(run)
    return read_rank_file(directory, 0), state


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_bit_identical(tmp_path, case, monkeypatch):
    check_resume(tmp_path, case, monkeypatch)


@pytest.mark.parametrize("capture", [True, False], ids=["captured", "launched"])
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_its_network_on_a_gpu_ends_bit_identical(
    tmp_path, case, capture, monkeypatch, gpu
):
    """A resumed run launches its first updates one by one and records them again."""
    check_resume(tmp_path, case, monkeypatch, device="cuda", capture=capture)


@pytest.mark.gpu_code
@pytest.mark.parametrize("env_device", ["cpu", "cuda"])
@pytest.mark.parametrize("algorithm", CONSOLES)
def test_a_resumed_run_of_consoles_with_its_network_on_a_gpu_ends_bit_identical(
    tmp_path, algorithm, env_device, monkeypatch, gpu
):
    hyper = {**CONSOLES[algorithm], "network": NetworkConfig(hidden=16)}
    monkeypatch.setitem(CASES, "consoles", (algorithm, "pong", hyper, {"env_device": env_device}))
    check_resume(tmp_path, "consoles", monkeypatch, device="cuda")


@pytest.mark.gpu_code
def test_a_resumed_run_of_consoles_that_overlaps_with_a_gpu_ends_bit_identical(tmp_path, monkeypatch, gpu):
    hyper = {**CONSOLES["ppo"], "network": NetworkConfig(hidden=16)}
    monkeypatch.setitem(CASES, "consoles", ("ppo", "pong", hyper, {"overlap": True}))
    check_resume(tmp_path, "consoles", monkeypatch, device="cuda")


def kept_weights(run):
    """Frames and SHA-256 of the policies that a run kept for good."""
    return [(path.name, training_of(path)[1]) for path in kept_policies(run)]


def check_resume(tmp_path, case, monkeypatch, **options):
    options = {"keep_policy_frames": FRAMES // 4, **options}
    whole = config_for(case, tmp_path / "whole", FRAMES, **options)
    run_training(whole, start_run(whole))

    # The same run, stopped half-way through its frames (as Ctrl-C would), then resumed.
    halves = config_for(case, tmp_path / "halves", FRAMES, **options)
    run = start_run(halves)
    from parcade.report import reporter

    original = reporter.Reporter._reason_to_finish

    def stop_half_way(self, due):
        return "stopped" if self.progress.frames >= FRAMES // 2 else original(self, due)

    with monkeypatch.context() as patch:
        patch.setattr(reporter.Reporter, "_reason_to_finish", stop_half_way)
        assert run_training(halves, run)["finished_by"] == "stopped"
    result = run_training(halves, run, resume=True)

    assert result["finished_by"] == "total_frames" and result["games_cut_by_resume"] == 0
    (tensors, state), (other, other_state) = final_state(tmp_path / "whole"), final_state(run)
    assert_same_bits(tensors, other)
    for name in ("frames", "steps", "updates", "iterations", "episodes", "recent"):
        assert state["progress"][name] == other_state["progress"][name], name
    kept = kept_weights(tmp_path / "whole")
    assert kept_weights(run) == kept and len(kept) >= 2


def test_serial_and_local_with_overlap_give_the_same_bits(tmp_path):
    states = []
    for engine in ("serial", "local"):
        config = config_for("ppo with overlap", tmp_path / engine, FRAMES, engine=engine, threads_per_rank=1)
        run_training(config, start_run(config))
        states.append(final_state(tmp_path / engine)[0])
    assert_same_bits(*states)


def test_metrics_beyond_the_checkpoint_are_cut_when_resuming(tmp_path):
    config = config_for("ppo", tmp_path / "run", FRAMES)
    run = start_run(config)
    run_training(config, run)
    end = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["frames"]
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"frames": end + 1}) + '\n{"frames": 12')
    longer = config_for("ppo", run, 2 * FRAMES)
    run_training(longer, run, resume=True)
    frames = [json.loads(line)["frames"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert frames == sorted(frames) and end + 1 not in frames and frames[-1] >= 2 * FRAMES


def test_a_resume_over_ale_begins_fresh_games_and_counts_the_cut_ones(tmp_path, capsys):
    env = EnvSettings(image_height=42, image_width=42, noop_max=0)
    hyper = ALGORITHMS["a2c"].config(num_envs=2, unroll_length=4)
    run_config = RunConfig(
        algorithm="a2c", backend="ale", engine="serial", total_frames=64, run_dir=str(tmp_path / "run")
    )
    config = TrainConfig("breakout", run_config, env, hyper)
    run = start_run(config)
    run_training(config, run)
    longer = TrainConfig("breakout", RunConfig(**{**vars(run_config), "total_frames": 128}), env, hyper)
    result = run_training(longer, run, resume=True)
    assert result["games_cut_by_resume"] == 2
    assert result["frames"] == 128
    assert "2 unfinished episodes were dropped" in capsys.readouterr().out


def test_a_resume_without_the_replay_says_that_it_fills_again(tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--num-envs", "2", "--learning-starts", "32", "--replay-capacity", "500", "--batch-size", "8"]
    more = ["--no-save-replay", "--total-frames", "100", "--run-dir", str(run)]
    assert main(["train", "tiny_catch", "--algorithm", "dqn", *flags, *more]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--total-frames", "200"]) == 0
    said = capsys.readouterr().out
    assert "note: the replay was not saved (--no-save-replay); it fills before" in said
    assert "cannot save the state" not in said


def test_another_machine_is_warned_about(tmp_path, capsys, monkeypatch):
    config = config_for("ppo", tmp_path / "run", 512)
    run = start_run(config)
    run_training(config, run)
    monkeypatch.setattr("parcade.checkpoint.machine", lambda: {"cpu": "another"})
    run_training(config_for("ppo", run, 1024), run, resume=True)
    assert "will not be bit-identical (cpu:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "section", "name", "value"),
    [
        ("ppo", "hyper", "num_envs", 8),
        ("ppo", "run", "overlap", True),
        ("impala", "topology", "num_actors", 4),
        ("impala", "hyper", "unroll_length", 7),
    ],
)
def test_a_changed_config_is_named(tmp_path, capsys, algorithm, section, name, value):
    run, flags = tmp_path / "run", ["--num-envs", "4", "--unroll-length", "4", "--threads-per-rank", "1"]
    flags += ["--num-actors", "2", "--engine", "serial"] if algorithm == "impala" else []
    command = ["train", "tiny_catch", "--algorithm", algorithm, "--total-frames", "200", *flags]
    assert main([*command, "--run-dir", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    before, config[section][name] = config[section][name], value
    (run / "config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", str(run), "--total-frames", "400"]) == 2
    assert f"was saved with {name}={before}, config.json has {value}; they" in capsys.readouterr().err


FULL = [OSError(28, "No space left on device"), SafetensorError("No space left")]
"""safetensors' own error is neither an OSError nor a RuntimeError."""


@pytest.mark.parametrize("error", FULL)
def test_a_disk_that_is_full_for_a_while_is_reported_and_the_training_goes_on(
    tmp_path, capsys, monkeypatch, error
):
    save_file, calls = safetensors.torch.save_file, []

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise error
        save_file(*arguments)

    monkeypatch.setattr("safetensors.torch.save_file", fail_once)
    config = config_for("ppo", tmp_path / "run", FRAMES)
    result = run_training(config, start_run(config))
    assert result["finished_by"] == "total_frames" and result["frames"] >= FRAMES
    assert "no checkpoint could be written (" in capsys.readouterr().out
    assert newest_checkpoint(tmp_path / "run")[1]["progress"]["frames"] == result["frames"]


@pytest.mark.parametrize("error", FULL)
def test_a_run_whose_end_cannot_be_saved_says_so_and_is_not_finished(tmp_path, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    config = config_for("ppo", tmp_path / "run", FRAMES)
    with pytest.raises(UsageError, match="the end of this run could not be saved .*No space left") as raised:
        run_training(config, start_run(config))
    assert f"start it again with another --run-dir than {tmp_path / 'run'}" in str(raised.value)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_end_of_a_run_whose_directory_was_deleted_is_not_blamed_on_the_disk(tmp_path, monkeypatch):
    def fail(*arguments):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    config = config_for("ppo", tmp_path / "run", FRAMES)
    with pytest.raises(UsageError, match="could not be saved .*No such file.*; start it again") as raised:
        run_training(config, start_run(config))
    assert "free some space" not in str(raised.value)


@pytest.mark.parametrize("engine", ["local", "serial"])
def test_weights_that_are_no_numbers_end_the_run_and_keep_its_checkpoints(tmp_path, monkeypatch, engine):
    algorithm = {"local": "ppo", "serial": "impala"}[engine]
    flags = ["--num-envs", "4", "--threads-per-rank", "1", "--checkpoint-seconds", "1e-9", "--seed", "1"]
    run, losses = tmp_path / "run", []

    def spoiled(*arguments):
        losses.append(1)
        return squared_error_loss(*arguments) * (float("nan") if len(losses) > 20 else 1.0)

    home = {"local": "ppo", "serial": "vtrace"}[engine]
    monkeypatch.setattr(f"parcade.algorithms.{home}.squared_error_loss", spoiled)
    command = ["train", "tiny_catch", "--algorithm", algorithm, "--total-frames", "40000", *flags]
    assert main([*command, "--run-dir", str(run)]) == 2
    tensors = read_rank_file(newest_checkpoint(run)[0], 0)
    policy = [value for name, value in tensors.items() if name.startswith("policy.")]
    assert policy and all(torch.isfinite(value).all() for value in policy)
    assert not (run / "result.json").exists()
    reports = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
    assert "NaN" not in reports


@pytest.mark.parametrize(
    ("algorithm", "game", "backend", "device", "expected"),
    [
        ("ppo", "pong", "native", "cuda", "cuda"),
        ("dqn", "breakout", "native", "cuda", "cuda"),
        ("ppo", "pong", "ale", "cuda", "cpu"),
        ("reinforce", "pong", "native", "cuda", "cpu"),
        ("ppo", "tiny_catch", "native", "cuda", "cpu"),
        ("ppo", "pong", "native", "cpu", "cpu"),
    ],
)
def test_a_config_of_before_env_device_keeps_its_consoles_where_they_were(
    algorithm, game, backend, device, expected
):
    run = RunConfig(algorithm=algorithm, backend=backend, device=device)
    data = to_json(TrainConfig(game, run, hyper=ALGORITHMS[algorithm].config()))
    del data["run"]["env_device"], data["run"]["capture"]
    assert from_json(data).run.env_device == expected


def test_a_run_of_before_mlps_were_normalised_resumes_without_normalising(tmp_path):
    """In files of schema 1, layer_norm has no effect on an MLP."""
    run = tmp_path / "run"
    command = ["train", "tiny_catch", "--algorithm", "pqn", "--no-layer-norm", *FEW_UPDATES]
    command += ["--run-dir", str(run)]
    assert main([*command, "--total-frames", "200"]) == 0
    config = json.loads((run / "config.json").read_text())
    config["schema_version"], config["hyper"]["network"]["layer_norm"] = 1, True
    (run / "config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", str(run), "--total-frames", "400"]) == 0
    assert json.loads((run / "result.json").read_text())["frames"] == 400


def test_a_config_keeps_where_auto_put_the_consoles():
    config = TrainConfig("pong", RunConfig(device="cuda"))
    assert config.run.env_device == "cpu" and to_json(config)["run"]["env_device"] == "cpu"


def test_a_run_killed_before_its_result_was_written_only_writes_it(tmp_path, capsys):
    run = tmp_path / "run"
    flags = [*FEW_UPDATES, "--total-frames", "400"]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").unlink()
    assert main(["train", "--resume", str(run)]) == 0
    again = json.loads((run / "result.json").read_text())
    for name in ("frames", "updates", "score_mean", "finished_by"):
        assert again[name] == result[name]
    assert again["cpu_seconds"] >= 0.9 * result["cpu_seconds"] > 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"finished_by": "target_score", "score_mean": "x"}, "result.json: score_mean is 'x'; it is damaged"),
        (
            {"finished_by": "time_limit", "wall_seconds": "x"},
            "result.json: wall_seconds is 'x'; it is damaged",
        ),
    ],
)
def test_a_resume_names_a_damaged_result(tmp_path, capsys, damage, says):
    run = tmp_path / "run"
    flags = [*FEW_UPDATES, "--total-frames", "400"]
    assert main(["train", "tiny_catch", *flags, "--target-score", "5", "--run-dir", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, **damage}))
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--total-frames", "800", "--time-limit", "10h"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    for name in ("commit", "machine", "cpu_seconds"):  # as an earlier version may have written it
        del result[name]
    (run / "result.json").write_text(json.dumps(result))
    assert main(["train", "--resume", str(run), "--total-frames", "800", "--time-limit", "10h"]) == 0


def test_the_limit_of_a_resumed_job_of_ranks_includes_its_earlier_starts(tmp_path, monkeypatch):
    run, jobs = tmp_path / "run", []
    flags = [*FEW_UPDATES, "--total-frames", "400"]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    config["run"]["engine"] = "mpi"
    (run / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("parcade.cluster.launch.run_ranks", lambda job: jobs.append(job) or 0)
    assert main(["train", "--resume", str(run), "--total-frames", "800", "--time-limit", "10h"]) == 0
    used = newest_checkpoint(run)[1]["progress"]["wall_seconds"]
    assert used > 0 and jobs[0].time_limit_seconds == 36_000 - used


def test_the_engine_of_actors_and_learners_stays(tmp_path, capsys):
    run = tmp_path / "run"
    train = ["train", "tiny_catch", "--num-envs", "4", "--unroll-length", "4", "--total-frames", "64"]
    assert main([*train, "--algorithm", "impala", "--engine", "serial", "--run-dir", str(run)]) == 0
    capsys.readouterr()
    for engine, said in (
        ("mpi", "impala on engine serial has actors and learners, whose engine cannot be changed"),
        ("ray", "engine=ray: a run can change to local, serial, mpi"),
    ):
        assert main(["train", "--resume", str(run), "--engine", engine, "--total-frames", "128"]) == 2
        assert said in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--engine", "serial", "--total-frames", "128"]) == 0
    assert json.loads((run / "result.json").read_text())["frames"] == 128


def test_a_run_of_one_process_resumes_exactly_with_another_engine(tmp_path, capsys):
    train = ["train", "tiny_catch", *FEW_UPDATES, "--seed", "5"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main([*train, "--engine", "local", "--total-frames", "256", "--run-dir", str(whole)]) == 0
    assert main([*train, "--engine", "local", "--total-frames", "128", "--run-dir", str(run)]) == 0
    assert main(["train", "--resume", str(run), "--engine", "serial", "--total-frames", "256"]) == 0
    assert "bit-identical" not in capsys.readouterr().out
    assert json.loads((run / "config.json").read_text())["run"]["engine"] == "serial"
    assert_same_bits(final_state(whole)[0], final_state(run)[0])
