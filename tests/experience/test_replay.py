"""The replay against a list of all steps, the sum tree against a list, and exact resumes."""

import numpy as np
import pytest
import torch

from parcade.algorithms.dqn import DQNConfig
from parcade.build.groups import make_group
from parcade.build.learner import make_policy
from parcade.build.replay import make_replay
from parcade.config import RunConfig, TrainConfig
from parcade.envs.settings import EnvSettings
from parcade.experience.batch import empty_batch
from parcade.experience.prioritized import SumTree
from parcade.experience.replay import Replay, ReplaySettings
from parcade.experience.rollout import play_rollout
from parcade.machine.timing import Timer
from parcade.testing import SlowPriorities

pytestmark = pytest.mark.quick
GAMMA = 0.9


class Player:
    """Plays a synthetic game: every frame is a new number, and episodes end at random in three ways."""

    def __init__(self, lanes, stack, seed):
        self.random = np.random.default_rng(seed)
        self.stack = stack
        self.next_frame = 1
        # Steps: (observation, action, reward, end, next_observation).
        self.history = [[] for _ in range(lanes)]
        self.now = [self.first() for _ in range(lanes)]
        self.starts = [True] * lanes

    def frame(self):
        self.next_frame += 1
        return self.next_frame

    def first(self):
        return [0] * (self.stack - 1) + [self.frame()]

    def block(self, T):
        B = len(self.now)
        shape = (self.stack, 1, 1) if self.stack > 1 else (1,)
        batch = empty_batch(T, B, shape, torch.int32)
        truncated_at, finals = [], []
        for t in range(T):
            for b in range(B):
                observation = self.now[b]
                action, reward = int(self.random.integers(4)), float(self.random.normal())
                end = self.random.choice(["on", "on", "on", "on", "on", "over", "cut", "life"])
                following = [*observation[1:], self.frame()]
                batch.observations[t, b] = torch.tensor(observation).view(shape)
                batch.actions[t, b], batch.rewards[t, b] = action, reward
                batch.starts[t, b] = self.starts[b]
                batch.terminated[t, b], batch.truncated[t, b] = end == "over", end == "cut"
                batch.life_lost[t, b] = end == "life"
                batch.behaviour_values[t, b], batch.behaviour_scores[t, b] = observation[-1], -observation[-1]
                if end == "cut":
                    truncated_at.append((t, b))
                    finals.append(torch.tensor(following, dtype=torch.int32).view(shape))
                self.history[b].append((observation, action, reward, end, following))
                self.starts[b] = end in ("over", "cut")
                self.now[b] = self.first() if self.starts[b] else following
        if finals:
            batch.truncated_at, batch.truncated_observations = torch.tensor(truncated_at), torch.stack(finals)
        return batch

    def transition(self, newest_frame, n):
        """The n-step transition whose observation ends with this frame, from the list of all steps."""
        for steps in self.history:
            for i, step in enumerate(steps):
                if step[0][-1] != newest_frame:
                    continue
                total, discount = 0.0, 1.0
                for k in range(n):
                    _, _, reward, end, following = steps[i + k]
                    total += discount * reward
                    discount *= GAMMA
                    if end in ("over", "life"):
                        return step, total, 0.0, None
                    if end == "cut":
                        break
                return step, total, discount, following
        raise AssertionError(f"frame {newest_frame} was never played")


def filled(stack, n, alpha=0.0, lanes=3, capacity=180, seed=0, blocks=60):
    player = Player(lanes, stack, seed)
    settings = ReplaySettings(capacity, n, GAMMA, stack, alpha)
    shape = (stack, 1, 1) if stack > 1 else (1,)
    replay = Replay(settings, lanes, shape, np.int32)
    for _ in range(blocks):
        replay.add(player.block(int(player.random.integers(1, 6))))
    return player, replay


def assert_samples_are_of_the_list(player, replay, n):
    batch = replay.sample(np.random.default_rng(1).random(400))
    for k in range(400):
        observation = batch.observations[k].flatten().tolist()
        step, total, discount, following = player.transition(observation[-1], n)
        assert observation == step[0] and batch.actions[k] == step[1]
        assert batch.returns[k].item() == pytest.approx(total, abs=1e-5)
        assert batch.discounts[k].item() == pytest.approx(discount, abs=1e-6)
        if following is not None:
            assert batch.next_observations[k].flatten().tolist() == following


def assert_same_samples(one, other):
    draws = np.random.default_rng(2).random(50)
    a, b = one.sample(draws).arrays(), other.sample(draws).arrays()
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("blocks", [5, 60])
def test_every_transition_equals_that_of_a_list_of_all_steps(stack, n, blocks):
    player, replay = filled(stack, n, blocks=blocks)
    assert_samples_are_of_the_list(player, replay, n)


