"""Algorithms, backends and networks from outside the package: registered, or found as installed plugins."""

import importlib.metadata
import re
import shutil
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import parcade
from parcade import plugins
from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.base import Algorithm, AlgorithmConfig
from parcade.algorithms.table import ALGORITHMS, algorithm_row
from parcade.cli import main
from parcade.envs.backends import BACKENDS, backend_row
from parcade.envs.native import NativeVectorEnv
from parcade.errors import UsageError
from parcade.files.run_directory import read_json
from parcade.model import optimizers
from parcade.model.networks import NETWORKS, build_torso
from parcade.model.policy import NetworkConfig
from parcade.ranges import Count
from parcade.training_flags import parse_training


@dataclass(frozen=True)
class SignConfig(A2CConfig):
    """Hyper-parameters of a toy algorithm."""

    boldness: float = 1.0
    """Factor of the gradient."""


class SignA2C(A2C):
    """A2C with scaled losses, which a test can tell from A2C."""

    def update(self, batch, exchange, progress):
        return {
            **super().update(batch, exchange, progress),
            "loss/policy": torch.tensor(self.config.boldness),
        }


@dataclass(frozen=True)
class PlainQConfig(AlgorithmConfig):
    """The fewest hyper-parameters with which rollouts can be played."""

    unroll_length: Count = 4
    """Steps per environment between updates."""


class PlainQ(Algorithm):
    """One-step Q-learning without a target network; half of the actions are random."""

    source_kind, head = "rollout", "q"

    def __init__(self, context, config):
        super().__init__(context, config)
        self.policy.epsilon.fill_(0.5)

    def optimizer(self):
        return lambda parameters: optimizers.Adam(parameters, self.config.learning_rate)

    def update(self, batch, exchange, progress):
        def loss(observations, targets):
            taken = self.policy(observations).scores.gather(-1, batch.actions[..., None])[..., 0]
            return (taken - targets).square().mean(), {}

        return exchange.minimize(loss, batch.observations, batch.rewards)


class PartlyFrozen(torch.nn.Module):
    """A toy network whose first layer is not trained."""

    def __init__(self, observation_shape, config):
        super().__init__()
        self.num_features = config.hidden
        self.given = torch.nn.Linear(int(np.prod(observation_shape)), config.hidden).requires_grad_(False)
        self.dense = torch.nn.Linear(config.hidden, config.hidden)

    def forward(self, x):
        return self.dense(self.given(x.flatten(1)).tanh()).tanh()


class Reversed(NativeVectorEnv):
    """The native consoles upside down."""

    def reset(self, *, seed=None, options=None):
        observations, infos = super().reset(seed=seed, options=options)
        return observations[:, :, ::-1].copy(), infos

    def step(self, actions, playing=None):
        observations, *rest = super().step(actions, playing)
        return observations[:, :, ::-1].copy(), *rest


class Doubled(torch.nn.Module):
    """A toy network whose output is twice as wide as the user asks for."""

    def __init__(self, observation_shape, config):
        super().__init__()
        self.num_features = 2 * config.hidden
        self.dense = torch.nn.Linear(int(np.prod(observation_shape)), self.num_features)

    def forward(self, x):
        return self.dense(x.flatten(1)).tanh()


class Counting(Doubled):
    """A toy network with a buffer in a format that NumPy lacks."""

    def __init__(self, observation_shape, config):
        super().__init__(observation_shape, config)
        self.register_buffer("scale", torch.tensor(1.0078125, dtype=torch.bfloat16))

    def forward(self, x):
        return super().forward(x) * self.scale.float()


@pytest.fixture
def tables():
    """The tables, restored after the test."""
    before = dict(ALGORITHMS), dict(BACKENDS), dict(NETWORKS)
    yield
    for table, rows in zip((ALGORITHMS, BACKENDS, NETWORKS), before, strict=True):
        table.clear()
        table.update(rows)


