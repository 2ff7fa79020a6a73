"""Random settings, players and interventions on ale-py and on parcade; shared by the tests and the sweep.

Each comparison takes a game, a seed, from which everything random follows, and a number of frames. It raises
`Difference` at the first difference.
"""

from __future__ import annotations

from typing import Any

import ale_py
import numpy as np
from gymnasium.wrappers import AtariPreprocessing
from random_play import STICKY, Compared, Difference, Player, check, chosen
from random_vector_parity import compare_made, compare_received, compare_vectors

from parcade.atari import Arcade, games
from parcade.integrations.ale_interface import AleInterface
from parcade.integrations.raw import RawAtariEnv

# These select a mode by actions, so ale-py's reset may never end if an action always repeats, or if the
# episode's limit of frames comes first.
MODE_BY_ACTIONS = ("double_dunk", "video_cube")

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


def _wrapper_settings(random: np.random.Generator) -> dict[str, Any]:
    """Random settings of Gymnasium's AtariPreprocessing."""
    return {
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
    wrapping = _wrapper_settings(random)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ours, theirs = RawAtariEnv(game, **settings), ale_py.AtariEnv(game, **settings)
    if ours.get_action_meanings()[0] != "NOOP":  # Video Checkers' few actions; the wrapper needs it to wait
        wrapping["noop_max"] = 0
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
    "received": compare_received,
}
