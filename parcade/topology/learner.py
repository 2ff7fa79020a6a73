"""The learner: an algorithm, its gradient exchange and, if it plays its own games, its experience source.

It runs ``parcade.loop.iterate``, one iteration of the training loop, each time the driver calls it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parcade.build.groups import make_playing_group
from parcade.build.learner import make_algorithm
from parcade.build.replay import make_replay_source, shares_on_a_host
from parcade.config import from_json
from parcade.devices import torch_device
from parcade.exchange.base import (
    Exchange,
    LocalExchange,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)
from parcade.exchange.group import GroupExchange
from parcade.exchange.parameter_server import ParameterServerExchange, ServerLost
from parcade.experience.batch import Batch
from parcade.experience.population_batch import PopulationBatch
from parcade.experience.replay import TransitionBatch
from parcade.experience.rollout import RolloutSource
from parcade.loop import iterate
from parcade.parameters import load_weights, weights_of
from parcade.policy import Acted
from parcade.state import part_of
from parcade.threads import set_part_threads
from parcade.timing import Timer, process_cpu_seconds


class DeliveredSource:
    """A source that returns the batch delivered with the driver's call."""

    def __init__(self) -> None:
        self.batch: Batch | TransitionBatch | None = None

    def next_batch(self) -> Batch | TransitionBatch:
        return self.batch

    def publish(self, policy: Any) -> None:
        """Do nothing: the driver sends the weights to the actors."""