def test_a_registered_algorithm_trains_from_the_command_line_with_its_own_flag(tables, tmp_path):
    parcade.register_algorithm("sign_a2c", SignA2C, SignConfig)
    arguments = ["--algorithm", "sign_a2c", "--boldness", "0.25", "--total-frames", "2000"]
    run = ["--run-dir", str(tmp_path / "run"), "--report-seconds", "0.01", "--threads-per-rank", "1"]
    assert main(["train", "tiny_catch", *arguments, *run]) == 0
    assert read_json(tmp_path / "run" / "result.json")["algorithm"] == "sign_a2c"
    reports = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"loss/policy": 0.25' in reports


def test_a_registered_algorithm_needs_no_settings_that_it_does_not_use(tables, tmp_path):
    parcade.register_algorithm("plain_q", PlainQ, PlainQConfig)
    run = ["--run-dir", str(tmp_path / "run"), "--total-frames", "500", "--threads-per-rank", "1"]
    assert main(["train", "tiny_catch", "--algorithm", "plain_q", "--num-envs", "2", *run]) == 0
    agent = parcade.load(tmp_path / "run")
    assert agent.policy.epsilon.item() == 0.5 and agent.config.hyper.max_grad_norm is None


@pytest.mark.parametrize("actors", [(), ("--num-actors", "2")])
def test_evolution_strategies_leave_parameters_alone_that_are_not_trained(tables, tmp_path, actors):
    parcade.register_network("partly_frozen", PartlyFrozen)
    size = ["--network", "partly_frozen", "--hidden", "5", "--num-envs", "2", "--population", "4"]
    run = ["--run-dir", str(tmp_path / "run"), "--threads-per-rank", "1", "--no-normalize-input"]
    kind = ["--algorithm", "es", "--engine", "serial", *actors]
    weights = []
    for frames in ("40", "400"):
        assert main(["train", "tiny_catch", *kind, *size, *run, "--total-frames", frames]) == 0
        weights.append(parcade.load(tmp_path / "run").policy.torso)
        shutil.rmtree(tmp_path / "run")
    assert torch.equal(weights[0].given.weight, weights[1].given.weight)
    assert not torch.equal(weights[0].dense.weight, weights[1].dense.weight)


def test_a_registered_backend_emulates_for_make_vec_and_training(tables, tmp_path):
    parcade.register_backend("reversed", Reversed)
    size = {"image_height": 42, "image_width": 42}
    mine, usual = (parcade.make_vec("pong", 2, name, **size) for name in ("reversed", "native"))
    seen, expected = mine.reset(seed=1)[0], usual.reset(seed=1)[0]
    assert np.array_equal(seen, expected[:, :, ::-1]) and not np.array_equal(seen, expected)
    size_flags = ["--image-height", "42", "--image-width", "42", "--num-envs", "4", "--unroll-length", "8"]
    run = ["--run-dir", str(tmp_path / "run"), "--total-frames", "200", "--threads-per-rank", "1"]
    assert main(["train", "pong", "--backend", "reversed", *size_flags, *run]) == 0
    assert read_json(tmp_path / "run" / "result.json")["backend"] == "reversed"
    with pytest.raises(UsageError, match="warm_up_steps=5 needs an Atari game on parcade's own consoles"):
        parcade.make_vec("pong", 2, "reversed", warm_up_steps=5)


def test_a_registered_network_trains_on_images_is_saved_and_plays(tables, tmp_path, capsys):
    parcade.register_network("doubled", Doubled)
    run = ["--run-dir", str(tmp_path / "run"), "--total-frames", "600", "--threads-per-rank", "1"]
    size = ["--image-height", "42", "--image-width", "42", "--num-envs", "2", "--unroll-length", "8"]
    assert main(["train", "pong", "--network", "doubled", "--hidden", "5", *size, *run]) == 0
    policy = parcade.load(tmp_path / "run").policy
    assert isinstance(policy.torso, Doubled) and policy.actor.weight.shape == (6, 10)
    del NETWORKS["doubled"]
    with pytest.raises(UsageError, match="unknown network 'doubled'; expected one of auto, small_cnn"):
        parcade.load(tmp_path / "run")


