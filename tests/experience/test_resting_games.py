"""Consoles that rest one by one give the same complete episodes, bit for bit, as one group per console."""

import numpy as np
import torch

from parcade.algorithms.reinforce import ReinforceConfig
from parcade.build.groups import make_group
from parcade.build.learner import make_policy
from parcade.config import RunConfig, TrainConfig
from parcade.envs.settings import EnvSettings
from parcade.experience.episodes_source import EpisodesSource
from parcade.machine.timing import Timer


def source_of(sizes, games_per_env=2):
    env = EnvSettings(image_height=42, image_width=42, frame_stack=2, frame_limit=4000, noop_max=30)
    hyper = ReinforceConfig(num_envs=sum(sizes))
    config = TrainConfig("breakout", RunConfig(algorithm="reinforce", backend="native"), env, hyper)
    first = np.cumsum([0, *sizes])
    groups = [
        make_group(config, int(at), size, num_threads=1, timer=Timer())
        for at, size in zip(first, sizes, strict=False)
    ]
    return EpisodesSource(groups, games_per_env, make_policy(config), num_threads=2, timer=Timer())


def test_one_group_of_three_gives_what_three_groups_give():
    together, apart = source_of([3]), source_of([1, 1, 1])
    for _ in range(2):
        a, b = together.next_batch().tensors(), apart.next_batch().tensors()
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, msg=name)
    lengths = a["mask"].sum(0)
    assert len(lengths) == 6 and lengths.min() > 0
    assert len(set(lengths.tolist())) > 1, "with episodes of equal length no console would rest"
    assert together.steps == apart.steps and together.frames == apart.frames
    rows = [np.concatenate([log.take_new() for log in source.episode_logs]) for source in (together, apart)]
    np.testing.assert_array_equal(*(each[np.lexsort((each[:, 4], each[:, 3]))] for each in rows))
    together.close()
    apart.close()


def test_a_group_goes_on_from_its_state_with_the_same_games():
    one, other = source_of([2]), source_of([2])
    one.next_batch()
    state = {name: np.array(np.asarray(value)) for name, value in one.get_state().items()}
    other.set_state(state)
    a, b = one.next_batch().tensors(), other.next_batch().tensors()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, msg=name)
    one.close()
    other.close()
