"""Learners: an algorithm, its gradient exchange and its experience source.

A learner runs ``parcade.loop.iterate``, one iteration of the training loop, each time the driver calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.build.groups import make_playing_group
from parcade.build.learner import make_algorithm
from parcade.build.replay import make_replay_source, replays_on_a_host
from parcade.config import from_json
from parcade.exchange.base import Exchange, LocalExchange
from parcade.exchange.group import GroupExchange
from parcade.exchange.parameter_server import ParameterServerExchange, ServerLost
from parcade.experience.batch import Batch
from parcade.experience.population_batch import PopulationBatch
from parcade.experience.replay import TransitionBatch
from parcade.experience.replay_source import ReplaySource
from parcade.experience.rollout import RolloutSource
from parcade.experience.source import Source
from parcade.files.state import behind, part_of
from parcade.loop import iterate
from parcade.machine.devices import torch_device
from parcade.machine.threads import learner_threads, set_part_threads
from parcade.machine.timing import Timer, process_note
from parcade.model.parameters import load_weights, tensors_of, weights_of
from parcade.model.policy import Acted
from parcade.topology.lives import PlayCounter, Restartable, needs_life

# How long a learner fills its own replay in one call. A call of minutes would count as hanging.
FILL_SECONDS = 30.0


class DeliveredSource:
    """A source that returns the batch delivered with the driver's call."""

    def __init__(self) -> None:
        self.batch: Batch | TransitionBatch | None = None

    def next_batch(self) -> Batch | TransitionBatch:
        return self.batch

    def publish(self, policy: Any) -> None:
        """Do nothing: the driver sends the weights to the actors."""


