"""Runs on the dashboard: their list, curves, bands and exports; what is inside one; requests to one."""

import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from parcade.cluster.processes import own_record, write_record
from parcade.errors import UsageError
from parcade.history.runs import Runs, UnknownRun
from parcade.web.curves import Curves
from tests.history.written_runs import report, write_evaluations, write_process, write_run

pytestmark = pytest.mark.quick


def test_of_too_many_runs_the_newest_are_listed_and_the_others_counted(client, root, monkeypatch):
    monkeypatch.setattr("parcade.history.runs.MOST_RUNS", 2)
    for age, name in enumerate(("z", "b", "a")):
        run = write_run(root, name)
        for file in ("config.json", "metrics.jsonl"):
            os.utime(run / file, (time.time() + 100 - age,) * 2)
    found = client.get("/api/runs").json()
    assert {each["id"] for each in found["runs"]} == {"z", "b"} and found["not_shown"] == 2
    assert client.get("/api/run?run=a").status_code == 404


def test_runs_that_differ_by_their_seed_form_a_group(client, root):
    for seed, scale in ((1, 1.0), (2, 2.0)):
        write_run(root, f"s{seed}", seed=seed, scale=scale)
    write_run(root, "other", algorithm="a2c")
    write_run(root, "s3", seed=3, reports=0)  # has not reported yet
    names = ["s1", "s2", "s3", "other", "pong-s0"]
    client.get("/api/runs")
    groups = client.get(
        "/api/bands", params={"run": names, "metric": "score_mean", "x": "cpu_seconds"}
    ).json()
    ((_, found),) = groups.items()
    assert found["runs"] == 3 and found["y"][-1] == pytest.approx(9 * (1 + 1 + 2) / 3)


def test_bands_of_a_run_that_is_deleted_meanwhile_are_refused(client, monkeypatch):
    monkeypatch.setattr(Runs, "scan", lambda runs: [])  # the list of names is that of another page's scan
    answered = client.get("/api/bands", params={"run": ["pong-s0"]})
    assert answered.status_code == 404 and "no such run" in answered.json()["error"]


def test_a_long_unread_file_is_sampled_first_and_complete_after_reading_ahead(root, monkeypatch):
    monkeypatch.setattr("parcade.web.curves.MOST_NEW_BYTES", 1000)
    write_run(root, "a", reports=2000)
    runs = Runs(root)
    runs.scan()
    curves = Curves(runs)
    first = curves.of(["a"], ["score_mean"], "frames", 100)
    curves.read_ahead(["a"])
    second = curves.of(["a"], ["score_mean"], "frames", 100)
    assert not first["complete"] and second["complete"]
    assert len(first["curves"]["a"]["score_mean"]["x"]) > 90
    assert max(second["curves"]["a"]["score_mean"]["high"]) == 1999
    with pytest.raises(UnknownRun):
        curves.of(["b"], ["score_mean"], "frames", 100)
    with pytest.raises(UsageError, match="axis"):
        curves.of(["a"], ["score_mean"], "weight", 100)


def test_a_csv_has_every_point(client):
    text = client.get(
        "/api/csv", params={"run": "pong-s0", "metric": ["score_mean", "loss/value"], "x": "wall_seconds"}
    ).text
    rows = text.splitlines()
    assert (
        rows[0] == "run,wall_seconds,score_mean,loss/value"
        and len(rows) == 11
        and rows[3] == "pong-s0,4,2,0.3333333333"
    )


def test_evaluations_of_kept_policies_are_metrics_of_their_own_file(client, root):
    write_evaluations(root / "pong-s0")
    write_evaluations(write_run(root, "pong-s1", seed=1), scale=3.0)
    client.get("/api/runs")
    known = client.get("/api/metrics?run=pong-s0").json()["metrics"]
    assert known["evaluation/sampled"].startswith("mean score of kept policies")
    assert "policy_sha256" not in known and "result" not in known
    query = {"run": "pong-s0", "metric": ["evaluation/sampled", "score_mean"], "x": "frames"}
    curves = client.get("/api/curves", params=query).json()["curves"]["pong-s0"]
    assert curves["evaluation/sampled"]["x"] == [1000, 2000, 3000] and len(curves["score_mean"]["x"]) == 10
    rows = client.get("/api/csv", params=query).text.splitlines()
    assert rows[1:4] == ["pong-s0,1000,1,", "pong-s0,2000,2,", "pong-s0,3000,3,"] and len(rows) == 4 + 10
    bands = {"run": ["pong-s0", "pong-s1"], "metric": "evaluation/sampled"}
    (band,) = client.get("/api/bands", params=bands).json().values()
    assert band["runs"] == 2 and band["y"][-1] == 6.0


