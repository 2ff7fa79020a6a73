"""``parcade compare`` on runs that ``parcade train`` has written."""

import json

from parcade.cli import main


def test_trainings_are_compared_by_their_settings(tmp_path, capsys):
    runs = tmp_path / "trained"
    for seed, rate in ((1, "1e-3"), (2, "1e-3"), (1, "1e-4")):
        arguments = ["--seed", str(seed), "--learning-rate", rate, "--total-frames", "4000"]
        run = ["--run-dir", str(runs / f"{rate}-{seed}"), "--track", "none"]
        assert main(["train", "tiny_catch", *arguments, *run]) == 0
    capsys.readouterr()
    assert main(["compare", str(runs), "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    found = {group["settings"]: [run["seed"] for run in group["runs"]] for group in groups}
    assert found == {"ppo learning_rate=0.001": [1, 2], "ppo learning_rate=0.0001": [1]}
    last = json.loads((runs / "1e-4-1" / "metrics.jsonl").read_text().splitlines()[-1])
    (alone,) = [group for group in groups if len(group["runs"]) == 1]
    assert alone["mean"] == last["score_mean"] and alone["runs"][0]["status"] == "finished"