@pytest.mark.parametrize("algorithm", ["a3c", "impala", "ga3c"])
def test_actors_get_buffers_of_a_registered_network_in_any_format(tables, tmp_path, algorithm):
    parcade.register_network("counting", Counting)
    flags = ["--algorithm", algorithm, "--engine", "serial", "--network", "counting", "--hidden", "5"]
    run = ["--run-dir", str(tmp_path / "run"), "--threads-per-rank", "1", "--total-frames"]
    assert main(["train", "tiny_catch", *flags, *run, "1500"]) == 0
    frames = read_json(tmp_path / "run" / "result.json")["frames"]
    assert main(["train", "--resume", str(tmp_path / "run"), "--total-frames", "3000"]) == 0
    assert read_json(tmp_path / "run" / "result.json")["frames"] > frames
    scale = parcade.load(tmp_path / "run").policy.torso.scale
    assert scale.dtype == torch.bfloat16 and scale.item() == 1.0078125


def test_a_network_without_its_width_is_refused(tables):
    parcade.register_network("bare", lambda shape, config: torch.nn.Flatten())
    with pytest.raises(UsageError, match="network 'bare' is a Flatten without num_features; set this"):
        build_torso(NetworkConfig(network="bare"), (4,))


def test_a_field_of_a_config_with_the_name_of_another_flag_is_refused(tables):
    @dataclass(frozen=True)
    class Seeded(A2CConfig):
        seed: int = 3
        """A flag of every training."""

    parcade.register_algorithm("seeded", A2C, Seeded)
    with pytest.raises(UsageError, match="Seeded has seed, a flag of every training; rename it"):
        parse_training(["tiny_catch", "--algorithm", "seeded"])


def test_a_config_with_a_field_without_default_is_refused(tables):
    @dataclass(frozen=True, kw_only=True)
    class Bold(A2CConfig):
        boldness: float

    with pytest.raises(UsageError, match=r"Bold cannot be made without arguments \(.*'boldness'\)"):
        parcade.register_algorithm("bold", A2C, Bold)


class Returns(torch.nn.Linear):
    """A toy network that says it has two features, and returns what ``result`` makes of three."""

    num_features = 2

    def __init__(self, shape, result):
        super().__init__(shape[0], 3)
        self.result = result

    def forward(self, x):
        return self.result(super().forward(x))


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda x: x, r"returns shape \[2, 3\] for observations \[2, 4\]; expected a tensor \[2, 2\]"),
        (lambda x: x[:, None, :2], r"returns shape \[2, 1, 2\]"),
        (lambda x: None, "returns a NoneType"),
    ],
)
def test_a_network_of_another_output_than_it_says_is_refused(tables, result, says):
    parcade.register_network("other", lambda shape, config: Returns(shape, result))
    with pytest.raises(UsageError, match=f"network 'other' {says}"):
        build_torso(NetworkConfig(network="other"), (4,))


def test_a_network_with_lazy_layers_is_refused(tables):
    def lazy(shape, config):
        layer = torch.nn.LazyLinear(2)
        layer.num_features = 2
        return layer

    parcade.register_network("lazy", lazy)
    with pytest.raises(UsageError, match="network 'lazy' has lazy layers"):
        build_torso(NetworkConfig(network="lazy"), (4,))


def test_looking_at_a_networks_output_changes_neither_it_nor_random_numbers(tables):
    def with_noise(shape, config):
        norm = torch.nn.BatchNorm1d(4)
        network = torch.nn.Sequential(norm, torch.nn.Dropout(0.5), torch.nn.RReLU())
        network.num_features = 4
        return network

    parcade.register_network("with_noise", with_noise)
    state = torch.get_rng_state()
    network = build_torso(NetworkConfig(network="with_noise"), (4,))
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training and network[0].num_batches_tracked == 0


def test_an_error_of_a_network_is_left_to_the_run(tables):
    def fails(x):
        raise RuntimeError("mine")

    parcade.register_network("fails", lambda shape, config: Returns(shape, fails))
    with pytest.raises(RuntimeError, match="mine"):
        build_torso(NetworkConfig(network="fails"), (4,))(torch.zeros(1, 4))


A2C_UPDATE = A2C.update
TINY = ["--total-frames", "200", "--num-envs", "2", "--threads-per-rank", "1", "--report-seconds", "0.01"]