def test_uniform_sampling_finds_every_transition_equally_often():
    _, replay = filled(4, 3)
    N = 200 * len(replay)
    _, counts = np.unique(replay.sample(np.random.default_rng(0).random(N)).indices, return_counts=True)
    assert len(counts) == len(replay)
    assert abs(counts.mean() - 200) < 1e-9 and counts.min() > 120 and counts.max() < 290


def num_bytes(replay):
    return replay.tree.nodes.nbytes + sum(array.nbytes for array in replay._arrays().values())


def test_the_oldest_are_forgotten_and_memory_stays():
    player, replay = filled(4, 3, blocks=5)
    before = num_bytes(replay)
    for _ in range(100):
        replay.add(player.block(4))
    assert num_bytes(replay) == before
    assert len(replay) == (replay.tree.leaves > 0).sum() <= 180
    newest = max(steps[-1][0][-1] for steps in player.history)
    oldest_sampled = replay.sample(np.random.default_rng(0).random(500)).observations[:, -1].min()
    assert oldest_sampled > newest - 3 * 180


def test_the_stated_bytes_are_what_a_replay_takes():
    settings = ReplaySettings(4096, 3, GAMMA, 4)
    replay = Replay(settings, 4, (4, 42, 42), np.uint8)
    stated = 4096 * Replay.bytes_per_transition((4, 42, 42), np.uint8, 4)
    # The sum tree of a power of two takes 16 of the 32 bytes, and each lane counts its entries.
    assert num_bytes(replay) == stated - 4096 * 16 + 4 * 8


def test_first_priorities_are_the_n_step_errors_of_the_values_the_actor_saw():
    player, replay = filled(1, 2, alpha=0.5, blocks=10)
    lanes, slots = np.divmod(np.flatnonzero(replay.tree.leaves), replay.length)
    for lane, slot in zip(lanes, slots, strict=True):
        frame = int(replay.frames[lane, slot, 0])
        _, total, discount, following = player.transition(frame, 2)
        ends_by_cut = (
            following is not None and discount and not any(s[0] == following for s in player.history[lane])
        )
        if ends_by_cut:
            continue  # bootstraps from the actor's last value
        best = following[-1] if following is not None else 0.0
        error = abs(total + discount * best + frame)
        assert replay.tree.leaves[lane * replay.length + slot] == pytest.approx(
            (error + 1e-6) ** 0.5, rel=1e-5
        )


def test_new_steps_take_the_largest_priority_where_errors_are_losses():
    player = Player(3, 1, seed=0)
    replay = Replay(ReplaySettings(180, 2, GAMMA, 1, 0.5, new_is_largest=True), 3, (1,), np.int32)
    replay.add(player.block(5))
    assert set(replay.tree.leaves) == {0.0, 1.0}
    batch = replay.sample(np.random.default_rng(0).random(64))
    replay.update_priorities(batch.indices, batch.stamps, np.where(batch.indices == batch.indices[0], 9, 4))
    assert replay.tree.leaves.max() == pytest.approx(3, abs=1e-5)
    before = replay.tree.leaves > 0
    replay.add(player.block(4))
    new = replay.tree.leaves[(replay.tree.leaves > 0) & ~before]
    assert len(new) and (new == replay.tree.leaves.max()).all()


def test_prioritised_samples_are_one_of_each_equal_segment_of_the_priorities():
    replay = Replay(ReplaySettings(180, 2, GAMMA, 1, 0.5, new_is_largest=True), 3, (1,), np.int32)
    replay.add(Player(3, 1, seed=0).block(20))
    n = len(replay)  # of the same priority
    batch = replay.sample(np.random.default_rng(0).random(n))
    assert n > 30 and sorted(batch.indices) == sorted(np.flatnonzero(replay.tree.leaves))


def test_learned_priorities_change_what_is_sampled_and_stale_ones_do_not():
    player, replay = filled(1, 1, alpha=1.0)
    batch = replay.sample(np.random.default_rng(0).random(64))
    chosen = batch.indices[0]
    errors = np.where(batch.indices == chosen, 1e9, 1e-3)
    replay.update_priorities(batch.indices, batch.stamps, errors)
    again = replay.sample(np.random.default_rng(1).random(64))
    assert (again.indices == chosen).all() and again.probabilities[0] == pytest.approx(1.0, abs=1e-3)
    for _ in range(60):
        replay.add(player.block(4))
    before = replay.tree.leaves.copy()
    replay.update_priorities(batch.indices, batch.stamps, np.full(64, 1e12))
    assert (replay.tree.leaves == before).all()