def test_a_csv_has_all_digits_of_frames(client, root):
    frames = [12_345_678_901, 12_345_678_905]
    lines = [
        json.dumps({"frames": each, "score_mean": score})
        for each, score in zip(frames, (0, 1e20), strict=True)
    ]
    (root / "pong-s0" / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    query = {"run": "pong-s0", "metric": "score_mean", "x": "frames"}
    rows = client.get("/api/csv", params=query).text.splitlines()[1:]
    assert rows == [f"pong-s0,{frames[0]},0", f"pong-s0,{frames[1]},1e+20"]


def test_a_run_says_what_is_inside(client, root):
    run = root / "pong-s0"
    write_process(run, seconds={"main": {"learn": 3.0}})
    (run / "checkpoints" / f"{4000:014d}").mkdir(parents=True)
    (run / "checkpoints" / f"{4000:014d}" / "rank-0.safetensors").write_bytes(b"12345")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(report(11, **{"parts/restarts": 2, "server/lost": 1})) + "\n")
    kept = run / "policies" / f"{3000:014d}"
    kept.mkdir(parents=True)
    (kept / "rank-0.safetensors").write_bytes(b"123")
    inside = client.get("/api/run?run=pong-s0").json()
    assert [(each["frames"], each["bytes"]) for each in inside["checkpoints"]] == [(4000, 5), (3000, 3)]
    assert inside["part_counters"] == {"parts/restarts": 2, "server/lost": 1}
    assert inside["processes"][0]["seconds"] == {"main": {"learn": 3.0}}


def test_every_evaluation_of_a_run_is_shown_the_users_own_first(client, root):
    run = root / "pong-s0"
    for name, score in (("eval-null-op", 3.0), ("eval", 1.0), ("eval-greedy-30min", 2.0)):
        (run / f"{name}.json").write_text(json.dumps({"score_mean": score, "scores": [score]}))
    shown = client.get("/api/run?run=pong-s0").json()["evaluations"]
    assert list(shown.items()) == [
        ("eval", {"score_mean": 1.0}),
        ("eval-greedy-30min", {"score_mean": 2.0}),
        ("eval-null-op", {"score_mean": 3.0}),
    ]


def test_a_stop_request_is_the_runs_own_stop_file(client, root):
    (root / "pong-s0" / "processes").mkdir()
    write_record(root / "pong-s0", own_record("rank", 0))
    assert client.post("/api/stop?run=pong-s0").status_code == 200
    assert (root / "pong-s0" / "stop").exists()


def test_a_run_that_has_ended_is_not_asked_to_stop(client, root):
    def answer():
        answer = client.post("/api/stop?run=pong-s0")
        assert answer.status_code == 422 and not (root / "pong-s0" / "stop").exists()
        return answer.json()["error"]

    assert answer() == "pong-s0 cannot be stopped: it has finished (played all its frames)"
    result = root / "pong-s0" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "finished_by": "stopped"}))
    assert answer() == "pong-s0 cannot be stopped: it has stopped (on request; it can be resumed)"
    write_process(root / "pong-s0", host=socket.gethostname(), pid=2**30)
    assert "pong-s0 cannot be stopped: it has crashed (rank 0 (pid 1073741824 on host" in answer()


def test_stacks_and_doctor_of_a_run_that_was_never_started_are_one_line(client):
    for action in ("stacks", "doctor"):
        answer = client.post(f"/api/{action}?run=pong-s0")
        assert answer.status_code == 422 and "\n" not in answer.json()["error"]


def test_stacks_of_one_process_are_read_on_request(client, root):
    run = root / "pong-s0"
    (run / "processes").mkdir()
    write_process(run, ended=True)
    write_process(run, number=1, ended=True)
    found = client.post("/api/stacks", params={"run": "pong-s0", "process": "rank 1"}).json()
    assert [(each["name"], each["text"]) for each in found] == [("rank 1", "has finished")]


def test_a_profile_in_the_run_directory_shows_splits_timeline_and_advice(client, root):
    recorded = Path(__file__).parents[2] / "benchmarks" / "results" / "profile-ppo-2" / "profile.json"
    (root / "pong-s0" / "profile").mkdir()
    shutil.copy(recorded, root / "pong-s0" / "profile")
    assert client.get("/api/run?run=pong-s0").json()["has_profile"]
    found = client.get("/api/profile?run=pong-s0").json()
    assert [rank["name"] for rank in found["ranks"]] == ["rank 0", "rank 1"] and found["findings"]
    for rank in found["ranks"]:
        assert 100 < len(rank["timeline"]) <= 240
        assert max(sum(shares) for shares in rank["timeline"]) == pytest.approx(1.0, abs=0.02)
