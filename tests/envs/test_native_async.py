"""The asynchronous mode: every environment plays what it plays in rounds, and mistakes are one line."""

import os
import signal
import threading

import numpy as np
import pytest

import parcade
from parcade import make_vec
from parcade.atari.threads import task_queue
from parcade.errors import UsageError

SMALL = {"image_height": 42, "image_width": 42}
SHORT = {**SMALL, "frame_limit": 120, "noop_max": 5}


@pytest.fixture(params=["semaphores", "no semaphores"])
def way(request, monkeypatch):
    if request.param == "no semaphores":
        monkeypatch.setattr(task_queue, "find_semaphores", lambda: None)


def action_of(e, step, num_actions):
    """The action of environment e at a step, however the environments are batched."""
    return int(np.random.default_rng([e, step]).integers(num_actions))


def played_in_rounds(num_envs, num_steps, **settings):
    """Results of each environment by step: observation, reward, flags and infos; step 0 is the reset."""
    env = make_vec(num_envs=num_envs, **settings)
    observations, infos = env.reset(seed=7)
    played = [[(observations[e], 0, False, False, rows(infos, e))] for e in range(num_envs)]
    for step in range(1, num_steps):
        actions = [action_of(e, step, env.single_action_space.n) for e in range(num_envs)]
        *result, infos = env.step(np.array(actions))
        for e in range(num_envs):
            played[e].append((*(column[e] for column in result), rows(infos, e)))
    env.close()
    return played


def rows(infos, e):
    """The infos of one environment, with `final_obs` only if its episode ended."""
    over = "_final_obs" in infos and infos["_final_obs"][e]
    return {
        name: column[e]
        for name, column in infos.items()
        if name not in ("final_obs", "_final_obs", "env_id") or (over and name != "env_id")
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"game": "breakout", "sticky_actions": 0.25, "num_threads": 3, **SHORT},
        {"game": "pong", "preset": "karpathy_2016", "frame_limit": 120, "num_threads": 2},
        {"game": "breakout", "observations": "ram", "start_states": "cached", **SHORT},
    ],
)
def test_every_environment_plays_what_it_plays_in_rounds(settings, way):
    num_envs, num_steps = 5, 60
    expected = played_in_rounds(num_envs, num_steps, **settings)
    env = make_vec(num_envs=num_envs, batch_size=2, **settings)
    env.async_reset(seed=7)
    steps, ends = np.zeros(num_envs, int), 0
    while steps.min() < num_steps:
        *result, infos = env.recv()
        assert env.observation_space.contains(result[0])
        for k, e in enumerate(infos["env_id"]):
            if steps[e] < num_steps:
                got, want = (*(column[k] for column in result), rows(infos, k)), expected[e][steps[e]]
                for a, b in zip(got[:4], want[:4], strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=f"environment {e}, step {steps[e]}")
                assert got[4].keys() == want[4].keys()
                for name in want[4]:
                    np.testing.assert_array_equal(
                        got[4][name], want[4][name], err_msg=f"{name}, step {steps[e]}"
                    )
                ends += want[2] or want[3]
            steps[e] += 1
        ids = infos["env_id"]
        env.send([action_of(e, steps[e], env.single_action_space.n) for e in ids], ids)
    assert ends >= num_envs
    env.close()


def test_one_thread_serves_environments_in_the_order_of_their_actions(way):
    env = make_vec("pong", 5, batch_size=2, num_threads=1, **SMALL)
    env.async_reset(seed=0)
    waiting, generator = list(range(5)), np.random.default_rng(0)
    for _ in range(40):
        ids = env.recv()[4]["env_id"]
        assert ids.tolist() == waiting[:2]
        sent = generator.permutation(ids)
        waiting = [*waiting[2:], *sent]
        env.send(np.zeros(2, np.int64), sent)
    env.close()


