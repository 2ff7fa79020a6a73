"""Who may ask the dashboard's server, and what a hostile run directory can do: nothing."""

import json
import os
import re

import pytest
from starlette.websockets import WebSocketDisconnect

from parcade.cluster.processes import read_records
from parcade.cluster.stacks import stacks
from parcade.errors import UsageError
from parcade.web.app import STATIC
from parcade.web.security import MESSAGES_PER_SECOND, MOST_BODY_BYTES, MOST_MESSAGE_BYTES, Gate, Rate
from tests.history.written_runs import write_process, write_run
from tests.web.conftest import TOKEN, received_until_closed, within_time

pytestmark = pytest.mark.quick
DATA = [
    "runs",
    "metrics?run=pong-s0",
    "curves?run=pong-s0&metric=score_mean",
    "bands?run=pong-s0",
    "csv?run=pong-s0",
    "run?run=pong-s0",
    "profile?run=pong-s0",
]
ACTIONS = ["stop?run=pong-s0", "stacks?run=pong-s0", "doctor?run=pong-s0", "read-ahead?run=pong-s0"]


def test_the_page_loads_without_the_token_and_allows_no_foreign_script(client):
    del client.headers["Authorization"]
    page = client.get("/")
    assert page.status_code == 200 and "parcade" in page.text and TOKEN not in page.text
    policy = page.headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy
        and "unsafe-inline" not in policy
        and "frame-ancestors 'none'" in policy
    )
    assert client.get("/static/main.js").status_code == 200


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Bearer {TOKEN}x", TOKEN])
def test_data_and_actions_need_the_token(client, root, given):
    client.headers["Authorization"] = given or ""
    assert [client.get(f"/api/{path}").status_code for path in DATA] == [401] * len(DATA)
    assert [client.post(f"/api/{path}").status_code for path in ACTIONS] == [401] * len(ACTIONS)
    assert not (root / "pong-s0" / "stop").exists()


@pytest.mark.parametrize("path", ["/ws/live", "/ws/agent?run=pong-s0"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"token": "wrong"},
        {"host": "evil.example:2600", "origin": "http://evil.example:2600"},
    ],
)
def test_a_websocket_of_another_origin_host_or_token_is_refused(sockets, path, wrong):
    with pytest.raises(WebSocketDisconnect), sockets(path, **wrong) as socket:
        socket.receive_json()


def test_a_websocket_of_the_page_is_accepted_and_is_sent_all_runs(sockets):
    with sockets("/ws/live") as socket:
        message = within_time(socket.receive_json)
        while not message["changed"]:
            message = within_time(socket.receive_json)
        assert message["changed"][0]["id"] == "pong-s0"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.7"])
def test_a_foreign_host_header_is_refused_even_with_the_token(client, host):
    assert client.get("/api/runs", headers={"Host": host}).status_code == 403
    assert client.get("/", headers={"Host": host}).status_code == 403


def test_a_request_of_another_origin_is_refused_even_with_the_token(client):
    assert client.get("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/api/stop?run=pong-s0", headers={"Origin": "null"}).status_code == 403


def test_a_forwarded_port_and_a_bound_name_are_this_server():
    loopback, everywhere = Gate("t", "127.0.0.1"), Gate("t", "0.0.0.0")
    assert loopback.knows_host("localhost:9000") and loopback.knows_host("[::1]:2600")
    assert not loopback.knows_host("192.168.1.5:2600") and everywhere.knows_host("192.168.1.5:2600")
    assert not everywhere.knows_host("evil.example")


@pytest.mark.parametrize(
    "name",
    ["../secret", "..", "/etc", "pong-s0/../../secret", "pong-s0/", "", "%2e%2e", "pong-s0\0", "nothing"],
)
def test_only_listed_names_are_runs(client, root, name):
    write_run(root.parent, "secret")
    for path in ("run", "metrics", "profile"):
        assert client.get(f"/api/{path}", params={"run": name}).status_code == 404
    assert client.get("/api/curves", params={"run": name, "metric": "frames"}).status_code == 404
    assert client.post("/api/stop", params={"run": name}).status_code == 404
    assert not (root.parent / "secret" / "stop").exists()


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_static_files_do_not_leave_their_directory(client, path):
    assert client.get(path).status_code == 404


