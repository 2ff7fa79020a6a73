"""The process in which checkpoints play for one page: ``python -m parcade.web.player RUN [--all]``.

It has low priority and one thread, so that a training on the same machine keeps its cores.

It plays in real time: a step is due ``frame_skip / 60`` seconds after the last one. With ``--all``, the same
episode is played by every checkpoint of the run side by side.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parcade.agent import Agent
from parcade.errors import UsageError
from parcade.files.kept_policies import frames_of_agents
from parcade.history.series import number
from parcade.web.player_process import run_player
from parcade.web.recordings import Recording
from parcade.web.saliency import SALIENCIES
from parcade.web.stage import Moment, Stage
from parcade.web.wire import differences, packed, write_message

NICENESS = 10
"""Of the server and all players: enough of a busy core to play in real time, and no more."""
MOST_SIDE_BY_SIDE = 12
FASTEST, SLOWEST = 8.0, 0.1
OCCLUSION_STEPS = 4
"""Steps from one occlusion map to the next: it costs as much as a hundred decisions."""
PAUSE_AFTER_EPISODE_SECONDS = 1.0


class Controls:
    """What the page asked for."""

    def __init__(self) -> None:
        self.paused = False
        self.steps = 0
        """Single steps to play while paused."""
        self.speed = 1.0
        self.greedy = False
        self.saliency = ""
        self.seed: int | None = None
        """Seed of an episode to start now."""
        self.checkpoint: int | None = None
        """Frames of the checkpoint to play; None follows the newest."""
        self.replay: str | None = None
        """Name of a recording to replay; its end or a new seed returns to the policy."""
        self.save = False

    def apply(self, command: dict[str, Any]) -> None:
        """Apply one command; values of another type or range are ignored."""
        for name in ("paused", "greedy"):
            if isinstance(command.get(name), bool):
                setattr(self, name, command[name])
        if not math.isnan(speed := number(command.get("speed"))):
            self.speed = min(max(speed, SLOWEST), FASTEST)
        if command.get("saliency") in ("", *SALIENCIES):
            self.saliency = command["saliency"]
        if _is_count(command.get("seed")):
            self.seed = command["seed"]
        if "checkpoint" in command and (command["checkpoint"] is None or _is_count(command["checkpoint"])):
            self.checkpoint = command["checkpoint"]
        if isinstance(command.get("replay"), str):
            self.replay = command["replay"]
        self.steps += command.get("step") is True
        self.save |= command.get("save") is True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


class Player:
    """Plays a run's checkpoints for one page.

    Args:
        out: where messages are written.
        side_by_side: play with all checkpoints, or with the one of ``controls``.
    """

    def __init__(self, run: Path, out: BinaryIO, *, side_by_side: bool) -> None:
        self.run = run
        self.controls = Controls()
        self._out = out
        self._replaying: Recording | None = None
        frames = frames_of_agents(run)
        # None is the newest; where there is none yet, Agent says so.
        chosen: list[int | None] = [*reversed(_spread(frames))] if side_by_side and frames else [None]
        self._stages = [Stage(Agent(run, checkpoint_frames=each)) for each in chosen]
        self._side_by_side = side_by_side
        self.start(0)

    @property
    def step_seconds(self) -> float:
        """Time of a step at the chosen speed."""
        return 1 / self._stages[0].agent.config.env.steps_per_second / self.controls.speed

    def start(self, seed: int) -> None:
        """Begin the episode of ``seed`` on every stage and say so."""
        first = [stage.start(seed) for stage in self._stages]
        stage = self._stages[0]
        config = stage.agent.config
        head = {
            "type": "start",
            "game": config.game,
            "seed": seed,
            "frame_skip": config.env.mean_frame_skip,
            "observations": config.env.observations,
            "checkpoints": [each.agent.frames for each in self._stages],
            "kept": frames_of_agents(self.run),
            "actions": action_names(stage),
            "action_value_kind": "probability" if stage.agent.policy.head == "actor_critic" else "Q value",
            "acts_greedily": stage.agent.acts_greedily,
            "pinned": self.controls.checkpoint,
            "replaying": self._replaying.name if self._replaying else None,
        }
        arrays = {"pictures": np.concatenate(first)}
        if stage.screen:
            arrays["palette"] = stage.screen.palette
        self._say(head, arrays)

    def _say(self, head: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        write_message(self._out, packed(head, arrays))

    def play(self, commands: queue.SimpleQueue) -> None:
        """Play until the commands end with None."""
        due = time.monotonic()
        while True:
            wait = None if self.controls.paused else max(0.0, due - time.monotonic())
            try:
                command = commands.get(timeout=wait)
                if command is None:
                    return
                self.controls.apply(command)
                self._obey()
                if not self.controls.steps:
                    due = min(due, time.monotonic() + self.step_seconds)
                    continue
            except queue.Empty:
                pass
            if self.controls.paused and not self.controls.steps:
                continue
            self.controls.steps = max(0, self.controls.steps - 1)
            ended = self._step()
            now = time.monotonic()
            # A machine that is too slow plays slower; it does not hurry to catch up.
            due = max(due + self.step_seconds, now)
            if ended:
                due = now + PAUSE_AFTER_EPISODE_SECONDS
                self._next_episode()

    def _obey(self) -> None:
        """Carry out what is not a setting: save, replay, another checkpoint or seed."""
        controls = self.controls
        if controls.save:
            controls.save = False
            self._save()
        self._change_checkpoint()
        try:
            if controls.replay is not None:
                name, controls.replay = controls.replay, None
                agent = self._stages[0].agent
                count = agent.policy.actions.count
                self._replaying = Recording.read(self.run, name, agent.config, num_actions=count)
                self.start(self._replaying.seed)
            elif controls.seed is not None:
                seed, controls.seed, self._replaying = controls.seed, None, None
                self.start(seed)
        except UsageError as error:
            self._say({"type": "problem", "text": str(error)})

    def _change_checkpoint(self) -> None:
        """Load the checkpoint of ``controls`` if another one plays, which goes on if that cannot be read."""
        controls, stage = self.controls, self._stages[0]
        wanted = controls.checkpoint
        if self._side_by_side or wanted is None or wanted == stage.agent.frames:
            return
        try:
            stage.agent = Agent(self.run, checkpoint_frames=wanted)
        except UsageError as error:  # it was deleted
            controls.checkpoint = stage.agent.frames
            self._say({"type": "problem", "text": str(error), "pinned": controls.checkpoint})
            return
        controls.seed = stage.episode.seed if controls.seed is None else controls.seed

    def _save(self) -> None:
        stage = self._stages[0]
        if not stage.episode.actions:
            self._say(
                {"type": "problem", "text": "the episode has no steps yet; save it after its first one"}
            )
            return
        # A replay shows the actions of the checkpoint that was recorded, whichever is loaded.
        frames = self._replaying.checkpoint_frames if self._replaying else stage.agent.frames
        recording = Recording.of(stage.agent.config, stage.episode, frames)
        try:
            self._say({"type": "saved", "name": recording.write(self.run)})
        except OSError as error:
            self._say({"type": "problem", "text": f"the episode cannot be saved ({error.strerror})"})

    def _next_episode(self) -> None:
        """Start the next seed, with the newest checkpoint if there is a newer one."""
        stage = self._stages[0]
        self._replaying = None
        if not self._side_by_side and self.controls.checkpoint is None:
            newest = frames_of_agents(self.run)
            if newest and newest[0] != stage.agent.frames:
                try:
                    stage.agent = Agent(self.run)
                except UsageError as error:  # deleted while it was read: the next episode tries again
                    self._say({"type": "problem", "text": str(error)})
        self.start(stage.episode.seed + 1)

    def _step(self) -> bool:
        """Play one step on every stage whose episode goes on; return whether all have ended."""
        if self._side_by_side:
            return self._step_all()
        stage, controls = self._stages[0], self.controls
        taken = len(stage.episode.actions)
        action = None
        if self._replaying is not None:
            action = self._replaying.actions[taken]
        wants = controls.saliency if controls.saliency != "occlusion" or taken % OCCLUSION_STEPS == 0 else ""
        moment = stage.step(greedy=controls.greedy, saliency=wants, action=action)
        arrays = {"pictures": differences(moment.pictures), "observation": _as_bytes(moment.observation)}
        if moment.saliency is not None:
            arrays["saliency"] = moment.saliency
        over = moment.ended
        if self._replaying is not None:
            over |= taken + 1 == len(self._replaying.actions)
            if over:
                self._report_replay(self._replaying)
        self._say({"type": "step", **_numbers(moment), "lives": moment.lives}, arrays)
        return over

    def _report_replay(self, recording: Recording) -> None:
        """Say whether a replay that is over had the recorded steps and score; it may end too early."""
        episode = self._stages[0].episode
        steps, recorded = len(episode.actions), len(recording.actions)
        exact = steps == recorded and episode.score == recording.score
        self._say({"type": "replayed", "exact": exact, "steps": steps, "recorded_steps": recorded})

    def _step_all(self) -> bool:
        pictures, players = [], []
        for stage in self._stages:
            if stage.episode.ended:
                players.append(None)
                continue
            moment = stage.step(greedy=self.controls.greedy)
            players.append(_numbers(moment))
            if len(moment.pictures):
                pictures.append(moment.pictures[-1])
            players[-1]["has_picture"] = bool(len(moment.pictures))
        arrays = {"pictures": np.array(pictures)} if pictures else {}
        self._say({"type": "steps", "players": players}, arrays)
        return all(stage.episode.ended for stage in self._stages)


def _numbers(moment: Moment) -> dict[str, Any]:
    """Return a moment's numbers for a message."""
    return {
        "action_values": [round(float(value), 5) for value in moment.action_values],
        "value": round(moment.value, 5),
        "action": moment.action,
        "reward": moment.reward,
        "score": moment.score,
        "step": moment.step,
        "ended": moment.ended,
    }


