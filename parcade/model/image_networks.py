"""Networks for images: convolutions and a dense layer, from ``[N, *observation_shape]`` to ``[N, F]``.

Shapes: N observations, F features, C channels. ``begins_with_autocast``: in mixed precision, the first
operation converts its input, so an input that is converted already makes no difference.

Sources: Mnih 2013, arXiv 1312.5602 (layers of the small CNN, here on smaller images for CPUs); Mnih 2015,
Nature 518:529 (Nature CNN); Espeholt 2018, arXiv 1802.01561, figure 3 right (ImpalaResNet); Miyato 2018,
arXiv 1802.05957 (spectral normalisation); Clark 2024, arXiv 2411.03820, "Beyond The Rainbow" (its variant of
the IMPALA network); Kooi 2025, arXiv 2505.15345, "Hadamax Encoding".
Deviation: weights are orthogonal at the start, as in all networks; Kooi 2025 draws them from normal
distributions, Clark 2024 from uniform ones.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parcade.errors import UsageError
from parcade.model.precision import full_precision

SMALL_CNN = ((16, 8, 4), (32, 4, 2))
# All strides are 2, which preserves the position of objects of one or two pixels.
FINE_CNN = ((16, 4, 2), (32, 4, 2), (32, 3, 2))
NATURE_CNN = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def orthogonal(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    """Initialise a layer with orthogonal weights of this gain and zero biases; return it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class LayerNormReLU(nn.Module):
    """Layer normalisation, then ReLU. Images are normalised over channels, rows and columns together."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            return F.relu(self.norm(x))
        # Images lie channels last in memory. Normalised in that order, they are not copied before and after.
        weight, bias = self.norm.weight.permute(1, 2, 0), self.norm.bias.permute(1, 2, 0)
        normal = F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias, self.norm.eps)
        return F.relu(normal.permute(0, 3, 1, 2))


def picture_shape(observation_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width of a CNN's input; k colour frames give 3k channels.

    Shapes of observations: ``(k, height, width)``, or ``(k, height, width, 3)`` in colour.
    """
    frames, height, width, *colours = observation_shape
    return frames * math.prod(colours), height, width


def as_picture(x: Tensor) -> Tensor:
    """Return observations as ``[N, channels, height, width]``, channels last in memory.

    At these sizes, channels last is 1.2 to 1.5 times faster on CPUs.
    """
    if x.ndim == 5:
        x = x.permute(0, 1, 4, 2, 3).flatten(1, 2)
    return x.contiguous(memory_format=torch.channels_last)


class ConvNet(nn.Module):
    """Convolutions ``(channels, size, stride)``, a dense layer: ``[N, *observation_shape]`` to ``[N, F]``."""

    begins_with_autocast: ClassVar[bool] = True

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        layers: tuple[tuple[int, int, int], ...],
        hidden: int,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        channels, height, width = picture_shape(observation_shape)
        body: list[nn.Module] = []
        for out_channels, size, stride in layers:
            body.append(orthogonal(nn.Conv2d(channels, out_channels, size, stride)))
            channels, height, width = (
                out_channels,
                (height - size) // stride + 1,
                (width - size) // stride + 1,
            )
            if height < 1 or width < 1:
                raise UsageError(
                    f"images of {observation_shape[1]}x{observation_shape[2]} (observations are "
                    f"{observation_shape}, colours or frames first) are too small for this network; "
                    "use a larger image, --network small_cnn or --network mlp"
                )
            body.append(LayerNormReLU((channels, height, width)) if layer_norm else nn.ReLU())
        self.body = nn.Sequential(*body)
        self.dense = orthogonal(nn.Linear(channels * height * width, hidden))
        self.out = LayerNormReLU((hidden,)) if layer_norm else nn.ReLU()
        self.num_features = hidden

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(as_picture(x))
        return self.out(self.dense(x.flatten(1)))


