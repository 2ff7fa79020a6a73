"""Vector environments under random settings and players, on ale-py and on parcade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from random_play import STICKY, Compared, Difference, Player, check, check_outcome, chosen

from parcade.atari import Arcade, VectorConsoles
from parcade.envs.make import make_vec
from parcade.integrations.gym import make_registered_vec


def _vector_settings(random: np.random.Generator, game: str) -> dict[str, Any]:
    """Random settings by ale-py's names."""
    height = Arcade(game, 1).height
    size = chosen(random, (84, 84), (42, 42), (height, 160), (105, 80),
                  (int(random.integers(8, height + 1)), int(random.integers(8, 161))))  # fmt: skip
    return {
        "max_num_frames_per_episode": chosen(random, 108_000, int(random.integers(1, 1200))),
        "repeat_action_probability": chosen(random, *STICKY[:2]),
        "full_action_space": chosen(random, False, True),
        "img_height": size[0],
        "img_width": size[1],
        "grayscale": chosen(random, True, False),
        "stack_num": int(random.integers(1, 6)),
        "frameskip": int(random.integers(1, 9)),
        "maxpool": chosen(random, True, False),
        "noop_max": chosen(random, 0, 1, 30, int(random.integers(2, 60))),
        "use_fire_reset": chosen(random, False, True),
        "episodic_life": chosen(random, False, True),
        "reward_clipping": chosen(random, False, True),
    }


@dataclass
class At:
    """How far a comparison has come."""

    step: int = 0
    played: int = 0
    episodes: int = 0


@contextmanager
def comparing(ours: Any, settings: dict[str, Any], player: Player) -> Iterator[At]:
    """Count steps, frames and episodes, name them in a difference, and close our environments at the end."""
    at = At()
    try:
        yield at
    except Difference as error:
        raise Difference(f"{settings}, step {at.step}, {player.manner}: {error}") from None
    finally:
        ours.close()


