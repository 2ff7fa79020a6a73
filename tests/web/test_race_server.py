"""``parcade race``: its command, its server and pages, and the training that a person races."""

import csv
import dataclasses
import importlib.util
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from parcade.atari.recording import load_recording
from parcade.cli import main
from parcade.cluster.processes import start_ticks, still_running
from parcade.errors import UsageError
from parcade.files.run_directory import complete_checkpoints
from parcade.web.race.book import Book, only_one
from parcade.web.race.pages import COMMANDS_PER_SECOND
from parcade.web.race.server import Race, make_race
from parcade.web.race.settings import RaceSettings
from parcade.web.race.training import make_room, training, training_words
from parcade.web.security import MOST_MESSAGE_BYTES, PROTOCOL, Gate
from parcade.web.wire import unpacked
from tests.history.written_runs import write_process, write_run
from tests.web.conftest import ORIGIN, TOKEN, received_until_closed, within_time
from tests.web.test_race import play

SECONDS = 120


def serve(settings, run=None):
    """A client with the token, and the server of a race."""
    client = TestClient(make_race(Race(settings, run), Gate(TOKEN, "127.0.0.1")), base_url=ORIGIN)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client


def open_page(client, *, token=TOKEN, origin=ORIGIN, host="127.0.0.1:2600"):
    """Open the race's WebSocket as a page does; arguments replace its origin, host or token."""
    headers = {"Origin": origin, "Host": host}
    return client.websocket_connect("/ws/race", subprotocols=[PROTOCOL, token], headers=headers)


@pytest.fixture
def settings(tmp_path):
    """Settings of a race, as fast as a person plays: an episode lasts 51 seconds at least."""
    found = RaceSettings("pong", "anna", str(tmp_path / "races" / "pong" / "anna"))
    found.path.mkdir(parents=True)
    return found


@pytest.fixture
def client(settings, tmp_path):
    """A server whose player process no test of it needs."""
    with serve(settings, write_run(tmp_path, "=agent", reports=4)) as client:
        client.get("/api/runs")
        yield client