class SpectralConv2d(nn.Conv2d):
    """A convolution whose weight, as a matrix ``[out, in * size * size]``, has the largest singular value 1.

    The weight is divided by an estimate of that value, |W^T u|, where each forward pass that records
    gradients moves u ``[out]`` one step of the power iteration on (Miyato 2018, algorithm 1). u is a buffer,
    so checkpoints contain it. Acting does not move it: how often a policy acts changes nothing. An algorithm
    that learns without gradients calls ``iterate`` itself.
    """

    u: Tensor

    def __init__(self, in_channels: int, out_channels: int, size: int, *, padding: int) -> None:
        super().__init__(in_channels, out_channels, size, padding=padding)
        self.register_buffer("u", F.normalize(torch.ones(out_channels), dim=0))

    @torch.no_grad()
    def iterate(self) -> None:
        """Move u one step of the power iteration on, to the direction of the largest singular value."""
        matrix = self.weight.flatten(1)
        v = F.normalize(matrix.T.mv(self.u), dim=0)
        self.u.copy_(F.normalize(matrix.mv(v), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(x.device.type):
            matrix = self.weight.flatten(1)
            if torch.is_grad_enabled():
                self.iterate()
            # The next forward pass moves u, perhaps before the gradient of this one is computed.
            weight = self.weight / matrix.T.mv(self.u.clone()).norm()
        return self._conv_forward(x, weight, self.bias)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection; input and output ``[N, C, height, width]``."""

    def __init__(self, channels: int, spectral_norm: bool) -> None:
        super().__init__()
        conv = SpectralConv2d if spectral_norm else nn.Conv2d
        self.conv_1 = orthogonal(conv(channels, channels, 3, padding=1))
        self.conv_2 = orthogonal(conv(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_2(F.relu(self.conv_1(F.relu(x))))


class ImpalaResNet(nn.Module):
    """IMPALA's deep network: three stages (convolution, max-pooling, two residual blocks), a dense layer.

    With a ``width`` of 2, ``spectral_norm`` in the residual blocks, and max-pooling to ``pooled_size`` rows
    and columns before the dense layer, it is the network of Clark 2024.
    """

    begins_with_autocast: ClassVar[bool] = True

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        hidden: int,
        *,
        width: int = 1,
        spectral_norm: bool = False,
        pooled_size: int | None = None,
    ) -> None:
        super().__init__()
        channels, height, columns = picture_shape(observation_shape)
        stages: list[nn.Module] = []
        for out_channels in (16 * width, 32 * width, 32 * width):
            stages += [
                orthogonal(nn.Conv2d(channels, out_channels, 3, padding=1)),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(out_channels, spectral_norm),
                ResidualBlock(out_channels, spectral_norm),
            ]
            channels, height, columns = out_channels, (height + 1) // 2, (columns + 1) // 2
        stages.append(nn.ReLU())
        if pooled_size is not None:
            stages.append(nn.AdaptiveMaxPool2d(pooled_size))
            height = columns = pooled_size
        self.body = nn.Sequential(*stages)
        self.dense = orthogonal(nn.Linear(channels * height * columns, hidden))
        self.num_features = hidden

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(as_picture(x))
        return F.relu(self.dense(x.flatten(1)))


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class HadamaxBlock(nn.Module):
    """Two convolutions of the same input, normalised over channels, GELU; their product, max-pooled.

    The convolutions have stride 1 and keep rows and columns; both are computed as one.
    """

    def __init__(self, channels: int, out_channels: int, size: int, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.conv = orthogonal(nn.Conv2d(channels, 2 * out_channels, size))
        self.norm_1, self.norm_2 = nn.LayerNorm(out_channels), nn.LayerNorm(out_channels)
        self.pool = pool
        before = (size - 1) // 2
        self.padding = (before, size - 1 - before) * 2

    def forward(self, x: Tensor) -> Tensor:
        both = self.conv(F.pad(x, self.padding)).permute(0, 2, 3, 1)  # [N, height, width, 2C]
        first, second = both.chunk(2, dim=-1)
        product = _gelu(self.norm_1(first)) * _gelu(self.norm_2(second))
        return self.pool(product.permute(0, 3, 1, 2))


class Hadamax(nn.Module):
    """The encoder of Kooi 2025: three Hadamax blocks, a dense layer with layer normalisation and GELU."""

    begins_with_autocast: ClassVar[bool] = True

    def __init__(self, observation_shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        channels, height, width = picture_shape(observation_shape)
        self.body = nn.Sequential(
            HadamaxBlock(channels, 32, 8, nn.MaxPool2d(4, ceil_mode=True)),
            HadamaxBlock(32, 64, 4, nn.MaxPool2d(2, ceil_mode=True)),
            HadamaxBlock(64, 64, 3, nn.MaxPool2d(3, stride=1, padding=1)),
        )
        # Pooling by 4, then by 2, rounds up each time, which is rounding up once by 8.
        self.dense = orthogonal(nn.Linear(64 * math.ceil(height / 8) * math.ceil(width / 8), hidden))
        self.norm = nn.LayerNorm(hidden)
        self.num_features = hidden

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(as_picture(x))
        return _gelu(self.norm(self.dense(x.flatten(1))))
