"""``parcade bench``: its flags, and what is left of it when it is interrupted."""

import json

import pytest

from parcade import bench
from parcade.cli import main

pytestmark = pytest.mark.quick


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
    assert printed.out == "num_envs 1\nnum_envs 2\n" and "interrupted" in printed.err
    assert [row["num_envs"] for row in json.loads(out.read_text())["rows"]] == [1, 2]
    out.unlink()
    assert main([*counts, "4"]) == 130 and not out.exists()


@pytest.mark.parametrize("flag", [["--counts", "1"], ["--stages", "emulate"]])
def test_flags_of_the_other_bench_are_refused(flag, capsys):
    assert main(["bench", "train", "tiny_catch", *flag]) == 2
    assert f"{flag[0]} is of parcade bench env" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "tiny_catch", "--algorithm", "impala"], "impala is a system of actors and learners"),
        (
            ["train", "pong", "--preset", "karpathy_2016", "--image-size", "42"],
            "image_size is fixed by preset",
        ),
        (["env", "pong", "--preset", "karpathy_2016", "--observations", "ram"], "observations is fixed by"),
    ],
)
def test_what_cannot_be_measured_is_one_line(words, message, capsys):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("num_envs", [4, 16])
def test_reinforce_plays_as_many_episodes_per_update_as_its_environments_allow(num_envs):
    hyper = bench._config(bench.BenchFlags("tiny_catch", algorithm="reinforce"), num_envs)[0].hyper
    assert hyper.games_per_update == {4: 12, 16: 16}[num_envs]
