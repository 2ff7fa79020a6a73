"""What an agent observes in a duel: the frames of one side as its training environment would show them.

The native backend computes observations in compiled code for many consoles that step together. In a duel,
two agents with different settings look at the same frames from two sides, so this module computes them from
pictures, in NumPy. A test compares the two byte by byte.
"""

from __future__ import annotations

import numpy as np

from parcade.atari.preprocess import Resize, level_tables, resize_to
from parcade.envs.native import console_settings
from parcade.envs.settings import EnvSettings
from parcade.envs.views import karpathy_difference
from parcade.errors import UsageError


def resized(levels: np.ndarray, resize: Resize) -> np.ndarray:
    """Return levels ``[lines, 160]`` uint8 resized by area, uint8, in the order of ``preprocess.observe``."""
    lines, columns = int(resize.whole[0]), int(resize.whole[1])
    if lines:
        blocks = levels.reshape(levels.shape[0] // lines, lines, levels.shape[1] // columns, columns)
        total = blocks.sum((1, 3), dtype=np.int64)
        if lines == columns == 2:
            return ((total + 2) >> 2).astype(np.uint8)
        return np.rint(total.astype(np.float32) * (np.float32(1) / np.float32(lines * columns))).astype(
            np.uint8
        )
    # Columns and lines of zeros, for outputs at the edge that have fewer taps than others.
    taps, line_taps = len(resize.column_weight), resize.row_weight.shape[1]
    level = np.zeros((levels.shape[0], levels.shape[1] + taps), np.float32)
    level[:, : levels.shape[1]] = levels
    sums = np.zeros((levels.shape[0] + line_taps, len(resize.column_start)), np.float32)
    for tap in range(taps):
        sums[: len(levels)] += level.take(resize.column_start + tap, 1) * resize.column_weight[tap]
    total = np.zeros((len(resize.row_start), len(resize.column_start)), np.float32)
    for tap in range(line_taps):
        total += sums.take(resize.row_start + tap, 0) * resize.row_weight[:, tap, None]
    return np.clip(np.rint(total), 0, 255).astype(np.uint8)


def check_has_sides(settings: EnvSettings) -> None:
    """Check that an agent can play either side. Errors: UsageError, for ``ram`` for example."""
    if settings.continuous_actions:
        raise UsageError("the agent has continuous actions; use agents with a set of actions")
    if settings.frame_skip_to:
        raise UsageError("the agent plays random numbers of frames; use agents with a fixed frame_skip")
    if settings.observations == "ram":
        raise UsageError("the agent observes RAM, which has no other side; use agents that observe images")


class PlayerObservations:
    """The frame stack of one player in n matches.

    Errors: UsageError for observations ``ram``.
    """

    def __init__(self, settings: EnvSettings, num_matches: int, height: int, *, pal: bool) -> None:
        check_has_sides(settings)
        self._settings = settings
        self.pools = settings.max_pool and settings.frame_skip > 1  # a step of one frame has no other
        self._levels = level_tables(console_settings(settings)["obs_type"], pal)
        self._resize = resize_to(height, settings.image_height, settings.image_width)
        self._stacks = np.zeros((num_matches, *settings.stack_shape), np.uint8)

    def clear(self) -> None:
        """Empty all stacks, for new matches."""
        self._stacks[:] = 0

    def push(self, match: int, last: np.ndarray, before: np.ndarray | None = None) -> None:
        """Push a frame on the stack of a match, pooled with the one before if the settings ask for it.

        last, before: palette indices ``[lines, 160]``; at the start of a match there is no frame before.
        """
        pictures = [last] if before is None or not self.pools else [last, before]
        channels = [np.max([levels.take(each) for each in pictures], 0) for levels in self._levels]
        frame = np.stack([resized(channel, self._resize) for channel in channels], -1)
        stack = self._stacks[match]
        stack[:-1] = stack[1:]
        stack[-1] = frame.reshape(stack[-1].shape)

    def observations(self) -> np.ndarray:
        """Return the observations of all matches: ``[n, *stack_shape]`` uint8, or the view's int8."""
        if self._settings.observations == "karpathy_2016":
            return karpathy_difference(self._stacks)
        return self._stacks