def test_reset_and_step_are_a_send_and_a_recv():
    env = make_vec("pong", 4, batch_size=4, **SMALL)
    rounds = make_vec("pong", 4, **SMALL)
    observations, infos = env.reset(seed=1)
    assert np.array_equal(observations[np.argsort(infos["env_id"])], rounds.reset(seed=1)[0])
    got = env.step(np.array([2, 3, 2, 3]), np.arange(4))
    want = rounds.step(np.array([2, 3, 2, 3]))
    assert np.array_equal(got[0][np.argsort(got[4]["env_id"])], want[0])
    env.close(), rounds.close()


def test_a_reset_drops_what_was_not_received_and_starts_every_environment():
    env = make_vec("pong", 5, batch_size=2, num_threads=2, **SMALL)
    first, infos = env.reset(seed=1)
    env.send(np.zeros(2, np.int64), infos["env_id"])
    env.async_reset(seed=1)
    seen = [env.recv()[4]["env_id"] for _ in range(2)]
    assert len(set(np.concatenate(seen))) == 4
    again, infos_again = env.reset(seed=1)
    for k, e in enumerate(infos["env_id"]):
        for other in np.flatnonzero(infos_again["env_id"] == e):
            assert np.array_equal(first[k], again[other])
    env.close()


def test_results_belong_to_the_caller():
    env = make_vec("pong", 2, batch_size=1, **SMALL)
    env.async_reset(seed=0)
    kept = []
    for step in range(8):
        observations, rewards, *_, infos = env.recv()
        kept.append((observations, rewards, observations.copy(), rewards.copy()))
        env.send([step % 4], infos["env_id"])
    assert all(np.array_equal(a, c) and np.array_equal(b, d) for a, b, c, d in kept)
    env.close()


@pytest.mark.parametrize(
    ("actions", "env_id", "says"),
    [
        ([0], [9], "env_id contains 9; expected 0 to 3"),
        ([0], [-1], "env_id contains -1"),
        ([0, 0], [1, 1], "an environment twice"),
        ([0, 0], [1.0, 2.0], r"env_id is float64 \(2,\); expected integers"),
        (0, 1, r"env_id is int64 \(\)"),
        ([0], [0, 1], r"actions have shape \(1,\); expected \[2\]"),
        ([6], "received", "actions contain 6; expected 0 to 5"),
        ([0], "busy", r"environments \d are busy; receive them first"),
    ],
)
def test_a_wrong_send_is_refused_and_no_environment_is_stepped(actions, env_id, says):
    env = make_vec("pong", 4, batch_size=1, **SMALL)
    _, infos = env.reset(seed=0)
    ids = {"received": infos["env_id"], "busy": [(infos["env_id"][0] + 1) % 4]}.get(str(env_id), env_id)
    with pytest.raises(UsageError, match=says) as refused:
        env.send(actions, ids)
    assert "\n" not in str(refused.value)
    for _ in range(3):  # the other three are still to be received
        env.recv()
    with pytest.raises(UsageError, match="0 environments are busy, fewer than batch_size=1; send actions"):
        env.recv()
    env.send([0, 1, 2, 3], range(4))
    env.close()


def test_calls_before_async_reset_and_after_close_are_refused():
    env = make_vec("pong", 2, batch_size=1, **SMALL)
    for call in (env.recv, lambda: env.send([0], [0])):
        with pytest.raises(UsageError, match="no episode has been started; call async_reset first"):
            call()
    env.close()
    for call in (env.recv, env.async_reset, env.reset, lambda: env.send([0], [0])):
        with pytest.raises(UsageError, match="after close; make a new environment"):
            call()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 3}, "batch_size=3 is above num_envs=2; use 2 or fewer"),
        ({"batch_size": -1}, "batch_size=-1 is below 0"),
        ({"batch_size": 1.5}, "batch_size=1.5 is not an integer"),
        ({"batch_size": 1, "backend": "ale"}, "batch_size is for Atari games on backend 'native'"),
        ({"batch_size": 1, "device": "cuda"}, "batch_size is for device 'cpu'"),
    ],
)
def test_a_wrong_batch_size_is_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        make_vec("pong", 2, **settings)


