"""`QueuedConsoles`: consoles that play individually; those that finish first are received first."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .threads import rounds
from .threads.task_queue import TaskQueue
from .vector import ReusedArrays, StepResult, VectorConsoles


class QueuedConsoles(VectorConsoles):
    """`VectorConsoles` with `restart`, `send` and `receive` in place of `reset` and `step`.

    Given the same seeds and actions, every console plays what it would play in rounds. `receive` returns
    `batch_size` consoles. Ctrl-C in a call stops all consoles; `restart` starts them again.
    Errors: ValueError for a call in a forked process.
    """

    def __init__(self, game: str | Path, num_envs: int, *, batch_size: int, **settings: Any) -> None:
        self.batch_size = batch_size
        super().__init__(game, num_envs, **settings)

    def _allocate(self, n: int) -> None:
        super()._allocate(n)
        self._is_started = False
        self._is_busy = np.zeros(n, np.bool_)  # was queued and not received yet
        self._commands = np.zeros(n, np.int64)
        self._queue = TaskQueue(self._played, self._commands, self._final)
        self._received = ReusedArrays([((self.batch_size, *self.observations.shape[1:]), np.uint8)])

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._queue.is_of_parent:
            raise ValueError("the consoles' threads run in the parent process; make a new environment here")
        with self.callers.lock:
            try:
                yield
            except KeyboardInterrupt:
                self.close()  # a console may be marked as busy and not queued; `receive` would wait forever
                raise

    def restart(self, seed: int | np.ndarray | None = None) -> None:
        """Start a new episode on every console; `receive` returns the first observations.

        Waits for consoles that are busy and drops their results. The seeds are those of `reset`.
        """
        with self._exclusive():
            if self._is_busy.any():
                self._queue.take(np.count_nonzero(self._is_busy))
            self._plan_reset(seed, None)
            for column in self._played[0].outcome:
                column[:] = 0
            self._commands[:] = rounds.RESET
            self._queue.put(np.arange(self.num_envs))
            self._is_busy[:] = True  # only now: if no thread could be started, nothing is to be waited for
            self._is_started = True

    def send(self, actions: np.ndarray, consoles: np.ndarray) -> None:
        """Queue a step of some consoles and return at once.

        actions: indices into `action_set`, int [k], or continuous ones, float [k, 3].
        consoles: int [k], each at most once.
        Errors: ValueError for a console that is busy, and before `restart`.
        """
        with self._exclusive():
            self._check_started()
            busy = consoles[self._is_busy[consoles]]
            if len(busy):
                raise ValueError(f"environments {', '.join(map(str, busy))} are busy; receive them first")
            self._actions[consoles] = self.settings.ids_of(actions, self.action_set)
            self._commands[consoles] = rounds.STEP
            self._code.check()
            self._queue.put(consoles)
            self._is_busy[consoles] = True

    def receive(self) -> tuple[np.ndarray, StepResult]:
        """Wait for B = `batch_size` consoles; return their numbers, int64 [B], and results [B, ...].

        The first to finish is the first. For a console that was restarted, reward and `frames` are 0, and
        `reset_frames` are the frames of the restart. The caller owns all arrays.
        Errors: ValueError if fewer than B consoles are busy, and before `restart`.
        """
        with self._exclusive():
            self._check_started()
            num_busy = np.count_nonzero(self._is_busy)
            if num_busy < self.batch_size:
                raise ValueError(
                    f"{num_busy} environments are busy, fewer than batch_size={self.batch_size}; "
                    "send actions first"
                )
            consoles = self._queue.take(self.batch_size)
            self._is_busy[consoles] = False
            return consoles, self._results_of(consoles)

    def _check_started(self) -> None:
        if not self._is_started:
            raise ValueError("no episode has been started; call async_reset first")

    def _results_of(self, consoles: np.ndarray) -> StepResult:
        outcome = rounds.Outcome(*(column[consoles] for column in self._played[0].outcome))
        is_start = self._commands[consoles] == rounds.RESET
        outcome.frames[is_start] = 0
        outcome.reset_frames[is_start] = outcome.episode_frame_number[is_start]
        (observations,), _ = self._received.take()
        self.observations.take(consoles, axis=0, out=observations, mode="clip")  # "raise" would copy twice
        final, is_over = None, outcome.terminated | outcome.truncated
        if is_over.any():
            final = np.zeros_like(observations)
            final[is_over] = self._final[consoles[is_over]]
        return StepResult(observations, *outcome[:3], final, *outcome[3:])

    def close(self) -> None:
        """Stop the threads after the steps that they are playing; results that were not received are lost."""
        if self._queue.is_of_parent:
            return
        with self.callers.lock:
            super().close()
            self._queue.close()
            self._is_started = False
            self._is_busy[:] = False