def next_of(page, kind, is_wanted=lambda head: True):
    """The next message of a kind that a page receives."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        head, _ = unpacked(within_time(page.receive_bytes))
        if head["type"] == kind and is_wanted(head):
            return head
    raise AssertionError(f"no {kind} came")


@pytest.mark.processes
def test_one_page_plays_others_watch_and_a_lost_page_pauses_until_another_takes_over(settings):
    with serve(settings) as client, open_page(client) as first, open_page(client) as second:
        assert next_of(first, "role")["plays"] and not next_of(second, "role")["plays"]
        next_of(first, "start")
        second.send_text('{"held": ["down"]}')
        first.send_text('{"held": ["up"]}')
        assert next_of(second, "step", lambda head: head["frame"] > 5)["action"] == 3
        first.close()
        assert next_of(second, "role", lambda head: head["is_free"])
        assert next_of(second, "step", lambda head: head["state"] == "paused")
        with open_page(client) as third:  # a page that is loaded again plays at once
            assert next_of(third, "role")["plays"]
            third.close()
        assert next_of(second, "role", lambda head: head["is_free"])
        second.send_text('{"take": true}')
        assert next_of(second, "role", lambda head: head["plays"])
        second.send_text('{"paused": false}')
        assert next_of(second, "step", lambda head: head["state"] == "playing")["action"] == 0


@pytest.mark.processes
def test_a_whole_episode_is_played_over_the_server_and_told_to_the_page(settings):
    with serve(dataclasses.replace(settings, frames_per_second=600)) as client:
        with open_page(client) as page:
            next_of(page, "start")
            page.send_text('{"paused": false}')
            episode = next_of(page, "saved")["episode"]
        (row,) = client.get("/api/race").json()["rows"]
    recording = load_recording(settings.path / "episodes" / episode["recording"])
    assert sum(reward for _, reward in recording.replay()) == episode["score"] < -10
    assert (row["score"], row["who"], row["recording"]) == (episode["score"], "anna", "0001.json")


def test_a_message_that_is_too_long_or_too_many_close_the_page(frozen_rate, settings):
    too_many = ['{"held": []}'] * (int(COMMANDS_PER_SECOND) + 1)
    with serve(settings) as client:
        for messages, code in (([f'{{"held": "{"x" * MOST_MESSAGE_BYTES}"}}'], 1009), (too_many, 1008)):
            with open_page(client) as page:
                for message in messages:
                    page.send_text(message)
                assert received_until_closed(page) == code


@pytest.mark.processes
def test_an_episode_is_kept_when_the_server_ends_in_the_middle_of_it(settings):
    with serve(settings) as client, open_page(client) as page:
        next_of(page, "start")
        page.send_text('{"held": ["up"]}')
        next_of(page, "step", lambda head: head["frame"] > 20)
    recording = load_recording(settings.path / "unfinished.json")
    assert recording.frames > 20 and recording.episodes[0][0][0] == 3


@pytest.mark.quick
@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"token": "wrong"},
        {"host": "evil.example:2601"},
    ],
)
def test_a_page_of_another_origin_host_or_token_is_refused(client, wrong):
    with pytest.raises(WebSocketDisconnect), open_page(client, **wrong) as page:
        within_time(page.receive_bytes)


@pytest.mark.quick
def test_the_page_loads_without_the_token_and_its_data_need_it(client):
    assert client.get("/race").status_code == 200
    assert client.get("/race", headers={"Host": "evil.example"}).status_code == 403
    del client.headers["Authorization"]
    assert [client.get(f"/api/{name}").status_code for name in ("race", "race-csv")] == [401, 401]


def test_the_table_has_the_person_and_the_agent_and_no_formula(client, settings):
    play(settings, (0, {"paused": False}))
    rows = list(csv.DictReader(io.StringIO(client.get("/api/race-csv").text)))
    person, *agent = rows
    assert (person["who"], person["score"], person["episodes"]) == ("anna", "-21", "1")
    assert float(person["minutes"]) >= 0 and person["frames"] == "3056"
    assert [row["who"] for row in agent] == ["'=agent"] * 4
    assert (agent[-1]["minutes"], agent[-1]["frames"], agent[-1]["score"]) == ("0.1", "1200", "3")
    facts = client.get("/api/race").json()
    assert facts["run"] == "=agent" and facts["training"] == ""
    assert client.get("/api/curves?run=%3Dagent&metric=score_mean").json()["curves"]["=agent"]


def test_a_race_that_is_damaged_while_it_runs_is_one_line(client, settings):
    play(settings, (0, {"paused": False}))
    path = settings.path / "race.json"
    path.write_text(path.read_text().replace("-21", "21"))
    answer = client.get("/api/race")
    assert answer.status_code == 422 and "damaged" in answer.json()["error"]


@pytest.mark.processes
def test_a_training_that_fails_is_told_with_its_last_line(settings):
    run, log = settings.path / "agent", settings.path / "agent.log"
    with training(["train", "no_such_game", "--run-dir", str(run)], log) as process:
        process.wait(SECONDS)
        race = Race(settings, run, (process, log))
        assert race._training().startswith("The training ended with code 2: parcade: ")
        assert "no_such_game" in race._training()


@pytest.mark.quick
def test_pong_has_its_fast_preset_and_other_games_ppo(tmp_path):
    assert training_words("pong", tmp_path, [])[2:4] == ["--preset", "pong_fast"]
    assert training_words("boxing", tmp_path, [])[2:4] == ["--algorithm", "ppo"]
    assert training_words("pong", tmp_path, ["--seed", "3"])[2:6] == ["--preset", "pong_fast", "--seed", "3"]
    own = training_words("pong", tmp_path, ["--algorithm", "pqn"])
    assert own[2:5] == ["--algorithm", "pqn", "--run-dir"]


@pytest.mark.quick
def test_a_training_killed_before_its_first_checkpoint_makes_room_for_another(tmp_path):
    run = tmp_path / "agent"
    make_room(run)  # nothing there
    write_run(tmp_path, "agent")
    write_process(run, pid=os.getpid(), start_ticks=start_ticks(os.getpid()), host=socket.gethostname())
    with pytest.raises(UsageError, match="is still running"):
        make_room(run)
    write_process(run, pid=os.getpid(), start_ticks=1, host=socket.gethostname())
    make_room(run)
    assert not run.exists() and (tmp_path / "agent.unfinished" / "config.json").exists()


def refused(capsys, *arguments):
    """The one line of a refused command."""
    assert main(["race", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def taken_port():
    """A port on which another server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_errors_are_one_line_each(tmp_path, capsys, monkeypatch, taken_port):
    monkeypatch.chdir(tmp_path)
    assert "pong" in refused(capsys, "pogn")
    assert "no Atari game" in refused(capsys, "tiny_catch")
    assert "cannot be used" in refused(capsys, "pong", "--name", "../x")
    assert "is no port" in refused(capsys, "pong", "--port", 70000)
    assert "--against" in refused(capsys, "pong", "--duel")
    assert "A or B" in refused(capsys, "pong", "--duel", "--against", "random", "--side", "C")
    assert "not offered" in refused(capsys, "breakout", "--duel", "--against", "zoo:breakout")
    line = refused(capsys, "pong", "--against", "zoo:breakout")
    assert "zoo:breakout was trained on breakout, not pong" in line and "agents" not in line.split(";")[0]
    assert "did you mean 'pong'" in refused(capsys, "pong", "--against", "zoo:pogn")
    assert "does not exist" in refused(capsys, "pong", "--against", "nothing")
    assert "does not exist" in refused(capsys, "pong", "--run", "nothing")
    run = write_run(tmp_path, "boxer", game="boxing")
    assert "trained on boxing" in refused(capsys, "pong", "--run", run)
    assert "one of them" in refused(capsys, "pong", "--run", run, "--train")
    (run / "config.json").write_text("{}")
    assert "was trained on an unknown game, not pong" in refused(capsys, "pong", "--run", run)
    assert "leave it out" in refused(capsys, "pong", "--train", "--", "--resume", "runs/x")
    assert "leave it out" in refused(capsys, "pong", "--train", "--", "--run-dir=x")
    assert "add --train" in refused(capsys, "pong", "--", "--algorithm", "dqn")
    assert "unknown flag --nothing" in refused(capsys, "pong", "--train", "--", "--nothing")
    (tmp_path / "races" / "pong" / "bob").mkdir(parents=True)
    (tmp_path / "races" / "pong" / "bob" / "race.json").write_text("{}")
    assert "damaged" in refused(capsys, "pong", "--name", "bob")
    assert "--port 0" in refused(capsys, "pong", "--port", taken_port)
    monkeypatch.setattr("parcade.web.race.training.training", lambda *words: pytest.fail("it trains"))
    assert "--port 0" in refused(capsys, "pong", "--port", taken_port, "--train")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert "pip install 'parcade[web]'" in refused(capsys, "pong")