def test_a_restored_replay_samples_the_same():
    player, replay = filled(4, 3, alpha=0.6)
    other = Replay(replay.settings, 3, (4, 1, 1), np.int32)
    other.set_state(replay.get_state())
    block = player.block(3)
    for each in (replay, other):
        each.add(block)
    assert_same_samples(replay, other)


def test_the_state_of_a_replay_is_not_a_copy():
    """A checkpoint of a replay that fills half of the memory would otherwise need all of it."""
    _, replay = filled(4, 3, alpha=0.6)
    state = replay.get_state()
    assert np.shares_memory(state["frames"], replay.frames)
    assert np.shares_memory(state["priorities"], replay.tree.leaves)


def test_a_replay_that_spills_samples_the_same_and_leaves_no_file(tmp_path):
    player, replay = filled(4, 3, alpha=0.6)
    spilled = Replay(replay.settings, 3, (4, 1, 1), np.int32, tmp_path)
    assert isinstance(spilled.frames, np.memmap) and list(tmp_path.iterdir()) == []
    spilled.set_state(replay.get_state())
    block = player.block(3)
    for each in (replay, spilled):
        each.add(block)
    assert_same_samples(replay, spilled)
    shape = ((4, 84, 84), np.uint8, 4)
    assert Replay.bytes_per_transition(*shape) - Replay.bytes_per_transition(*shape, spilled=True) == 84 * 84


def test_games_cut_by_a_resume_lead_nowhere():
    player, replay = filled(4, 3, blocks=6)
    going = [b for b in range(3) if player.history[b][-1][3] == "on"]
    assert going
    for b in going:
        player.history[b][-1] = (*player.history[b][-1][:3], "lost", None)
        player.now[b], player.starts[b] = player.first(), True
    replay.add(player.block(5))
    for observation in replay.sample(np.random.default_rng(0).random(300)).observations.flatten(1).tolist():
        for steps in player.history:
            for i, step in enumerate(steps):
                if step[0] == observation:
                    ends = [s[3] for s in steps[i : i + 3]]
                    assert "lost" not in ends or {"over", "cut", "life"} & set(ends[: ends.index("lost")]), (
                        ends
                    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [1, 5, 8, 37])
def test_the_sum_tree_equals_a_list(seed, capacity):
    random = np.random.default_rng(seed)
    tree, slow = SumTree(capacity), SlowPriorities(capacity)
    for _ in range(5):
        indices = random.permutation(capacity)[: random.integers(1, capacity + 1)]
        values = random.integers(0, 9, len(indices)).astype(float)
        values[0] += 1
        tree.update(indices, values)
        slow.update(indices, values)
        assert tree.leaves.tolist() == slow.values and tree.total == sum(slow.values)
        shares = random.random(50)
        assert tree.sample(shares).tolist() == slow.sample(shares)


def test_the_sum_tree_never_gives_an_empty_place():
    tree = SumTree(6)
    tree.update(np.array([1, 4]), np.array([1e-9, 0.3]))
    assert set(tree.sample(np.append(np.linspace(0, 1, 101)[:-1], np.nextafter(1, 0))).tolist()) <= {1, 4}


def test_a_replay_too_small_for_its_environments_is_refused():
    with pytest.raises(ValueError, match="expected 22 or more"):
        Replay(ReplaySettings(40, 3, GAMMA, 4), 4, (4, 1, 1), np.uint8)


@pytest.mark.parametrize("stack", [1, 4])
def test_stacks_of_ram_are_put_together_from_single_ones(stack):
    env = EnvSettings(observations="ram", frame_stack=stack, frame_limit=60)
    config = TrainConfig("pong", RunConfig(algorithm="dqn"), env, DQNConfig(num_envs=2, replay_capacity=400))
    group = make_group(config, 0, 2, num_threads=1, timer=Timer())
    policy = make_policy(config)
    group.start(policy)
    replay = make_replay(config, 1, 2, block=16, replays_here=1)
    assert replay.frame_shape == (128,) and replay.settings.frame_stack == stack
    seen = set()
    for _ in range(10):
        batch = play_rollout(group, policy, 16)
        seen |= {stacks.numpy().tobytes() for stacks in batch.observations.flatten(0, 1)}
        replay.add(batch)
    sampled = replay.sample(np.random.default_rng(0).random(100)).observations
    assert sampled.shape == (100, *env.observation_shape) and len(seen) > 100
    assert all(stacks.numpy().tobytes() in seen for stacks in sampled)
