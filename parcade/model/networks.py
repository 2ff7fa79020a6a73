"""Networks that map observations to features, by name. ``policy.py`` adds memory and heads.

Shapes: N observations, F features. Initial weights are orthogonal (Saxe 2014) with the gains that are
customary for PPO: sqrt(2) in the body, 0.01 at the actor, 1 at the critic. Networks for images are in
``image_networks.py``. Source of the MLP without biases: Karpathy 2016.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from parcade.errors import UsageError, unknown_name
from parcade.model.image_networks import (
    FINE_CNN,
    NATURE_CNN,
    SMALL_CNN,
    ConvNet,
    Hadamax,
    ImpalaResNet,
    orthogonal,
)
from parcade.plugins import check_registered, load_plugins
from parcade.ranges import Positive, Range, check_ranges

WIDEST_LAYER = 1_000_000
# The value head that reads each of these settings.
READ_BY_HEAD = {"num_atoms": "c51", "v_min": "c51", "v_max": "c51", "num_quantiles": "quantile"}


@dataclass(frozen=True)
class NetworkConfig:
    """The policy's network."""

    network: str = "auto"
    """Network architecture: small_cnn, fine_cnn, nature_cnn, impala_resnet, impala_btr, hadamax,
    karpathy_mlp, ram_mlp, mlp, or a plugin's; auto selects the small CNN for images, two layers of 512 units
    for RAM, and an MLP for vectors."""
    hidden: Annotated[int, Range(1, WIDEST_LAYER)] = 256
    """Width of the dense layer; karpathy_mlp and ram_mlp have widths of their own."""
    layer_norm: bool = False
    """Apply layer normalisation in small_cnn, fine_cnn, nature_cnn, mlp or ram_mlp (PQN needs it)."""
    dueling: bool = False
    """Compute Q values as V(x) plus advantages of mean 0 (Wang 2016, arXiv 1511.06581, eq. 9)."""
    value_head: Literal["mean", "c51", "quantile"] = "mean"
    """What a Q network predicts of an action's return: its mean, or its distribution, as probabilities of
    atoms (c51) or as quantiles. Actions are chosen by the mean in each case."""
    num_atoms: Annotated[int, Range(2, WIDEST_LAYER)] = 51
    """Atoms of the c51 head, evenly spaced from v_min to v_max."""
    v_min: float = -10.0
    """Smallest return that the c51 head represents; smaller ones count as this."""
    v_max: float = 10.0
    """Largest return that the c51 head represents; larger ones count as this."""
    num_quantiles: Annotated[int, Range(1, WIDEST_LAYER)] = 200
    """Quantiles of the quantile head."""
    lstm: Annotated[int, Range(0, WIDEST_LAYER)] = 0
    """Width of an LSTM between network and heads; 0 disables it."""
    normalize_input: bool = True
    """Subtract a running mean from every pixel and divide by a running standard deviation; without effect on
    karpathy_mlp."""
    input_clip: Positive = 5.0
    """Clip normalised inputs to plus or minus this value."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, head in READ_BY_HEAD.items():
            value, default = getattr(self, name), getattr(NetworkConfig, name)
            if value != default and self.value_head != head:
                raise UsageError(
                    f"{name}={value:g} is a setting of value_head {head}; got value_head {self.value_head}; "
                    f"use --value-head {head}, or leave {name} at {default:g}"
                )
        if self.input_clip != NetworkConfig.input_clip and not self.normalize_input:
            raise UsageError(
                f"input_clip={self.input_clip:g} clips normalised inputs; got --no-normalize-input; "
                "leave one of them out"
            )
        if self.v_min >= self.v_max:
            raise UsageError(
                f"v_min={self.v_min:g} is not below v_max={self.v_max:g}; "
                "use a smaller --v-min or a larger --v-max"
            )


class MLP(nn.Module):
    """Dense layers with one activation function. Input ``[N, ...]`` is flattened, output ``[N, F]``.

    With ``layer_norm``, each layer is normalised before its activation function.
    """

    begins_with_autocast: ClassVar[bool] = True

    def __init__(
        self,
        num_inputs: int,
        widths: tuple[int, ...],
        activation: Callable[[], nn.Module],
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers.append(orthogonal(nn.Linear(num_inputs, width)))
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            layers.append(activation())
            num_inputs = width
        self.body = nn.Sequential(*layers)
        self.num_features = num_inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1) if x.ndim > 1 else x[:, None])


class KarpathyMLP(nn.Module):
    """Karpathy's 200 ReLU units without biases; initial weights have standard deviation 1 / sqrt(inputs)."""

    begins_with_autocast: ClassVar[bool] = True

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(num_inputs, 200, bias=False)
        nn.init.normal_(self.dense.weight, std=1 / math.sqrt(num_inputs))
        self.num_features = 200

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.dense(x.flatten(1)))


RAM_BYTES = 128  # of an Atari 2600
RAM_WIDTHS = (512, 512)


def _check_images(observation_shape: tuple[int, ...], config: NetworkConfig) -> None:
    if len(observation_shape) not in (3, 4):
        raise UsageError(
            f"network {config.network} needs images [frames, height, width] or [frames, height, width, 3]; "
            f"got {observation_shape}; use --network auto"
        )


def _ram_mlp(observation_shape: tuple[int, ...], config: NetworkConfig) -> nn.Module:
    return MLP(math.prod(observation_shape), RAM_WIDTHS, nn.ReLU, config.layer_norm)


def _mlp(observation_shape: tuple[int, ...], config: NetworkConfig) -> nn.Module:
    return MLP(math.prod(observation_shape), (config.hidden, config.hidden), nn.Tanh, config.layer_norm)


