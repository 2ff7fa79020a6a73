"""Random settings, players and interventions on ale-py and on parcade; shared by the tests and the sweep.

Each comparison takes a game, a seed, from which everything random follows, and a number of frames. It raises
`Difference` at the first difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ale_py
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing

from parcade.atari import Arcade, VectorConsoles, games
from parcade.envs.make import make_vec
from parcade.integrations.ale_interface import AleInterface
from parcade.integrations.gym import make_registered_vec
from parcade.integrations.raw import RawAtariEnv

STICKY = (0.0, 0.25, 1.0)
# These select a mode by actions, so ale-py's reset may never end if an action always repeats, or if the
# episode's limit of frames comes first.
MODE_BY_ACTIONS = ("double_dunk", "video_cube")
PLAYERS = ("uniform", "held", "firing", "still")


class Difference(AssertionError):
    """What differs, and where."""


class Compared(NamedTuple):
    """What a comparison has compared."""

    settings: dict[str, Any]
    frames: int
    episodes: int
    notes: dict[str, int] | None = None


class Player:
    """A player of indices into `actions`, ale-py's ids, who plays each episode in one of four manners."""

    def __init__(self, random: np.random.Generator, actions: list[int]) -> None:
        self.random, self.num_actions = random, len(actions)
        self.fire = actions.index(1) if 1 in actions else 0
        self.begin()

    def begin(self) -> None:
        """Choose how to play the next episode."""
        self.manner = str(self.random.choice(PLAYERS, p=(0.35, 0.35, 0.2, 0.1)))
        self.action, self.frames_left = 0, 0

    def act(self) -> int:
        """Return the next action."""
        if self.manner == "still":
            return 0
        if self.manner == "firing" and self.random.random() < 0.6:
            return self.fire
        if self.frames_left <= 0:
            self.action = int(self.random.integers(self.num_actions))
            self.frames_left = int(self.random.integers(2, 120)) if self.manner == "held" else 1
        self.frames_left -= 1
        return self.action


def chosen(random: np.random.Generator, *values: Any) -> Any:
    """Return one of the values."""
    return values[random.integers(len(values))]


def check(name: str, ours: Any, theirs: Any) -> None:
    """Compare values or arrays. Errors: Difference."""
    if not np.array_equal(ours, theirs):
        where = ""
        if np.ndim(theirs) and np.shape(ours) == np.shape(theirs):
            where = f" at {np.argwhere(np.asarray(ours) != theirs)[:4].tolist()}"
        elif not np.ndim(theirs):
            where = f" is {ours}, ale-py's {theirs}"
        raise Difference(f"{name}{where}")


# --- consoles, frame by frame -------------------------------------------------------------------------------


def _sticky_and_limit(game: str, random: np.random.Generator) -> tuple[float, int]:
    """Random sticky actions, and a limit of frames per episode; 0 is none."""
    sticky, limit = chosen(random, *STICKY), chosen(random, 0, 0, int(random.integers(1, 2000)))
    return (min(sticky, STICKY[1]), 0) if game in MODE_BY_ACTIONS else (sticky, limit)


def compare_interface(ours: AleInterface, theirs: ale_py.ALEInterface, *, in_colour: bool) -> None:
    """Compare everything that can be read of a console; pictures also in grey and RGB, if `in_colour`.

    Pictures of a chip that an opcode has halted are not compared: ale-py greys them, parcade keeps them.
    """
    check("RAM", ours.getRAM(), theirs.getRAM())
    halted = bool(ours.arcade.halted[0])
    if not halted:
        check("screen", ours.getScreen(), theirs.getScreen())
    if in_colour and not halted:
        check("grey screen", ours.getScreenGrayscale(), theirs.getScreenGrayscale())
        check("screen in colour", ours.getScreenRGB(), theirs.getScreenRGB())
    check("lives", ours.lives(), theirs.lives())
    for with_truncation in (False, True):
        over, expected = (each.game_over(with_truncation=with_truncation) for each in (ours, theirs))
        check("game over", over, expected)
    check("truncated", ours.game_truncated(), theirs.game_truncated())
    check("frame number", ours.getFrameNumber(), theirs.getFrameNumber())
    check("episode's frame number", ours.getEpisodeFrameNumber(), theirs.getEpisodeFrameNumber())