def test_a_large_body_and_one_of_unknown_size_are_refused(client):
    assert client.post("/api/stop?run=pong-s0", content=b"x" * (MOST_BODY_BYTES + 1)).status_code == 403
    assert client.post("/api/stop?run=pong-s0", content=iter([b"x"])).status_code == 403


def test_an_oversized_message_closes_the_websocket(sockets):
    with sockets("/ws/live") as socket:
        socket.send_text("x" * (MOST_MESSAGE_BYTES + 1))
        assert received_until_closed(socket) == 1009


def test_too_many_messages_close_the_websocket(frozen_rate, sockets):
    with sockets("/ws/live") as socket:
        for _ in range(int(MESSAGES_PER_SECOND) + 1):
            socket.send_text("{}")
        assert received_until_closed(socket) == 1008


def test_a_rate_refuses_what_exceeds_it(frozen_rate):
    rate = Rate(10.0)
    assert [rate.allows() for _ in range(12)] == [True] * 10 + [False] * 2


def test_too_many_curves_are_refused_in_one_line(client):
    metrics = [f"metric-{i}" for i in range(401)]
    answer = client.get("/api/curves", params={"run": "pong-s0", "metric": metrics})
    assert answer.status_code == 422 and "choose fewer" in answer.json()["error"]


HOSTILE = '<img src=x onerror="alert(1)">'


def test_hostile_names_and_settings_arrive_as_plain_json(client, root):
    run = write_run(root, "a'\"<script>alert(1)", game=HOSTILE, algorithm={"a": 1})
    (run / "result.json").write_text('{"finished_by": ["<b>"], "x": ' + "[" * 500 + "]" * 500 + "}")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"frames": "<b>", "<script>": 1, "score_mean": NaN}\n[1]\n{"frames": 1e999}\nnothing\n')
    answer = client.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    summary = next(each for each in answer.json()["runs"] if each["game"] == HOSTILE)
    assert summary["algorithm"] == "" and summary["id"] == run.name
    assert client.get("/api/run", params={"run": run.name}).json()["config"]["game"] == HOSTILE
    assert "<script>" in client.get("/api/metrics", params={"run": run.name}).json()["metrics"]


def test_names_and_numbers_that_json_cannot_express_do_not_break_the_list(client, root):
    run = write_run(root, "odd", game="\ud800")
    (run / "result.json").write_text('{"x": NaN, "y": 1e999, "\\ud800": -Infinity}')
    os.mkdir(os.fsencode(root) + b"/\xff")
    (root / os.fsdecode(b"\xff") / "config.json").write_text("{}")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"frames": 4400, "\\ud800": 1, "score_mean": NaN}\n')
    names = [each["id"] for each in client.get("/api/runs").json()["runs"]]
    assert sorted(names) == ["odd", "pong-s0"]
    assert client.get("/api/run?run=odd").json()["result"] == {"x": None, "y": None, "\ud800": None}
    assert "\ud800" in client.get("/api/metrics?run=odd").json()["metrics"]
    assert client.get("/api/csv?run=odd&metric=score_mean").status_code == 200


def test_extreme_numbers_do_not_break_the_list(client, root):
    run = write_run(root, "extreme")
    config = json.loads((run / "config.json").read_text())
    config["run"]["total_frames"] = 1e308
    (run / "config.json").write_text(json.dumps(config))
    with open(run / "metrics.jsonl", "a") as file:
        for frames in range(5000, 9000):
            file.write(
                json.dumps({"frames": frames, "wall_seconds": 1.0 * frames, "score_mean": 1.7e308}) + "\n"
            )
    write_process(run)
    path = run / "processes" / "rank-0.json"
    path.write_text(path.read_text().replace('"seconds": {}', '"seconds": {"main": {"infer": Infinity}}'))
    assert "Infinity" in path.read_text()

    def refuse(constant):
        raise AssertionError(constant)

    for request in ("/api/runs", "/api/run?run=extreme", "/api/curves?run=extreme&metric=score_mean"):
        json.loads(client.get(request).text, parse_constant=refuse)