def _conv_net(
    layers: tuple[tuple[int, int, int], ...], observation_shape: tuple[int, ...], config: NetworkConfig
) -> nn.Module:
    _check_images(observation_shape, config)
    return ConvNet(observation_shape, layers, config.hidden, config.layer_norm)


def _impala_resnet(observation_shape: tuple[int, ...], config: NetworkConfig) -> nn.Module:
    _check_images(observation_shape, config)
    return ImpalaResNet(observation_shape, config.hidden)


def _impala_btr(observation_shape: tuple[int, ...], config: NetworkConfig) -> nn.Module:
    _check_images(observation_shape, config)
    return ImpalaResNet(observation_shape, config.hidden, width=2, spectral_norm=True, pooled_size=6)


def _hadamax(observation_shape: tuple[int, ...], config: NetworkConfig) -> nn.Module:
    _check_images(observation_shape, config)
    return Hadamax(observation_shape, config.hidden)


Build = Callable[[tuple[int, ...], NetworkConfig], nn.Module]
NETWORKS: dict[str, Build] = {
    "small_cnn": functools.partial(_conv_net, SMALL_CNN),
    "fine_cnn": functools.partial(_conv_net, FINE_CNN),
    "nature_cnn": functools.partial(_conv_net, NATURE_CNN),
    "impala_resnet": _impala_resnet,
    "impala_btr": _impala_btr,
    "hadamax": _hadamax,
    "karpathy_mlp": lambda shape, config: KarpathyMLP(math.prod(shape)),
    "ram_mlp": _ram_mlp,
    "mlp": _mlp,
}
_BUILT_IN = frozenset(NETWORKS)


def register_network(name: str, build: Build) -> None:
    """Add a network, for ``parcade train --network NAME``.

    Args:
        build: ``build(observation_shape, config)`` returns a torch module from float32
            ``[N, *observation_shape]`` to ``[N, F]``, with F as its attribute ``num_features``. ``config`` is
            the ``NetworkConfig``: ``hidden`` is the width the user asked for. Initial weights must come from
            torch's global generator, which the run has seeded.

    Errors: UsageError for a name that is in use, or what cannot be called.
    """
    check_registered("network", name, build)
    if name in NETWORKS or name == "auto":
        raise UsageError(f"network {name!r} exists already; choose another name")
    NETWORKS[name] = build


def _network_for(observation_shape: tuple[int, ...]) -> str:
    """Return the network that ``auto`` selects."""
    if len(observation_shape) in (3, 4) and observation_shape[1] >= 36 and observation_shape[2] >= 20:
        return "small_cnn"
    return "ram_mlp" if len(observation_shape) <= 2 and observation_shape[-1:] == (RAM_BYTES,) else "mlp"


def check_network(name: str) -> None:
    """Check that a network of this name exists. Errors: UsageError with the nearest name."""
    if name not in NETWORKS and name != "auto":
        load_plugins()
        if name not in NETWORKS:
            raise unknown_name("network", name, ["auto", *NETWORKS])


def build_torso(config: NetworkConfig, observation_shape: tuple[int, ...]) -> nn.Module:
    """Build the config's network, from ``[N, *observation_shape]`` to ``[N, torso.num_features]``.

    ``auto`` selects the small CNN for images of 36 rows and 20 columns or more, ``ram_mlp`` for a console's
    RAM or a stack of it, and an MLP for anything else.

    Errors: UsageError for an unknown name, an image shape the network does not support, or a registered
    network whose output has another shape.
    """
    check_network(config.network)
    name = _network_for(observation_shape) if config.network == "auto" else config.network
    torso = NETWORKS[name](observation_shape, config)
    if not isinstance(getattr(torso, "num_features", None), Integral):
        raise UsageError(
            f"network {name!r} is a {type(torso).__name__} without num_features; "
            "set this attribute to the width of its output"
        )
    if name not in _BUILT_IN:
        _check_output(name, torso, observation_shape)
    return torso


def _check_output(name: str, torso: nn.Module, observation_shape: tuple[int, ...]) -> None:
    """Evaluate a copy of a registered network on zeros, and check that its output is ``[N, F]``.

    Exceptions of the network are ignored here: they are raised with their stacks where a run calls it,
    perhaps on another device. Errors: UsageError.
    """
    trained = [(of, each) for of, each in torso.named_parameters() if each.requires_grad]
    for parameter, value in trained:
        # All trained parameters are one vector, which would take the widest of their types.
        if torch.promote_types(value.dtype, torch.float32) != torch.float32:
            raise UsageError(
                f"network {name!r} has parameters of {value.dtype} ({parameter}); expected float32, "
                "in which parcade trains: call .float() on the network"
            )
    if any(isinstance(each, UninitializedParameter) for each in torso.parameters()):
        raise UsageError(
            f"network {name!r} has lazy layers, whose weights do not exist yet; give their widths"
        )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = copy.deepcopy(torso).eval()(torch.zeros(2, *observation_shape))
    except Exception:
        return
    expected, shape = [2, torso.num_features], None
    if isinstance(output, Tensor):
        shape = list(output.shape)
    if shape != expected:
        got = f"a {type(output).__name__}" if shape is None else f"shape {shape}"
        raise UsageError(
            f"network {name!r} returns {got} for observations {[2, *observation_shape]}; "
            f"expected a tensor {expected}, two rows of num_features={torso.num_features}"
        )
    if not output.is_floating_point():
        raise UsageError(
            f"network {name!r} returns {output.dtype}; expected torch.float32, whose gradient trains it"
        )
