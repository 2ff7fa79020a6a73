"""Start states from a recording: consoles at evenly spaced frames of what was played."""

from pathlib import Path

import numpy as np

from .engine_cpu import Machine
from .games import load_games
from .recording import Recording, load_recording
from .state import EPISODE_FRAME_NUMBER, FRAME_NUMBER, STICKY_THRESHOLD

LAST_FRAMES = 300  # no start is in the last 5 seconds of an episode


def read_starts(
    file: str, game: str | None, *, mode: int | None, difficulty: int | None, num_starts: int
) -> Recording:
    """Read a recording and check that it has `num_starts` start states of a game, without replaying it.

    mode, difficulty: those of the consoles that will start from it; None is the default.
    Errors: ValueError, in one line.
    """
    if not Path(file).is_file():
        raise ValueError(
            f"start_states={file!r}: expected 'exact', 'cached' or the file of a recording; "
            f"there is no file {file}"
        )
    try:
        recording = load_recording(Path(file))
    except OSError as error:
        raise ValueError(f"start_states: {file} cannot be read ({error.strerror})") from None
    if recording.game != game:
        raise ValueError(f"start_states: {file} is a recording of {recording.game}; expected one of {game}")
    if recording.players != 1:
        raise ValueError(
            f"start_states: {file} is a match of two players; expected a recording of parcade play {game}"
        )
    default_mode = load_games()[recording.game].get("default_mode", 0)
    for name, default, switches in (
        ("mode", default_mode, (mode, recording.mode)),
        ("difficulty", 0, (difficulty, recording.difficulty)),
    ):
        wanted, played = (default if value is None else value for value in switches)
        if wanted != played:
            raise ValueError(
                f"start_states: {file} was played with {name} {played}, not {wanted}; use {name} {played}"
            )
    usable = len(_usable_frames(recording))
    if usable < num_starts:
        raise ValueError(
            f"start_states: {file} has {usable} frames to start from, without the last "
            f"{LAST_FRAMES // 60} seconds of each episode; expected {num_starts} or more; record a longer one"
        )
    return recording


def recorded_consoles(
    file: str, machine: Machine, *, mode: int | None, difficulty: int | None, num_starts: int
) -> dict[str, np.ndarray]:
    """Replay a recording; return the consoles at `num_starts` evenly spaced frames, as rows of `state.py`.

    They have `machine`'s sticky actions, and their counters of frames are 0. Their random streams are
    the player's, which nothing should continue.
    Errors: ValueError as `read_starts`, and if the replay differs from what was recorded.
    """
    recording = read_starts(file, machine.game, mode=mode, difficulty=difficulty, num_starts=num_starts)
    usable = _usable_frames(recording)
    chosen = set(usable[(2 * np.arange(num_starts) + 1) * len(usable) // (2 * num_starts)].tolist())
    found = []
    try:
        for frame, (session, _) in enumerate(recording.replay()):
            if frame in chosen:
                found.append({name: array[0].copy() for name, array in session.arcade.arrays.items()})
    except ValueError as error:
        raise ValueError(f"start_states: {file}: {error}") from None
    rows = {name: np.stack([console[name] for console in found]) for name in found[0]}
    sticky = slice(STICKY_THRESHOLD, STICKY_THRESHOLD + 2)
    rows["state"][:, sticky] = machine.powered["state"][0, sticky]
    rows["state"][:, [FRAME_NUMBER, EPISODE_FRAME_NUMBER]] = 0
    return rows


def _usable_frames(recording: Recording) -> np.ndarray:
    """Return the numbers of the frames that can start an episode, counted over all episodes, int64."""
    lengths = [sum(frames for _, _, frames in episode) for episode in recording.episodes]
    ends = np.cumsum(lengths)
    usable = [
        np.arange(end - length, end - LAST_FRAMES) for length, end in zip(lengths, ends, strict=True)
    ]  # empty for a short episode
    return np.concatenate(usable)
