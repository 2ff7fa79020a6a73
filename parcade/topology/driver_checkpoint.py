"""Checkpoints of a topology: the state of every part, and the calls and data in flight between parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from parcade.build.learner import make_policy
from parcade.checkpoint import conditions, warn_of_changes
from parcade.config import TrainConfig, check_structure, structure
from parcade.files import run_directory
from parcade.files.kept_policies import keep_policy
from parcade.files.rank_file import read_rank_file, write_rank_file
from parcade.files.state import behind, part_of
from parcade.model.parameters import array_of, check_finite, load_weights, state_tensors
from parcade.report.progress import Progress
from parcade.topology.driver import Driver
from parcade.topology.engine import PartLost


class TopologyCheckpointer:
    """Saves and restores a driver and its parts.

    ``rank-0.safetensors`` holds ``policy.*``, ``parts.NAME.*`` and ``plan.*``. Agents load it like any other
    checkpoint.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        driver: Driver,
        progress: Progress,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self.run = run
        self.driver = driver
        self.progress = progress
        self.say = say
        self._policy = make_policy(config)

    def save(self) -> str:
        """Write a checkpoint, or return why none could be written: a full disk or a lost part.

        The previous one is then kept. Errors: UsageError if weights are not finite.
        """
        final = run_directory.checkpoint_directory(self.run, self.progress.frames)
        making = final.with_name(final.name + ".making")
        driver = self.driver
        try:
            tensors = self._from_parts(self._gather)
        except PartLost as error:
            return str(error)
        check_finite(part_of(tensors, "policy.").values(), self.progress.updates)
        state = {
            "progress": self.progress.get_state(),
            "conditions": conditions(1),
            "structure": structure(self.config),
            "exact": driver.tally.can_resume_exactly and not driver.engine.is_remote,
            "plan": driver.plan(),
            "tally": driver.tally.get_state(),
        }
        try:
            digest = write_rank_file(making, 0, tensors)
            keep = self.config.run.keep_checkpoints
            run_directory.finish_checkpoint(making, final, state, [digest], keep=keep)
        except (OSError, RuntimeError, MemoryError, SafetensorError) as error:  # the last for a full disk
            shutil.rmtree(making, ignore_errors=True)
            return str(error)
        return ""

    def keep_policy(self) -> str:
        """Keep the policy for good, or return why it could not be: a full disk or a lost part.

        Errors: UsageError if weights are not finite.
        """
        try:
            policy = self._from_parts(self._policy_tensors)
        except PartLost as error:
            return str(error)
        check_finite(policy.values(), self.progress.updates)
        return keep_policy(self.run, policy, self.progress.get_state())

    def _from_parts(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask the parts for tensors, again where a lost part is replaced.

        Errors: PartLost for one that the next iteration restarts.
        """
        while True:
            try:
                return ask()
            except PartLost as error:
                if not self.driver.replace_lost(error.name):
                    raise

    def _policy_tensors(self) -> dict[str, Any]:
        load_weights(self._policy, self.driver.weights()[1])
        return state_tensors(self._policy)

    def _gather(self) -> dict[str, Any]:
        """Return all arrays of a checkpoint, taken at one point in time. Errors: PartLost."""
        driver = self.driver
        driver.pause()
        tensors: dict[str, Any] = behind("policy.", self._policy_tensors())
        for name, state in driver.states(driver.parts.values()).items():
            tensors |= behind(f"parts.{name}.", state)
        return tensors | behind("plan.", driver.plan_arrays())

    def restore(self) -> None:
        """Continue from the newest complete checkpoint. Errors: UsageError when there is none."""
        directory, state, refused = run_directory.newest_checkpoint(self.run)
        for line in refused:
            self.say(f"warning: {line}")
        run_directory.check_resumable(directory, state)
        check_structure(directory, state, self.config)
        if state.get("exact"):
            warn_of_changes(state["conditions"], conditions(1), self.say)
        arrays = {name: array_of(tensor) for name, tensor in read_rank_file(directory, 0).items()}
        driver, plan = self.driver, state["plan"]
        self.progress.set_state(state["progress"])
        driver.lives = dict(plan["lives"])
        driver.epoch = plan.get("epoch", 0)
        plan = self._restore_parts(plan, arrays)
        dropped = driver.tally.cut_games
        driver.tally.set_state(state["tally"] | {"cut_games": state["tally"]["cut_games"] + dropped})
        driver.updates = self.progress.updates
        driver.resume(plan, part_of(arrays, "plan."))
        self.say(f"resumed {directory}: {self.progress.frames:,} frames, {self.progress.updates:,} updates")
        if dropped:
            self.say(f"note: {dropped} unfinished episodes were dropped and new ones started")
        if not getattr(self.config.hyper, "save_replay", True):
            self.say("note: the replay was not saved (--no-save-replay); it fills before learning continues")

    def _restore_parts(self, plan: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """Restore all parts, and those actors added by ``scale-to`` for which there is room now.

        Return the plan without the other actors, whose unfinished episodes are counted as cut.
        """
        driver = self.driver
        started = len(driver.of_role("actor"))
        wanted = plan.get("actors", started)
        driver.scale_actors(min(started, wanted))
        for name, part in driver.parts.items():
            driver.restore_part(part, part_of(arrays, f"parts.{name}."))
        if wanted <= started:
            return plan
        # All parts above have answered: the cluster has placed them and knows what is left.
        count = started + driver.engine.room_for("actor", wanted - started)
        driver.scale_actors(count)
        driver.lives = dict(plan["lives"])  # the actors just added have begun, which counted another life
        for part in driver.of_role("actor")[started:]:
            driver.restore_part(part, part_of(arrays, f"parts.{part.name}."))
        if count == wanted:
            return plan
        self.say(f"warning: the cluster has room for {count} of the {wanted} actors of the checkpoint")
        driver.tally.cut_games += (wanted - count) * driver.envs_per_actor
        return _without_parts(plan, {f"actor-{index}" for index in range(count, wanted)})


def _without_parts(plan: dict[str, Any], absent: set[str]) -> dict[str, Any]:
    """Return a plan without the calls and places of parts that do not exist; their lives are kept."""

    def kept(entry: Any) -> bool:
        name = entry[0] if isinstance(entry, list) else entry
        return name not in absent

    lists = {name: list(filter(kept, entries)) for name, entries in plan.items() if isinstance(entries, list)}
    return {**plan, **lists}