def with_metric(name, value):
    return lambda self, *given: {**A2C_UPDATE(self, *given), name: value}


def with_loss(result):
    return lambda self, batch, exchange, progress: exchange.minimize(lambda: result(self.policy.actor.bias))


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({"update": lambda self, *given: None}, r"Mine\.update returned None; expected a dict of metrics"),
        ({"update": with_metric("x", "3")}, "returned a str as metric 'x'; expected a number, or a tensor"),
        ({"update": with_metric("x", None)}, "returned a NoneType as metric 'x'"),
        ({"update": with_metric("x", torch.ones(3))}, r"returned shape \[3\] as metric 'x'"),
        ({"update": with_metric("x", np.ones(3))}, r"returned shape \[3\] as metric 'x'"),
        ({"update": with_metric(3, 1.0)}, "returned a metric named 3; expected a string"),
        ({"update": with_loss(torch.sum)}, "the loss returned a Tensor; expected a tuple of a scalar tensor"),
        ({"update": with_loss(lambda x: (x.sum(), None))}, r"returned a tuple \(Tensor, NoneType\)"),
        ({"update": with_loss(lambda x: (x, {}))}, r"the loss has shape \[3\]; expected a scalar: take"),
        ({"update": with_loss(lambda x: (x.sum().detach(), {}))}, "the loss does not depend on the trained"),
        ({"optimizer": lambda self: None}, "optimizer returned a NoneType; expected a function that makes"),
        (
            {"optimizer": lambda self: lambda parameters: None},
            "the function that makes the optimiser returned a NoneType; expected an optimiser, such as",
        ),
        ({"optimizer": lambda self: torch.optim.LBFGS}, r"LBFGS\.step\(closure\) computes the loss several"),
        ({"get_state": lambda self: None}, "get_state returned a NoneType; expected a dict of tensors"),
    ],
)
def test_an_algorithm_that_returns_something_else_is_named_in_one_line(
    tables, tmp_path, capsys, methods, says
):
    parcade.register_algorithm("mine", type("Mine", (A2C,), methods), A2CConfig)
    run = ["--run-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_catch", "--algorithm", "mine", *TINY, *run]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize("value", [1.5, np.float32(2), np.array(2), True, torch.tensor(False)])
def test_an_algorithm_may_return_plain_numbers(tables, tmp_path, value):
    parcade.register_algorithm("mine", type("Mine", (A2C,), {"update": with_metric("x", value)}), A2CConfig)
    run = ["--run-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_catch", "--algorithm", "mine", *TINY, *run]) == 0


def test_a_loss_and_its_metrics_may_be_a_list(tables, tmp_path):
    methods = {"update": with_loss(lambda x: [x.sum(), {}])}
    parcade.register_algorithm("mine", type("Mine", (A2C,), methods), A2CConfig)
    run = ["--run-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_catch", "--algorithm", "mine", *TINY, *run]) == 0


def test_an_optimiser_may_wrap_one_of_torch(tables, tmp_path):
    class Wrapper:
        def __init__(self, optimizer):
            self.step, self.param_groups = optimizer.step, optimizer.param_groups
            self.state = optimizer.state

    methods = {"optimizer": lambda self: lambda parameters: Wrapper(torch.optim.Adam(parameters, lr=1e-3))}
    parcade.register_algorithm("mine", type("Mine", (A2C,), methods), A2CConfig)
    run = ["--run-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_catch", "--algorithm", "mine", *TINY, *run]) == 0
    assert main(["train", "--resume", run[1], "--total-frames", "400"]) == 0


def test_an_algorithm_without_a_method_that_every_one_needs_is_refused(tables):
    class NoUpdate(Algorithm):
        source_kind, head = "rollout", "q"
        optimizer = PlainQ.optimizer

    with pytest.raises(UsageError, match="algorithm 'mine' has no method update of its own; define it"):
        parcade.register_algorithm("mine", NoUpdate, PlainQConfig)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda net: net.double(), r"has parameters of torch.float64 \(dense.weight\); expected float32"),
        (lambda net: net.register_forward_hook(lambda *args: args[2].int()), "returns torch.int32; expected"),
    ],
)
def test_a_network_of_another_type_of_number_is_refused(tables, change, says):
    def build(shape, config):
        network = Doubled(shape, config)
        change(network)
        return network

    parcade.register_network("other", build)
    with pytest.raises(UsageError, match=f"network 'other' {says}"):
        build_torso(NetworkConfig(network="other"), (4,))