class Consoles:
    """One console of ale-py and one of parcade that get the same calls."""

    def __init__(self, game: str, random: np.random.Generator) -> None:
        self.random, self.frames = random, 0
        self.sticky, self.limit = _sticky_and_limit(game, random)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.theirs = ale_py.ALEInterface()
        self.theirs.setFloat("repeat_action_probability", self.sticky)
        self.theirs.setInt("max_num_frames_per_episode", self.limit)
        self.rom = games.find_rom(game)
        self.ours = AleInterface(Arcade(game, 1, repeat_action_probability=self.sticky), self.limit)
        self.load()
        for name in ("Modes", "Difficulties"):
            ours, theirs = (getattr(each, f"getAvailable{name}")() for each in (self.ours, self.theirs))
            check(name, sorted(ours), sorted(theirs))
        for name in ("getMinimalActionSet", "getLegalActionSet"):
            check(name, getattr(self.ours, name)(), [each.value for each in getattr(self.theirs, name)()])

    def load(self) -> None:
        """Load the ROM with a new seed."""
        seed = int(self.random.integers(2**31))
        self.theirs.setInt("random_seed", seed)
        self.theirs.loadROM(self.rom)
        self.ours.load(seed)
        compare_interface(self.ours, self.theirs, in_colour=True)

    def set_variant(self, mode: int, difficulty: int) -> None:
        """Set the mode of the next episode, and the difficulty from now on."""
        for console in (self.ours, self.theirs):
            console.setMode(mode)
            console.setDifficulty(difficulty)

    def reset(self) -> None:
        """Start an episode and compare."""
        self.theirs.reset_game()
        self.ours.reset_game()
        compare_interface(self.ours, self.theirs, in_colour=True)

    def act(self, action: int) -> None:
        """Play one frame and compare."""
        theirs, ours = self.theirs.act(ale_py.Action(action)), self.ours.act(action)
        check("reward", ours, theirs)
        self.frames += 1
        compare_interface(self.ours, self.theirs, in_colour=self.frames % 8 == 0)

    def poke(self) -> None:
        """Write a random byte to the RAM."""
        address, value = int(self.random.integers(128)), int(self.random.integers(256))
        self.ours.setRAM(address, value)
        self.theirs.setRAM(address, value)

    def detour(self) -> None:
        """Play on parcade's console alone, then return to where it was."""
        saved = self.ours.cloneSystemState()
        for _ in range(self.random.integers(1, 20)):
            self.ours.act(int(self.random.integers(18)))
        if self.random.random() < 0.2:
            self.ours.reset_game()
        self.ours.restoreSystemState(saved)
        compare_interface(self.ours, self.theirs, in_colour=True)

    def rewind(self, player: Player, ids: list[int]) -> bool:
        """Play some frames twice from one state, on both; return whether ale-py repeats itself.

        ale-py's states lack pictures and more, so in some games it continues differently. Both consoles
        must be loaded again after it.
        """
        ours, theirs = self.ours.cloneSystemState(), self.theirs.cloneSystemState()
        actions = [ids[player.act()] for _ in range(self.random.integers(1, 60))]
        first = []
        for action in actions:
            self.act(action)
            first.append(_seen(self.ours))
        self.ours.restoreSystemState(ours)
        self.theirs.restoreSystemState(theirs)
        repeats = True
        for action, seen in zip(actions, first, strict=True):
            self.ours.act(action)
            for name, again in _seen(self.ours).items():
                check(f"{name} after a restored state", again, seen[name])
            self.theirs.act(ale_py.Action(action))
            repeats &= all(np.array_equal(again, seen[name]) for name, again in _seen(self.theirs).items())
        return repeats


def _seen(console: AleInterface | ale_py.ALEInterface) -> dict[str, Any]:
    """Return what a rewound console must show again."""
    return {
        "RAM": console.getRAM(),
        "screen": console.getScreen(),
        "lives": console.lives(),
        "frame number": console.getFrameNumber(),
    }