def test_a_process_record_cannot_name_a_file_of_another_directory(root):
    run = write_run(root, "evil")
    (root / "evil-0.stack").write_text("another file")
    write_process(run)
    path = run / "processes" / "rank-0.json"
    path.write_text(path.read_text().replace('"rank"', '"../../evil"'))
    assert read_records(run) == []
    with pytest.raises(UsageError, match="no records of running processes"):
        stacks(run)
    assert (root / "evil-0.stack").exists()


def test_malformed_hosts_and_origins_are_refused(client):
    assert client.get("/", headers={"Host": "["}).status_code == 403
    assert client.get("/", headers={"Origin": "http://["}).status_code == 403


def test_a_csv_has_no_formulas(client, root):
    write_run(root, "=1+1")
    client.get("/api/runs")
    text = client.get("/api/csv", params={"run": "=1+1", "metric": "score_mean"}).text
    assert text.splitlines()[1].startswith("'=1+1,")
    text = client.get("/api/csv", params={"run": "=1+1", "metric": "=2+2"}).text
    assert text.splitlines()[0] == "run,frames,'=2+2"


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"run": 3}',
        "[" * 100_000,
        '{"run": {"seed": true, "total_frames": "9"}}',
        '{"run": {"total_frames": 1' + "0" * 400 + "}}",
        "",
    ],
)
def test_a_damaged_config_is_listed_all_the_same(client, root, content):
    run = write_run(root, "damaged")
    (run / "config.json").write_text(content)
    names = [each["id"] for each in client.get("/api/runs").json()["runs"]]
    assert "damaged" in names and client.get("/api/run?run=damaged").status_code == 200


def test_a_process_record_that_is_too_large_is_left_out(root):
    run = write_run(root, "large")
    write_process(run)
    assert len(read_records(run)) == 1
    with open(run / "processes" / "rank-0.json", "a") as file:
        file.write(" " * (1 << 20))
    assert read_records(run) == []


def test_a_checkpoint_with_a_digit_for_a_name_that_is_no_number_is_left_out(client, root):
    (root / "pong-s0" / "checkpoints" / "²").mkdir(parents=True)
    assert client.get("/api/run?run=pong-s0").json()["checkpoints"] == []


@pytest.mark.parametrize(
    "record",
    ["{}", "[]", "{", json.dumps({"role": 1, "number": "x", "pid": "../..", "start_ticks": 0, "host": "h"})],
)
def test_a_damaged_process_record_is_left_out(client, root, record):
    folder = root / "pong-s0" / "processes"
    folder.mkdir()
    (folder / "rank-0.json").write_text(record)
    assert client.get("/api/run?run=pong-s0").json()["processes"] == []


def test_a_named_pipe_in_place_of_a_file_does_not_hang(client, root):
    run = write_run(root, "pipe")
    (run / "result.json").unlink(missing_ok=True)
    os.mkfifo(run / "result.json")
    os.rename(run / "metrics.jsonl", run / "old")
    os.mkfifo(run / "metrics.jsonl")
    (run / "processes").mkdir()
    os.mkfifo(run / "processes" / "rank-0.json")
    assert "pipe" in [each["id"] for each in client.get("/api/runs").json()["runs"]]
    assert client.get("/api/curves?run=pipe&metric=frames").status_code == 200


def test_a_profile_that_makes_no_sense_is_refused_in_one_line(client, root):
    (root / "pong-s0" / "profile.json").write_text('{"schema_version": 1, "ranks": [{"rank": 1}]}')
    answer = client.get("/api/profile?run=pong-s0")
    assert answer.status_code == 422 and "cannot be read" in answer.json()["error"]


def test_the_page_loads_all_its_modules_at_once(client):
    page = client.get("/").text
    modules = {path.name for path in STATIC.glob("*.js")}
    assert set(re.findall(r'/static/(\w+\.js)"', page)) == modules