def compare_vectors(game: str, seed: int, frames: int) -> Compared:
    """Compare `VectorConsoles` with ale-py's `AtariVectorEnv`, with all of its options."""
    random = np.random.default_rng(seed)
    settings = {**_vector_settings(random, game), "life_loss_info": chosen(random, False, True)}
    n, threads = int(random.integers(1, 4)), int(random.integers(1, 3))
    theirs = AtariVectorEnv(game, n, num_threads=1, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
    own = {name: value for name, value in settings.items() if name != "grayscale"}
    ours = VectorConsoles(
        game, n, num_threads=threads, obs_type="grey" if settings["grayscale"] else "rgb", **own
    )
    settings = {"num_envs": n, "num_threads": threads, **settings}
    player = Player(random, ours.action_set.tolist())
    with comparing(ours, settings, player) as at:
        while at.played < frames:
            if at.step % 150 == 0:
                _restart(ours, theirs, random, first=at.step == 0)
                player.begin()
            actions = np.array([player.act() for _ in range(n)])
            observations, *results, infos = theirs.step(actions)
            result = ours.step(actions)
            check("observations", result.observations, observations)
            check_outcome(result[1:4], results)
            for name in ("lives", "frame_number", "episode_frame_number"):
                check(name, getattr(result, name), infos[name])
            ended = (result.reset_frames > 0) | (result.episode_frame_number == 0)
            if ended.any():
                check("final observations", result.final_observations[ended], infos["final_obs"][ended])
            at.episodes += int(ended.sum())
            at.played += int(result.frames.sum())
            at.step += 1
    return Compared(settings, at.played, at.episodes)


def _restart(
    ours: VectorConsoles, theirs: AtariVectorEnv, random: np.random.Generator, *, first: bool
) -> None:
    """Reset both with a seed or without, later sometimes only some of the environments."""
    n = ours.num_envs
    seeds = random.integers(0, 2**31 - 1, n)
    mask = np.ones(n, bool) if first or random.random() < 0.5 else random.random(n) < 0.5
    if not mask.any():
        return
    if first or random.random() < 0.5:
        how = {"seed": seeds}, {"seed": seeds[mask]}
    else:
        how = {}, {}
    observations, infos = ours.reset(mask=mask, **how[0])
    expected, expected_infos = theirs.reset(
        options={"reset_mask": mask} if not mask.all() else None, **how[1]
    )
    check("observations of a reset", observations, expected)
    for name in infos:
        check(f"{name} of a reset", infos[name], expected_infos[name])


def _own_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of `make_vec` for ale-py's settings."""
    return {
        "frame_limit": settings["max_num_frames_per_episode"],
        "sticky_actions": settings["repeat_action_probability"],
        "full_action_set": settings["full_action_space"],
        "image_height": settings["img_height"],
        "image_width": settings["img_width"],
        "observations": "grey" if settings["grayscale"] else "rgb",
        "frame_stack": settings["stack_num"],
        "frame_skip": settings["frameskip"],
        "max_pool": settings["maxpool"],
        "noop_max": settings["noop_max"],
        "fire_reset": settings["use_fire_reset"],
        "ale_compat": settings["episodic_life"],
    }


def compare_made(game: str, seed: int, frames: int) -> Compared:
    """Compare environments of `make_vec` with `AtariVectorEnv`, in Gymnasium's autoreset modes."""
    random = np.random.default_rng(seed)
    settings = _vector_settings(random, game)
    settings["reward_clipping"] = settings["episodic_life"]
    n = int(random.integers(1, 4))
    mode = chosen(random, AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    theirs = AtariVectorEnv(game, n, num_threads=1, autoreset_mode=mode, **settings)
    how = _own_settings(settings)
    if mode == AutoresetMode.NEXT_STEP:
        ours = make_registered_vec(game, n, autoreset_mode=mode, **how)
    else:
        ours = make_vec(game, n, num_threads=int(random.integers(1, 3)), **how)
    settings = {"num_envs": n, "autoreset_mode": mode.value, **settings}
    player = Player(random, list(range(int(ours.single_action_space.n))))
    with comparing(ours, settings, player) as at:
        while at.played < frames:
            if at.step % 150 == 0:
                seeds = random.integers(0, 2**31 - 1, n) if at.step == 0 else None
                check("observations of a reset", ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0])
                player.begin()
            if random.random() < 0.02:
                _detour_of_made(ours, random)
            actions = np.array([player.act() for _ in range(n)])
            observations, *results, infos = theirs.step(actions)
            got, *own_results, own_infos = ours.step(actions)
            check("observations", got, observations)
            check_outcome(own_results, results)
            ended = own_results[1] | own_results[2]
            if mode == AutoresetMode.SAME_STEP:
                check("lives", own_infos["lives"], infos["lives"])
                check("_final_obs", own_infos.get("_final_obs", np.zeros(n, bool)), ended)
                if ended.any():
                    check("final observations", own_infos["final_obs"][ended], infos["final_obs"][ended])
            at.episodes += int(ended.sum())
            at.played += int(own_infos["frames"].sum())
            at.step += 1
    return Compared(settings, at.played, at.episodes)


def _detour_of_made(env: Any, random: np.random.Generator) -> None:
    """Play on parcade's environments alone, then return to where they were."""
    saved = env.get_state()
    for _ in range(random.integers(1, 8)):
        env.step(random.integers(0, env.single_action_space.n, env.num_envs))
    env.set_state(saved)


class Expected:
    """ale-py's environment with the settings of one of parcade's asynchronous ones, and its next action."""

    def __init__(self, game: str, settings: dict[str, Any]) -> None:
        self.env = AtariVectorEnv(game, 1, num_threads=1, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
        self.action: int | None = None

    def start(self, seed: int) -> None:
        """Start an episode when it is next compared."""
        self.seed, self.action = seed, None

    def compare(self, result: tuple[Any, ...], i: int) -> bool:
        """Compare row `i` of what was received; return whether an episode ended."""
        observations, *outcome, infos = result
        if self.action is None:
            expected, infos_expected = self.env.reset(seed=np.array([self.seed]))
            check("observations of a start", observations[i], expected[0])
            check("outcome of a start", [each[i] for each in outcome], [0, 0, 0])
            check("lives of a start", infos["lives"][i], infos_expected["lives"][0])
            return False
        expected, *outcome_expected, infos_expected = self.env.step(np.array([self.action]))
        check("observations", observations[i], expected[0])
        check_outcome([each[i] for each in outcome], [each[0] for each in outcome_expected])
        check("lives", infos["lives"][i], infos_expected["lives"][0])
        ended = bool(outcome[1][i] | outcome[2][i])
        if ended:
            check("final observations", infos["final_obs"][i], infos_expected["final_obs"][0])
        return ended


def compare_received(game: str, seed: int, frames: int) -> Compared:
    """Compare asynchronous environments of `make_vec`, in the order in which they finish."""
    random = np.random.default_rng(seed)
    settings = _vector_settings(random, game)
    settings["reward_clipping"] = settings["episodic_life"]
    n = int(random.integers(1, 5))
    batch_size, threads = int(random.integers(1, n + 1)), int(random.integers(1, 4))
    theirs = [Expected(game, settings) for _ in range(n)]
    how = _own_settings(settings)
    ours = make_vec(game, n, batch_size=batch_size, num_threads=threads, **how)
    settings = {"num_envs": n, "batch_size": batch_size, "num_threads": threads, **settings}
    player = Player(random, list(range(int(ours.single_action_space.n))))
    with comparing(ours, settings, player) as at:
        while at.played < frames:
            if at.step % 150 == 0:  # what was not received until then is dropped
                seeds = random.integers(0, 2**31 - 1, n)
                ours.async_reset(seed=seeds)
                for each, its_seed in zip(theirs, seeds, strict=True):
                    each.start(int(its_seed))
                player.begin()
            result = ours.recv()
            ids = result[-1]["env_id"]
            check("environments received twice", len(set(ids.tolist())), batch_size)
            at.episodes += sum(theirs[env].compare(result, i) for i, env in enumerate(ids))
            at.played += int(result[-1]["frames"].sum())
            for env in ids:
                theirs[env].action = player.act()
            for part in np.array_split(random.permutation(ids), random.integers(1, len(ids) + 1)):
                ours.send(np.array([theirs[env].action for env in part]), part)
            at.step += 1
    return Compared(settings, at.played, at.episodes)