def test_a_batch_size_is_refused_where_all_environments_step_together():
    with pytest.raises(UsageError, match="batch_size is for one game"):
        make_vec(["pong", "breakout"], 2, batch_size=1)
    with pytest.raises(UsageError, match="batch_size is for Atari games"):
        make_vec("tiny_catch", 2, batch_size=1)
    with pytest.raises(UsageError, match="batch_size is for vector environments"):
        parcade.make("pong", batch_size=1)


@pytest.mark.parametrize("batch_size", [None, 0])
def test_without_a_batch_size_all_environments_step_together(batch_size):
    env = make_vec("pong", 2, batch_size=batch_size, **SMALL)
    assert env.reset(seed=0)[0].shape[0] == 2 and not hasattr(env, "recv")
    env.close()


def test_a_close_while_environments_play_waits_for_their_steps_and_ends_the_threads(way):
    for _ in range(5):
        env = make_vec("pong", 8, batch_size=2, num_threads=2, **SMALL)
        env.async_reset(seed=0)
        env.close()
    env = make_vec("pong", 8, batch_size=2, num_threads=2, **SMALL)
    env.async_reset(seed=0)
    del env  # as close
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("parcade-queue")]


def test_a_close_in_another_thread_does_not_strand_a_receiver():
    env = make_vec("pong", 4, batch_size=4, num_threads=2, **SMALL)
    ended = threading.Event()

    def receive():
        with pytest.raises(UsageError):
            while True:
                env.async_reset(seed=0)
                env.recv()
        ended.set()

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    env.close()
    assert ended.wait(60)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_ctrl_c_at_any_moment_leaves_an_environment_that_can_start_again(way):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    env = make_vec("pong", 6, batch_size=3, num_threads=2, **SMALL)
    expected, infos = env.reset(seed=3)
    by_number = dict(zip(infos["env_id"].tolist(), expected, strict=True))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for moment in range(1, 31):
            env.async_reset(seed=3)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, moment * 1e-4)
                while True:
                    ids = env.recv()[4]["env_id"]
                    env.send(np.zeros(3, np.int64), ids)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    observations, infos = env.reset(seed=3)
    for e, observation in zip(infos["env_id"].tolist(), observations, strict=True):
        assert e not in by_number or np.array_equal(observation, by_number[e])
    env.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_where_threads_cannot_be_started_a_second_try_does_not_wait_for_the_first(monkeypatch):
    env = make_vec("pong", 2, batch_size=1, **SMALL)
    start = threading.Thread.start

    def refuse(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        env.async_reset(seed=0)
    env.async_reset(seed=0)
    assert env.recv()[0].shape[0] == 1
    env.close()


def test_a_forked_process_is_told_to_make_its_own_environment(monkeypatch):
    env = make_vec("pong", 2, batch_size=1, **SMALL)
    env.async_reset(seed=0)
    with monkeypatch.context() as child:
        child.setattr(task_queue.os, "getpid", lambda: -1)
        for call in (env.recv, env.async_reset, env.reset, lambda: env.send([0], [0])):
            with pytest.raises(UsageError, match="make a new environment here"):
                call()
    env.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_during_a_call_of_another_thread_does_not_wait_for_it(monkeypatch):
    env = make_vec("pong", 2, batch_size=1, **SMALL)
    env.async_reset(seed=0)
    held, go_on = threading.Event(), threading.Event()

    def call():
        with env._consoles._exclusive():
            held.set()
            go_on.wait(60)

    parent = threading.Thread(target=call, daemon=True)
    parent.start()
    assert held.wait(60)
    with monkeypatch.context() as child:
        child.setattr(task_queue.os, "getpid", lambda: -1)
        with pytest.raises(UsageError, match="make a new environment here"):
            env.recv()
        closing = threading.Thread(target=env._consoles.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    go_on.set()
    parent.join(60)
    env.close()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_numbers_of_environments_may_have_any_integer_type(dtype):
    env = make_vec("pong", 3, batch_size=3, **SMALL)
    env.reset(seed=0)
    env.send(np.zeros(3, np.int64), np.arange(3).astype(dtype))
    assert sorted(env.recv()[4]["env_id"]) == [0, 1, 2]
    env.close()