class Learner:
    """Computes one update per call of ``learn`` or, if it is bundled, of ``turn``.

    Args:
        config: ``to_json`` of the run's config.
        index, count: this learner's index and the number of learners.
        shards: handles on the parameter server's shards; None gives the learner its own optimiser.
        fetch: converts a shard's data into arrays.
        plays: whether the learner plays its own games (bundled).
    """

    def __init__(
        self,
        config: dict[str, Any],
        index: int,
        count: int,
        shards: list[Any] | None,
        fetch: Any,
        plays: bool,
    ) -> None:
        self.config = from_json(config)
        set_part_threads(self.config.run.threads_per_rank, learns=True)
        self.device = torch_device(self.config.run.device)
        self.timer = Timer(outside="wait")
        self.exchange = self._make_exchange(index, count, shards, fetch)
        self.algorithm = make_algorithm(self.config, self.exchange)
        self.source = self._make_source(index, count) if plays else DeliveredSource()
        self.plays = plays
        self.life: int | None = None
        self._last = np.zeros(3, np.int64)

    def _make_exchange(self, index: int, count: int, shards: list[Any] | None, fetch: Any) -> Exchange:
        if shards is not None:
            return ParameterServerExchange(self.timer, shards, fetch, index, count)
        return GroupExchange(self.timer, index, count) if count > 1 else LocalExchange(self.timer)

    def _make_source(self, index: int, count: int) -> Any:
        size = self.config.hyper.num_envs // count
        group = make_playing_group(self.config, index * size, size, num_threads=1, timer=self.timer)
        if self.algorithm.source_kind == "replay":
            return make_replay_source(
                self.config,
                self.algorithm,
                group,
                index,
                count,
                shares_here=shares_on_a_host(self.config, count),
                batch_size=self.config.hyper.batch_size,
            )
        length = self.config.hyper.unroll_length
        return RolloutSource([group], length, self.algorithm.policy, threaded=False, timer=self.timer)

    def begin(self, life: int, epoch: int = 0, pushes: int = 0) -> tuple[dict[str, Any], None]:
        """Start life ``life``, the first or one after a loss.

        With a parameter server, ``epoch`` is the server's, and ``pushes`` the number of pushes in this life.
        """
        self.life = life
        if isinstance(self.exchange, ParameterServerExchange):
            try:
                self.exchange.begin(life, epoch, pushes)
            except ServerLost as error:
                return {"life": life, "server_lost": str(error)}, None
        if self.plays:
            self.source.publish(self.algorithm.policy)
        return {"life": life}, None

    def turn(self, share: float) -> tuple[dict[str, Any], None]:
        """Run one iteration of a bundled learner: play and learn."""
        if self.life is None:
            return {"life": None}, None
        return self._iterate(share), None

    def learn(
        self, share: float, *delivered: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], np.ndarray | None]:
        """Run one update on unrolls or sampled transitions; the data holds the new priorities or None."""
        if self.life is None:
            return {"life": None}, None
        if delivered[0] is None:  # the replay shard restarted and is empty
            return {"life": self.life, "nothing_delivered": True}, None
        self.source.batch = self._batch(delivered)
        note = self._iterate(share)
        priorities = getattr(self.source.batch, "priorities", None)
        if priorities is None or "server_lost" in note:
            return note, None
        return note, priorities.cpu().numpy()

    def _iterate(self, share: float) -> dict[str, Any]:
        """Run one iteration; return its note, with ``server_lost`` if the parameter server did not answer."""
        try:
            with self.timer.scope("other"):
                metrics = iterate(self.algorithm, self.source, self.exchange, self.timer, share)
        except ServerLost as error:
            self.exchange.parameters.grad.zero_()
            return self._note({}) | {"server_lost": str(error)}
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

    def apply(self, *gradients: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Average the gradients of all learners and take the optimiser step."""
        if self.life is None:
            return {"life": None}, None
        with self.timer.scope("learn"):
            self.exchange.step_with(gradients)
        return {"life": self.life, "version": int(self.algorithm.policy.version)}, None

    def predict(
        self, *asked: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], tuple[dict[str, np.ndarray], ...] | None]:
        """Choose actions for several actors in one forward pass; the data holds one dict per actor."""
        if self.life is None:
            return {"life": None}, None
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
        return {"life": self.life}, tuple(answers)

    def _note(self, metrics: dict[str, Tensor]) -> dict[str, Any]:
        note: dict[str, Any] = {
            "life": self.life,
            "metrics": {name: float(value) for name, value in metrics.items()},
            "version": self.exchange.version,
            "updates": self.exchange.updates,
            "bytes_moved": self.exchange.bytes_moved,
            "cpu_seconds": process_cpu_seconds(),
            "time": self.timer.snapshot(),
        }
        if isinstance(self.exchange, ParameterServerExchange):
            note |= {"pushes": self.exchange.pushes, "ledger": self.exchange.ledgers.sum(0).tolist()}
        if self.plays:
            source = self.source
            now = np.array([source.frames, source.reset_frames, source.steps])
            frames, reset_frames, steps = (now - self._last).tolist()
            self._last = now
            rows = np.concatenate([log.take_new() for log in source.episode_logs])
            note |= {"frames": frames, "reset_frames": reset_frames, "steps": steps, "rows": rows}
        return note

    def weights(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the policy's weights and version, for actors."""
        return {"life": self.life, "version": int(self.algorithm.policy.version)}, weights_of(
            self.algorithm.policy
        )

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Return everything that determines the learner's future behaviour."""
        if self.life is None:
            return {"life": None}, None
        state: dict[str, Any] = {
            f"weights.{name}": array.copy() for name, array in weights_of(self.algorithm.policy).items()
        }
        state |= {
            f"algorithm.{name}": tensor.cpu().numpy() for name, tensor in self.algorithm.get_state().items()
        }
        state["generator"] = self.algorithm.generator.get_state().numpy()
        state["counters"] = np.array([self.exchange.updates, self.exchange.bytes_moved])
        if isinstance(self.exchange, ParameterServerExchange):
            state["versions"] = self.exchange.versions.copy()
            state["pushes"] = np.int64(self.exchange.pushes)
            state["ledgers"] = self.exchange.ledgers.copy()
        else:
            optimizer = self.exchange.optimizer
            values = optimizer_state(optimizer, self.exchange.parameters.data)
            state |= {f"optimizer.{name}": value.numpy() for name, value in values.items()}
            state["learning_rate"] = np.float64(learning_rate(optimizer))
        if self.plays:
            saved = self.source.get_state().items()
            state |= {
                f"source.{n}": v.cpu().numpy() if isinstance(v, Tensor) else np.asarray(v) for n, v in saved
            }
        note = {"life": self.life, "version": int(self.algorithm.policy.version)}
        return note | {"exact": not self.plays or self.source.can_resume_exactly}, state

    def set_state(self, life: int, epoch: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Continue from ``get_state``'s data, which may come from another learner after a loss.

        The note counts the episodes that could not be continued (``cut_games``).
        """
        part = lambda prefix: {n: np.array(v) for n, v in part_of(state, prefix).items()}  # noqa: E731
        self.life = life
        load_weights(self.algorithm.policy, part("weights."))
        algorithm = part("algorithm.")
        if algorithm:
            self.algorithm.set_state({name: torch.from_numpy(array) for name, array in algorithm.items()})
        self.algorithm.generator.set_state(torch.from_numpy(np.array(state["generator"])))
        self.exchange.updates, self.exchange.bytes_moved = (int(x) for x in state["counters"])
        if isinstance(self.exchange, ParameterServerExchange):
            self.exchange.life, self.exchange.epoch = life, epoch
            self.exchange.pushes = int(state["pushes"])
            self.exchange.versions = np.array(state["versions"])
            self.exchange.ledgers = np.array(state["ledgers"])
        else:
            optimizer = {name: torch.from_numpy(array) for name, array in part("optimizer.").items()}
            load_optimizer_state(self.exchange.optimizer, self.exchange.parameters.data, optimizer)
            set_learning_rate(self.exchange.optimizer, float(state["learning_rate"]))
        cut = 0
        if self.plays:
            self.source.publish(self.algorithm.policy)
            self.source.set_state(part("source."))
            self._last = np.array([self.source.frames, self.source.reset_frames, self.source.steps])
            cut = self.source.cut_games
        return {"cut_games": cut}, None

    def close(self) -> None:
        """Close the environments."""
        if self.plays:
            self.source.close()


def _unroll_in(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Extract the unroll from an actor's data, which may also hold the next observations."""
    held = part_of(data, "unroll.")
    return held or data