def test_a_refused_race_leaves_no_directory_behind(tmp_path, capsys, monkeypatch, taken_port):
    monkeypatch.chdir(tmp_path)
    for flags in (["--nothing"], ["--algorithm", "none"], ["--num-envs", "many"]):
        refused(capsys, "pong", "--train", "--port", 0, "--", *flags)
    assert "--port 0" in refused(capsys, "pong", "--port", taken_port)
    assert "--port 0" in refused(capsys, "pong", "--port", taken_port, "--train")
    assert not list(tmp_path.iterdir())


def test_a_race_that_is_open_already_says_so_and_not_that_its_port_is_in_use(tmp_path, capsys, taken_port):
    with only_one(tmp_path / "pong" / "player"):
        line = refused(capsys, "pong", "--races", tmp_path, "--port", taken_port)
    assert "is open in another parcade race" in line


@pytest.mark.processes
def test_ctrl_c_in_the_terminal_keeps_the_episode_that_is_played(tmp_path):
    """The terminal sends it to every process of the group."""
    words = "race pong --name anna --port 0 --no-browser --races".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "parcade", *words, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    address, token = re.search(r"http://([\d.:]+)/race#token=(.*)", process.stdout.readline()).groups()
    with connect(
        f"ws://{address}/ws/race",
        subprotocols=[PROTOCOL, token],
        origin=f"http://{address}",
        open_timeout=SECONDS,
        ping_timeout=SECONDS,
    ) as page:
        while unpacked(page.recv(SECONDS))[0]["type"] != "start":
            pass
        page.send('{"held": ["up"]}')
        while unpacked(page.recv(SECONDS))[0].get("frame", 0) < 30:
            pass
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and errors == ""
    assert load_recording(tmp_path / "pong" / "anna" / "unfinished.json").frames >= 30


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_prints_an_address_trains_and_ends_both_with_a_signal(tmp_path, number):
    words = [
        "race",
        "pong",
        "--name",
        "anna",
        "--races",
        str(tmp_path),
        "--port",
        "0",
        "--no-browser",
        "--train",
    ]
    flags = (
        "--algorithm a2c --num-envs 2 --image-height 42 --image-width 42 --network mlp --report-seconds 0.2"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "parcade", *words, "--", *flags.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    line = process.stdout.readline()
    assert re.search(r"race of anna in pong: http://127\.0\.0\.1:\d+/race#token=[\w-]{32}$", line.strip())
    metrics = tmp_path / "pong" / "anna" / "agent" / "metrics.jsonl"
    deadline = time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == (143 if number == signal.SIGTERM else 0) and errors == ""
    run = metrics.parent
    assert still_running(run) is None
    assert complete_checkpoints(run)
    assert training_words("pong", run, []) == ["train", "--resume", str(run)]
    with pytest.raises(UsageError, match="resumed with its own flags"):
        training_words("pong", run, ["--seed", "1"])
    assert Book(tmp_path / "pong" / "anna", "pong", "anna").episodes == []