def _as_bytes(observation: np.ndarray) -> np.ndarray:
    """Return an observation as grey levels: bytes as they are, Karpathy's -1, 0, 1 as black, grey, white."""
    return observation if observation.dtype == np.uint8 else ((observation + 1) * 127).astype(np.uint8)


def action_names(stage: Stage) -> list[str]:
    """Return the names of the agent's actions, as on the joystick; their numbers in a built-in task."""
    from parcade.atari.held_keys import ACTIONS
    from parcade.envs.games import is_atari

    count = stage.agent.policy.actions.count
    if not is_atari(stage.agent.config.game):
        return [str(action) for action in range(count)]
    names = {number: " ".join(sorted(held)) or "none" for held, number in ACTIONS.items()}
    return [names[number] for number in stage.screen.action_ids]


def _spread(frames: list[int]) -> list[int]:
    """Return at most ``MOST_SIDE_BY_SIDE`` of some checkpoints at even distances, the ends included."""
    if len(frames) <= MOST_SIDE_BY_SIDE:
        return frames
    return [frames[i] for i in np.linspace(0, len(frames) - 1, MOST_SIDE_BY_SIDE).round().astype(int)]


def _play(commands: queue.SimpleQueue, out: BinaryIO) -> None:
    player = Player(Path(sys.argv[1]), out, side_by_side="--all" in sys.argv[2:])
    os.nice(max(0, NICENESS - os.nice(0)))
    player.play(commands)


if __name__ == "__main__":
    sys.exit(run_player(_play))