def test_the_width_of_a_network_may_be_an_integer_of_numpy(tables):
    def build(shape, config):
        network = Doubled(shape, config)
        network.num_features = np.int64(network.num_features)
        return network

    parcade.register_network("other", build)
    assert build_torso(NetworkConfig(network="other", hidden=4), (4,)).num_features == 8


def test_names_in_use_and_engines_of_parts_are_refused(tables):
    with pytest.raises(UsageError, match="algorithm 'ppo' exists already"):
        parcade.register_algorithm("ppo", SignA2C, SignConfig)
    with pytest.raises(UsageError, match="engines=ray: expected some of local, serial, mpi"):
        parcade.register_algorithm("sign_a2c", SignA2C, SignConfig, engines=("local", "ray"))
    with pytest.raises(UsageError, match="backend 'ale' exists already"):
        parcade.register_backend("ale", Reversed)
    with pytest.raises(UsageError, match="network 'mlp' exists already"):
        parcade.register_network("mlp", Doubled)
    with pytest.raises(UsageError, match="network name 'my mlp': expected text without spaces"):
        parcade.register_network("my mlp", Doubled)


@pytest.mark.parametrize("ability", ["cuda", "warmup_steps"])
def test_an_ability_that_no_other_backend_can_have_is_refused(tables, ability):
    wanted = f"supports={ability} of backend 'reversed': expected some of start_states, warm_up_steps, "
    with pytest.raises(UsageError, match=wanted):
        parcade.register_backend("reversed", Reversed, supports=["ale_compat", ability])
    assert "reversed" not in BACKENDS


def test_a_registered_backend_gets_the_options_that_it_supports(tables):
    parcade.register_backend("reversed", Reversed, supports=["start_states", "ale_compat"])
    env = parcade.make_vec("pong", 1, "reversed", start_states="cached", ale_compat=True)
    assert env.reset(seed=1)[0].shape == (1, 4, 84, 84)
    with pytest.raises(UsageError, match="batch_size is for Atari games on backend 'native'; leave it out"):
        parcade.make_vec("pong", 2, "reversed", batch_size=1)


def test_a_plugin_that_cannot_be_imported_is_named_and_the_others_are(tables, tmp_path, monkeypatch, capsys):
    broken = importlib.metadata.EntryPoint("x", "no_such_module_at_all", "parcade")
    leaving = importlib.metadata.EntryPoint("y", "leaving_module", "parcade")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    entries = [broken, leaving, SimpleNamespace(load=lambda: parcade.register_network("doubled", Doubled))]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    plugins.load_plugins.cache_clear()
    assert main(["train", "tiny_catch", "--network", "no_such_network"]) == 2
    error = capsys.readouterr().err
    assert "warning: plugin x (no_such_module_at_all) cannot be imported: No module named" in error
    assert "plugin y (leaving_module) cannot be imported: it calls sys.exit() when it is imported" in error
    assert "unknown network 'no_such_network'" in error and "Traceback" not in error
    assert isinstance(build_torso(NetworkConfig(network="doubled"), (4,)), Doubled)
    plugins.load_plugins.cache_clear()


def test_an_installed_plugin_is_found_by_name_in_every_process(tables, monkeypatch):
    class Entry:
        def load(self):
            parcade.register_algorithm("sign_a2c", SignA2C, SignConfig)
            parcade.register_backend("reversed", Reversed)
            parcade.register_network("doubled", Doubled)

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Entry()] if group == "parcade" else []
    )
    plugins.load_plugins.cache_clear()
    assert algorithm_row("sign_a2c").make is SignA2C
    assert backend_row("reversed").make is Reversed
    assert isinstance(build_torso(NetworkConfig(network="doubled"), (4,)), Doubled)
    plugins.load_plugins.cache_clear()