class Learner(Restartable):
    """Learns from unrolls, transitions or scores that the driver delivers, with its own optimiser.

    Args:
        config: ``to_json`` of the run's config.
        index, count: this learner's index and the number of learners, which average their gradients.
        make_exchange: makes another exchange than the one for ``count`` learners.
    """

    def __init__(
        self,
        config: dict[str, Any],
        index: int = 0,
        count: int = 1,
        make_exchange: Callable[[Timer], Exchange] | None = None,
    ) -> None:
        self.config = from_json(config)
        set_part_threads(learner_threads(self.config.run.threads_per_rank, self.config.topology.learner_cpus))
        self.device = torch_device(self.config.run.device)
        self.timer = Timer(outside="wait")
        if make_exchange is not None:
            self.exchange = make_exchange(self.timer)
        else:
            self.exchange = (
                GroupExchange(self.timer, index, count) if count > 1 else LocalExchange(self.timer)
            )
        self.algorithm = make_algorithm(self.config, self.exchange)
        self.source: DeliveredSource | Source = DeliveredSource()

    @needs_life
    def learn(
        self, share: float, *delivered: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], np.ndarray | None]:
        """Run one update on what was delivered; the data holds the new priorities or None."""
        if delivered[0] is None:  # the replay shard restarted and is empty
            return {"nothing_delivered": True}, None
        self.source.batch = self._batch(delivered)
        note = self._iterate(share)
        priorities = getattr(self.source.batch, "priorities", None)
        if priorities is None or "server_lost" in note:
            return note, None
        return note, priorities.cpu().numpy()

    def _iterate(self, share: float) -> dict[str, Any]:
        """Run one iteration and return its note."""
        with self.timer.scope("other"):
            metrics = iterate(self.algorithm, self.source, self.exchange, self.timer, share)
        return self._note(metrics)

    def _batch(
        self, delivered: tuple[dict[str, np.ndarray], ...]
    ) -> Batch | TransitionBatch | PopulationBatch:
        if self.algorithm.source_kind == "population":
            version = self.algorithm.policy.version.reshape(1).clone()
            return PopulationBatch(
                **{n: np.array(a) for n, a in delivered[0].items()}, policy_version=version
            )
        if self.algorithm.source_kind == "replay":
            return TransitionBatch.from_arrays(delivered[0]).to(self.device)
        return Batch.side_by_side([Batch.from_arrays(_unroll_in(data)) for data in delivered]).to(self.device)

    def gradient(
        self, share: float, *delivered: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Compute this learner's gradient of a joint update; the data goes to every learner's ``apply``."""
        note, _ = self.learn(share, *delivered)
        return note, None if note["life"] is None else self.exchange.outgoing()

    @needs_life
    def apply(self, *gradients: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Average the gradients of all learners and take the optimiser step."""
        with self.timer.scope("learn"):
            self.exchange.step_with(gradients)
        return {"version": int(self.algorithm.policy.version)}, None

    @needs_life
    def digest(self) -> tuple[dict[str, Any], None]:
        """Note the digest of the parameters."""
        return {"digest": self.exchange.parameters.digest()}, None

    @needs_life
    def predict(
        self, *asked: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], tuple[dict[str, np.ndarray], ...] | None]:
        """Choose actions for several actors in one forward pass; the data holds one dict per actor."""
        tensors = {
            name: torch.from_numpy(
                np.concatenate([a[name] for a in asked], axis=1 if name == "state" else 0)
            ).to(self.device)
            for name in ("observations", "starts", "noise", "state")
            if name in asked[0]
        }
        with self.timer.scope("infer"), self.algorithm.precision.autocast(self.device.type):
            acted = self.algorithm.policy.act(
                tensors["observations"], tensors["noise"].float(), tensors.get("state"), tensors["starts"]
            )
        acted = Acted(*(None if column is None else column.cpu() for column in acted))
        sizes = [len(a["starts"]) for a in asked]
        columns = {
            name: getattr(acted, name).split(sizes) for name in ("actions", "log_prob", "values", "scores")
        }
        states = None if acted.state is None else acted.state.split(sizes, dim=1)
        version = np.int64(self.algorithm.policy.version)
        answers = []
        for i in range(len(asked)):
            answer = {name: parts[i].numpy() for name, parts in columns.items()} | {"version": version}
            answers.append(answer if states is None else answer | {"state": states[i].contiguous().numpy()})
        return {}, tuple(answers)

    def _note(self, metrics: dict[str, Tensor]) -> dict[str, Any]:
        return {
            "metrics": {name: float(value) for name, value in metrics.items()},
            "version": self.exchange.version,
            "updates": self.exchange.updates,
            "bytes_moved": self.exchange.bytes_moved,
            **process_note(),
            "time": self.timer.snapshot(),
        }

    @needs_life
    def weights(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the policy's weights and version, for actors."""
        policy = self.algorithm.policy
        return {"version": int(policy.version)}, weights_of(policy)

    @needs_life
    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return everything that determines the learner's future behaviour."""
        algorithm, weights = self.algorithm, weights_of(self.algorithm.policy)
        state: dict[str, Any] = behind("weights.", {name: array.copy() for name, array in weights.items()})
        state |= behind(
            "algorithm.", {n: tensor.cpu().numpy() for n, tensor in algorithm.get_state().items()}
        )
        state["generator"] = algorithm.generator.get_state().numpy()
        return {"version": int(algorithm.policy.version)}, state | self.exchange.get_state()

    def set_state(self, life: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Continue from ``get_state``'s data, which may come from another learner after a loss."""
        self.life = life
        load_weights(self.algorithm.policy, part_of(state, "weights."))
        algorithm = tensors_of(part_of(state, "algorithm."))
        if algorithm:
            self.algorithm.set_state(algorithm)
        self.algorithm.generator.set_state(torch.from_numpy(np.array(state["generator"])))
        self.exchange.set_state(state)
        return {}, None

    def close(self) -> None:
        """Do nothing: the learner holds no environments."""


class ServerLearner(Learner):
    """A learner that pushes its gradients to a parameter server; with ``plays``, it also plays.

    Args:
        num_shards: number of the server's shards. Handles on them come with ``begin`` and ``set_state``; Ray
            warns that it may lose those that a constructor gets before the part restarts.
        fetch: converts a shard's data into arrays.
    """

    def __init__(
        self, config: dict[str, Any], index: int, count: int, num_shards: int, fetch: Any, plays: bool
    ) -> None:
        super().__init__(
            config,
            index,
            count,
            lambda timer: ParameterServerExchange(
                timer, num_shards=num_shards, fetch=fetch, index=index, count=count
            ),
        )
        self.plays = plays

    def _enter(self, life: int) -> None:
        """Begin ``life``, with its own random numbers; a new process creates its environments first."""
        if self.plays and self.life is None:
            self.source = self._make_source(life)
            self.counter = PlayCounter(self.source.groups, self.source.episode_logs)
        elif self.plays:
            for group in self.source.groups:
                group.set_life(life)
        self.life = life

    def _make_source(self, life: int) -> Source:
        """Return the source of this learner's own environments, which start with the seeds of ``life``."""
        index, count = self.exchange.rank, self.exchange.world_size
        size = self.config.hyper.num_envs // count
        group = make_playing_group(self.config, index * size, size, num_threads=1, timer=self.timer)
        group.set_life(life)
        if self.algorithm.source_kind == "replay":
            return make_replay_source(
                self.config,
                self.algorithm,
                group,
                index=index,
                count=count,
                replays_here=replays_on_a_host(self.config, count),
                batch_size=self.config.hyper.batch_size,
            )
        length = self.config.hyper.unroll_length
        return RolloutSource([group], length, self.algorithm.policy, threaded=False, timer=self.timer)

    def begin(
        self, life: int, epoch: int, pushes: int, shards: list[Any], share: float
    ) -> tuple[dict[str, Any], None]:
        """Start life ``life`` in an epoch of the server.

        ``pushes`` is the number of pushes in this life, ``share`` the completed share of the run, on which
        exploration depends.
        """
        self._enter(life)
        self.exchange.shards = shards
        self.algorithm.explore(share)
        try:
            self.exchange.begin(life, epoch, pushes)
        except ServerLost as error:
            return {"life": life, "server_lost": str(error)}, None
        self.source.publish(self.algorithm.policy)
        return {"life": life}, None

    @needs_life
    def iterate(self, share: float) -> tuple[dict[str, Any], None]:
        """Play and learn for one iteration, or only play, for FILL_SECONDS, while the replay fills.

        The note then has no metrics.
        """
        if self.config.run.engine == "ray" and isinstance(self.source, ReplaySource):
            with self.timer.scope("other"):
                can_learn = self.source.fill(FILL_SECONDS)
            if not can_learn:
                return self._note({}), None
        return self._iterate(share), None

    def _iterate(self, share: float) -> dict[str, Any]:
        """Run one iteration; return its note, with ``server_lost`` if the parameter server did not answer."""
        try:
            return super()._iterate(share)
        except ServerLost as error:
            self.exchange.parameters.grad.zero_()
            return self._note({}) | {"server_lost": str(error)}

    def _note(self, metrics: dict[str, Tensor]) -> dict[str, Any]:
        note = super()._note(metrics)
        note |= {"pushes": self.exchange.pushes, "ledger": self.exchange.ledgers.sum(0).tolist()}
        return note | self.counter.take() if self.plays else note

    @needs_life
    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        note, state = super().get_state()
        if self.plays:
            saved = self.source.get_state().items()
            arrays = {n: v.cpu().numpy() if isinstance(v, Tensor) else np.array(v) for n, v in saved}
            state |= behind("source.", arrays)
            note["exact"] = self.source.can_resume_exactly
        return note, state

    def set_state(
        self, life: int, state: dict[str, np.ndarray], shards: list[Any]
    ) -> tuple[dict[str, Any], None]:
        """Continue from ``get_state``'s data and the server's ``epoch``.

        The note counts the episodes that could not be continued (``cut_games``).
        """
        self._enter(life)
        super().set_state(life, state)
        self.exchange.life, self.exchange.epoch, self.exchange.shards = life, int(state["epoch"]), shards
        if not self.plays:
            return {}, None
        self.source.publish(self.algorithm.policy)
        source = {n: np.array(array) for n, array in part_of(state, "source.").items()}
        self.source.set_state(source)
        self.counter.restored()
        return {"cut_games": self.source.cut_games - int(source["cut_games"])}, None

    def close(self) -> None:
        """Close the environments, if there are any yet."""
        if isinstance(self.source, Source):
            self.source.close()


def _unroll_in(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Extract the unroll from an actor's data, which may also hold the next observations."""
    held = part_of(data, "unroll.")
    return held or data