def compare_consoles(game: str, seed: int, frames: int, *, pokes: bool = False) -> Compared:
    """Compare raw consoles: every mode and difficulty in turn, on consoles that are not loaded in between.

    Within an episode the difficulty may change, the next mode may be set, states are saved and restored; with
    `pokes`, random bytes are written to the RAM.
    """
    random = np.random.default_rng(seed)
    both = Consoles(game, random)
    ids = both.ours.getMinimalActionSet() if random.random() < 0.5 else list(range(18))
    settings = {"sticky": both.sticky, "limit": both.limit, "actions": len(ids), "pokes": pokes}
    player = Player(random, ids)
    variants = [(m, d) for m in both.ours.getAvailableModes() for d in both.ours.getAvailableDifficulties()]
    random.shuffle(variants)
    episodes, rewinds, repeated = 0, 0, 0
    longest = max(30, frames // max(5, len(variants)))
    while both.frames < frames or episodes < len(variants):
        try:
            both.set_variant(*variants[episodes % len(variants)])
            both.reset()
            num_frames = int(random.integers(longest // 2, longest + 1))
            _play_episode(both, player, ids, variants, num_frames, pokes=pokes)
            if random.random() < 0.1:
                repeated += both.rewind(player, ids)
                rewinds += 1
                both.load()
        except Difference as error:
            frame = both.ours.getEpisodeFrameNumber()
            raise Difference(
                f"{settings}, episode {episodes}, {player.manner}, frame {frame}: {error}"
            ) from None
        episodes += 1
        player.begin()
    return Compared(
        settings, both.frames, episodes, {"ale_restores": rewinds, "ale_repeats_itself": repeated}
    )


def _play_episode(
    both: Consoles,
    player: Player,
    ids: list[int],
    variants: list[tuple[int, int]],
    num_frames: int,
    *,
    pokes: bool,
) -> None:
    random = both.random
    after_end = int(random.integers(4))  # calls after the end draw random numbers
    for _ in range(num_frames):
        event = random.random()
        if event < 0.004:
            both.detour()
        elif event < 0.006:
            both.set_variant(*variants[random.integers(len(variants))])
        elif pokes and event < 0.03:
            both.poke()
        both.act(ids[player.act()])
        if both.ours.game_over():
            if after_end == 0:
                break
            after_end -= 1


# --- ale-py's environment for Gymnasium, also under Gymnasium's wrapper -------------------------------------


def compare_raw(game: str, seed: int, frames: int) -> Compared:
    """Compare `RawAtariEnv` with ale-py's `AtariEnv`, half of the time under `AtariPreprocessing`."""
    random = np.random.default_rng(seed)
    row = games.load_games()[game]
    wrapped = random.random() < 0.5
    skip = chosen(random, *range(1, 9), (1, 4), (2, 5), (3, 9))
    sticky, limit = _sticky_and_limit(game, random)
    settings = {
        "mode": chosen(random, None, chosen(random, *games.modes(row))),
        "difficulty": chosen(random, None, chosen(random, *row["difficulties"])),
        "obs_type": "rgb" if wrapped else chosen(random, "rgb", "grayscale", "ram"),  # the wrapper reads rgb
        "frameskip": 1 if wrapped else skip,
        "repeat_action_probability": sticky,
        "full_action_space": chosen(random, False, True),
        "max_num_frames_per_episode": limit or None,
    }
    wrapping = {
        "noop_max": chosen(random, 0, 1, 30, int(random.integers(2, 60))),
        "frame_skip": int(random.integers(1, 9)),
        "screen_size": chosen(
            random,
            84,
            int(random.integers(8, 161)),
            (int(random.integers(8, 161)), int(random.integers(8, 211))),
        ),
        "terminal_on_life_loss": chosen(random, False, True),
        "grayscale_obs": chosen(random, False, True),
        "scale_obs": chosen(random, False, True),
    }
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ours, theirs = RawAtariEnv(game, **settings), ale_py.AtariEnv(game, **settings)
    if wrapped:
        settings = {**settings, "wrapper": wrapping}
        ours, theirs = AtariPreprocessing(ours, **wrapping), AtariPreprocessing(theirs, **wrapping)
    check("action space", ours.action_space, theirs.action_space)
    player = Player(random, list(range(ours.action_space.n)))
    step = played = episodes = 0
    try:
        while played < frames:
            options = {"seed": int(random.integers(2**31))} if episodes == 0 or random.random() < 0.2 else {}
            (seen, infos), (expected, expected_infos) = ours.reset(**options), theirs.reset(**options)
            check("first observation", seen, expected)
            _check_infos(infos, expected_infos)
            player.begin()
            for _ in range(int(random.integers(1, 200))):
                step += 1
                if random.random() < 0.01:
                    _detour_of_raw(ours.unwrapped, random)
                action = player.act()
                (got, *results), (want, *wanted) = ours.step(action), theirs.step(action)
                check("observation", got, want)
                check("reward, terminated, truncated", results[:3], wanted[:3])
                _check_infos(results[3], wanted[3])
                if (results[1] or results[2]) and random.random() < 0.6:
                    break
            played += ours.unwrapped.ale.getEpisodeFrameNumber()
            episodes += 1
    except Difference as error:
        raise Difference(f"{settings}, episode {episodes}, step {step}, {player.manner}: {error}") from None
    finally:
        ours.close(), theirs.close()
    return Compared(settings, played, episodes)


def _check_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ("lives", "episode_frame_number", "frame_number", "seeds"):
        check(name, ours.get(name), theirs.get(name))


def _detour_of_raw(env: RawAtariEnv, random: np.random.Generator) -> None:
    """Play on parcade's console alone, then return to where it was."""
    saved = env.clone_state(include_rng=True)
    for _ in range(random.integers(1, 20)):
        env.ale.act(int(random.integers(18)))
    env.restore_state(saved)


# --- vectors of environments --------------------------------------------------------------------------------


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
    step = played = episodes = 0
    try:
        while played < frames:
            if step % 150 == 0:
                _restart(ours, theirs, random, first=step == 0)
                player.begin()
            actions = np.array([player.act() for _ in range(n)])
            observations, *results, infos = theirs.step(actions)
            result = ours.step(actions)
            check("observations", result.observations, observations)
            for name, got, want in zip(
                ("rewards", "terminated", "truncated"), result[1:4], results, strict=True
            ):
                check(name, got, want)
            for name in ("lives", "frame_number", "episode_frame_number"):
                check(name, getattr(result, name), infos[name])
            ended = (result.reset_frames > 0) | (result.episode_frame_number == 0)
            if ended.any():
                check("final observations", result.final_observations[ended], infos["final_obs"][ended])
            episodes += int(ended.sum())
            played += int(result.frames.sum())
            step += 1
    except Difference as error:
        raise Difference(f"{settings}, step {step}, {player.manner}: {error}") from None
    finally:
        ours.close()
    return Compared(settings, played, episodes)


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


def compare_made(game: str, seed: int, frames: int) -> Compared:
    """Compare environments of `make_vec` with `AtariVectorEnv`, in Gymnasium's autoreset modes."""
    random = np.random.default_rng(seed)
    settings = _vector_settings(random, game)
    settings["reward_clipping"] = settings["episodic_life"]
    n = int(random.integers(1, 4))
    mode = chosen(random, AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    theirs = AtariVectorEnv(game, n, num_threads=1, autoreset_mode=mode, **settings)
    how = {
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
    if mode == AutoresetMode.NEXT_STEP:
        ours = make_registered_vec(game, n, autoreset_mode=mode, **how)
    else:
        ours = make_vec(game, n, num_threads=int(random.integers(1, 3)), **how)
    settings = {"num_envs": n, "autoreset_mode": mode.value, **settings}
    player = Player(random, list(range(int(ours.single_action_space.n))))
    step = played = episodes = 0
    try:
        while played < frames:
            if step % 150 == 0:
                seeds = random.integers(0, 2**31 - 1, n) if step == 0 else None
                check("observations of a reset", ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0])
                player.begin()
            if random.random() < 0.02:
                _detour_of_made(ours, random)
            actions = np.array([player.act() for _ in range(n)])
            observations, *results, infos = theirs.step(actions)
            got, *own_results, own_infos = ours.step(actions)
            check("observations", got, observations)
            for name, mine, want in zip(
                ("rewards", "terminated", "truncated"), own_results, results, strict=True
            ):
                check(name, mine, want)
            ended = own_results[1] | own_results[2]
            if mode == AutoresetMode.SAME_STEP:
                check("lives", own_infos["lives"], infos["lives"])
                check("_final_obs", own_infos.get("_final_obs", np.zeros(n, bool)), ended)
                if ended.any():
                    check("final observations", own_infos["final_obs"][ended], infos["final_obs"][ended])
            episodes += int(ended.sum())
            played += int(own_infos["frames"].sum())
            step += 1
    except Difference as error:
        raise Difference(f"{settings}, step {step}, {player.manner}: {error}") from None
    finally:
        ours.close()
    return Compared(settings, played, episodes)


def _detour_of_made(env: Any, random: np.random.Generator) -> None:
    """Play on parcade's environments alone, then return to where they were."""
    saved = env.get_state()
    for _ in range(random.integers(1, 8)):
        env.step(random.integers(0, env.single_action_space.n, env.num_envs))
    env.set_state(saved)


def compare_poked(game: str, seed: int, frames: int) -> Compared:
    """`compare_consoles` with random bytes written to the RAM.

    Two known differences may follow: decimal subtraction of bytes that are not decimal, where ale-py reads
    beyond a table, and code that runs in the TIA's registers.
    """
    return compare_consoles(game, seed, frames, pokes=True)


COMPARISONS = {
    "consoles": compare_consoles,
    "poked": compare_poked,
    "raw": compare_raw,
    "vectors": compare_vectors,
    "made": compare_made,
}
