"""``parcade bench``: what it measures, its flags, and what is left of it when it is interrupted."""

import json

import pytest

from parcade import bench
from parcade.cli import main
from parcade.commands.bench import _columns


@pytest.mark.quick
def test_rows_that_are_complete_are_kept_when_a_bench_is_interrupted(tmp_path, monkeypatch, capsys):
    def measured(flags, stage, num_envs):
        if num_envs == 4:
            raise KeyboardInterrupt
        return {"stage": stage, "num_envs": num_envs, "row": {"num_envs": num_envs}, "samples": {}}

    monkeypatch.setattr(bench, "_measure_stage", measured)
    out = tmp_path / "out.json"
    counts = ["bench", "env", "tiny_catch", "--json", str(out), "--counts"]
    assert main([*counts, "1", "2", "4"]) == 130
    printed = capsys.readouterr()
    assert printed.out == "num_envs  1\n\nnum_envs  2\n" and "interrupted" in printed.err
    assert [row["num_envs"] for row in json.loads(out.read_text())["rows"]] == [1, 2]
    out.unlink()
    assert main([*counts, "4"]) == 130 and not out.exists()


@pytest.mark.quick
@pytest.mark.parametrize("flag", [["--counts", "1"], ["--stages", "emulate"]])
def test_flags_of_the_other_bench_are_refused(flag, capsys):
    assert main(["bench", "train", "tiny_catch", *flag]) == 2
    assert f"{flag[0]} is of parcade bench env" in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "tiny_catch", "--algorithm", "impala"],
            "impala is a system of actors and learners: train it and read frames_per_second",
        ),
        (
            ["train", "pong", "--preset", "karpathy_2016", "--image-size", "42"],
            "--image-size is fixed by preset",
        ),
        (["env", "pong", "--preset", "karpathy_2016", "--observations", "ram"], "--observations is fixed by"),
        (["env", "tiny_catch", "--algorithm", "nope"], "--algorithm is for stages infer and train; add one"),
        (["env", "pong", "--counts", "2", "--num-envs", "3"], "--num-envs has no effect with --counts"),
        (["env", "pong", "--stages", "emulate", "--observations", "ram"], "--observations has no effect on"),
        (
            ["env", "breakout", "--stages", "infer", "observe", "--preset", "karpathy_2016"],
            "observations=karpathy_2016 erases the background colours of pong; got breakout",
        ),
        (
            ["env", "tiny_catch", "--stages", "train", "observe", "--start-states", "cached"],
            "start_states=cached needs an Atari game",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(words, message, capsys, monkeypatch):
    monkeypatch.setattr(bench, "_measure", lambda turn, flags: pytest.fail("something is measured"))
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.quick
def test_a_stage_that_cannot_be_is_refused_before_another_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(bench, "_measure_stage", lambda *arguments: pytest.fail("something is measured"))
    words = ["bench", "env", "pong", "--stages", "emulate", "observe", "--preset", "dqn_2016"]
    assert main(words) == 2
    assert "unknown environment preset 'dqn_2016'; did you mean 'dqn_2015'?" in capsys.readouterr().err


@pytest.mark.quick
def test_the_id_of_a_game_has_its_rules():
    for game, sticky in (("ALE/Pong-v5", 0.25), ("pong", 0.0)):
        assert bench._settings(bench.BenchFlags(game)).sticky_actions == sticky
        assert bench._config(bench.BenchFlags(game), 8)[0].env.sticky_actions == sticky
    assert bench._settings(bench.BenchFlags("ALE/Pong-v5", preset="karpathy_2016")).noop_max == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "observe", "train"),
    [
        ({}, (None, None), (None, None)),
        ({"device": "cuda"}, ("cuda", "cuda"), ("cuda", "cpu")),
        ({"device": "cuda", "env_device": "cpu"}, ("cuda", "cpu"), ("cuda", "cpu")),
        ({"env_device": "cuda"}, ("cpu", "cuda"), ("cpu", "cuda")),
    ],
)
def test_a_row_names_the_devices_that_were_used(flags, observe, train, monkeypatch):
    stage = bench.Stage(lambda: (1, 1), lambda: None)
    monkeypatch.setattr(bench, "_measure", lambda turn, flags: {"steps_per_second": [1.0]})
    monkeypatch.setattr(bench, "STAGES", {name: (name, lambda *_: stage) for name in bench.STAGES})
    for name, expected in (("observe", observe), ("train", train)):
        row = bench._measure_stage(bench.BenchFlags("pong", **flags), name, 8)["row"]
        assert (row.get("device"), row.get("env_device")) == expected


@pytest.mark.quick
@pytest.mark.parametrize("num_envs", [4, 16])
def test_reinforce_plays_as_many_episodes_per_update_as_its_environments_allow(num_envs):
    hyper = bench._config(bench.BenchFlags("tiny_catch", algorithm="reinforce"), num_envs)[0].hyper
    assert hyper.games_per_update == {4: 12, 16: 16}[num_envs]


def test_a_plot_without_matplotlib_is_refused_before_measuring(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "env", "tiny_catch", "--plot", str(tmp_path / "o.png"), "--seconds", "600"]) == 2
    assert (
        capsys.readouterr().err
        == "parcade: --plot needs matplotlib, which is not installed; run: pip install 'parcade[plots]'\n"
    )


def test_bench_writes_rates_with_their_machine(tmp_path, capsys):
    path = tmp_path / "bench.json"
    flags = ["tiny_catch", "--seconds", "0.1", "--repeats", "2", "--json", str(path)]
    for what in ("env", "train"):
        assert main(["bench", what, *flags]) == 0
        result = json.loads(path.read_text())
        (sample,) = result["samples"]
        assert all(
            len(sample[name]) == 2 and min(sample[name]) > 0
            for name in ("frames_per_second", "steps_per_second")
        )
        assert result["machine"]["cores"] >= 1
    assert "frames_per_cpu_second" in capsys.readouterr().out


def test_a_result_is_shown_in_two_columns():
    assert _columns({"game": "pong", "num_envs": 8}) == "game      pong\nnum_envs  8"


def test_bench_measures_what_is_observed(tmp_path):
    path = tmp_path / "bench.json"
    flags = [
        "pong", "--observations", "ram", "--num-envs", "2", "--seconds", "0.05", "--repeats", "1", "--json",
        str(path),
    ]  # fmt: skip
    assert main(["bench", "env", *flags, "--stages", "observe", "infer"]) == 0
    result = json.loads(path.read_text())
    assert result["flags"]["observations"] == "ram" and len(result["rows"]) == 2


def test_bench_measures_stages_at_several_sizes_and_draws_them(tmp_path):
    path, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    flags = [
        "tiny_catch", "--stages", "observe", "infer", "train", "--counts", "4", "8", "--seconds", "0.05",
        "--repeats", "2",
    ]  # fmt: skip
    assert (
        main(["bench", "env", *flags, "--algorithm", "a2c", "--json", str(path), "--plot", str(picture)]) == 0
    )
    result = json.loads(path.read_text())
    measured = [(sample["stage"], sample["num_envs"]) for sample in result["samples"]]
    assert measured == [(stage, n) for stage in ("observe", "infer", "train") for n in (4, 8)]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_stage_of_raw_consoles_is_of_native_games(capsys):
    assert main(["bench", "env", "tiny_catch", "--stages", "emulate"]) == 2
    assert (
        "stage emulate needs an Atari game on backend native; got tiny_catch on native; leave the stage out"
        in capsys.readouterr().err
    )
