"""torch's optimisers, without their import of ``torch._dynamo``, and with one pass over the memory on CPUs;
and DQN's centred RMSProp.

The step of every ``torch.optim`` optimiser is decorated with graph breaks for torch.compile, which import
``torch._dynamo``: 1 s and 70 MB per process. parcade never compiles an optimiser step, so these classes
remove the decorators.

torch's default Adam and RAdam pass eight times over the parameters. On a CPU, those below use torch's fused
Adam, which passes once and takes a third or a quarter of the time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from parcade.errors import UsageError


def _without_marks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of the optimiser with its undecorated methods."""
    methods = {
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), methods)


RMSprop = _without_marks(torch.optim.RMSprop)


class CenteredRMSprop(RMSprop):  # type: ignore[misc,valid-type]
    """RMSProp of Mnih 2015, Nature 518:529: g / sqrt(E[g^2] - E[g]^2 + eps^2).

    torch's centred RMSProp adds eps outside the root. If a gradient hardly varies, E[g^2] - E[g]^2 is 0 but
    for rounding, and the root of a negative number is NaN. State, with torch's names: ``square_avg`` is
    E[g^2], ``grad_avg`` is E[g]. ``alpha`` is their decay rate.
    """

    def __init__(self, params: Any, lr: float, alpha: float, eps: float) -> None:
        super().__init__(params, lr=lr, alpha=alpha, eps=eps, centered=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            share, eps = 1 - group["alpha"], group["eps"]
            for parameter in group["params"]:
                grad, state = parameter.grad, self.state[parameter]
                if not state:
                    zeros = torch.zeros_like(parameter)
                    state.update(square_avg=zeros, grad_avg=zeros.clone())
                square, mean = state["square_avg"], state["grad_avg"]
                square.mul_(group["alpha"]).addcmul_(grad, grad, value=share)
                mean.lerp_(grad, share)
                variance = square.addcmul(mean, mean, value=-1).clamp_(min=0)
                # The rate may be a tensor on a device, whose value is not read.
                parameter.sub_(grad.div(variance.add_(eps**2).sqrt_()).mul_(group["lr"]))


# Most elements of a vector of the fused kernel. It rounds a remainder that fills no vector differently.
LANES = 16


class _OnePass(torch.optim.Optimizer):
    """An optimiser whose steps on CPUs use the fused kernel where they can, and else are torch's."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None or not all(map(self._is_one_pass, self.param_groups)):
            return super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._step_once(parameter, group)
        return None

    def _is_one_pass(self, group: dict[str, Any]) -> bool:
        """Whether the next step of a group needs only what the fused kernel and this class can do."""
        unusual = ("capturable", "differentiable", "weight_decay", "maximize", "amsgrad")
        return not any(group.get(name) for name in unusual) and all(
            p.ndim == 1 and p.device.type == "cpu" and p.grad is not None for p in group["params"]
        )

    def _step_once(self, parameter: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


def _fused_adam(
    parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any], lr: float, eps: float
) -> None:
    """Take one step of Adam. The bits of an element do not depend on its place in the parameter."""
    columns = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
    whole = len(parameter) // LANES * LANES
    rest = [column.new_zeros(LANES) for column in columns]
    for column, filled in zip(columns, rest, strict=True):
        filled[: len(parameter) - whole] = column[whole:]
    beta_1, beta_2 = group["betas"]
    adam(
        *([column[:whole], filled] for column, filled in zip(columns, rest, strict=True)),
        [],
        [state["step"], state["step"].clone()],
        fused=True,
        amsgrad=False,
        beta1=beta_1,
        beta2=beta_2,
        lr=lr,
        weight_decay=0.0,
        eps=eps,
        maximize=False,
    )
    for column, filled in zip(columns, rest, strict=True):
        column[whole:] = filled[: len(parameter) - whole]


class Adam(_OnePass, _without_marks(torch.optim.Adam)):  # type: ignore[misc]
    """torch's Adam."""

    def _step_once(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            zeros = torch.zeros_like(parameter)
            state.update(step=torch.zeros(()), exp_avg=zeros, exp_avg_sq=zeros.clone())
        _fused_adam(parameter, state, group, float(group["lr"]), group["eps"])


class RAdam(_OnePass, _without_marks(torch.optim.RAdam)):  # type: ignore[misc]
    """torch's RAdam. It has no fused kernel, but its rectified steps are those of Adam at another rate.

    Paper: Liu 2020, "On the Variance of the Adaptive Learning Rate and Beyond", arXiv 1908.03265, algorithm
    2. The steps before, five with the usual decay rates, are torch's.
    """

    def _is_one_pass(self, group: dict[str, Any]) -> bool:
        return super()._is_one_pass(group) and all(
            self.state[p] and self._length(p, group) > 5.0 for p in group["params"]
        )

    def _length(self, parameter: Tensor, group: dict[str, Any]) -> float:
        """Return rho_t of the next step: the length of the approximated moving average."""
        beta, t = group["betas"][1], float(self.state[parameter]["step"]) + 1
        return 2 / (1 - beta) - 1 - 2 * t * beta**t / (1 - beta**t)

    def _step_once(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, beta = self.state[parameter], group["betas"][1]
        rho, longest = self._length(parameter, group), 2 / (1 - beta) - 1
        ratio = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
        lr = float(group["lr"]) * ratio**0.5  # alpha_t r_t
        # RAdam adds epsilon before it corrects the second moment's bias, Adam after it.
        eps = group["eps"] / (1 - beta ** (float(state["step"]) + 1)) ** 0.5
        _fused_adam(parameter, state, group, lr, eps)


def made_optimizer(make: Callable[[list[Any]], object], parameters: Tensor) -> torch.optim.Optimizer:
    """Return the optimiser that ``make`` makes of the flat vector ``parameters`` ``[P]``.

    Errors: UsageError unless it is an optimiser that takes a step with one gradient.
    """
    made = make([parameters])
    kind = type(made).__name__
    if not all(hasattr(made, each) for each in ("step", "param_groups", "state")):  # e.g. a wrapper's
        raise UsageError(
            f"the function that makes the optimiser returned a {kind}; "
            "expected an optimiser, such as torch.optim.Adam(parameters, lr=1e-3)"
        )
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(
            f"{kind}.step(closure) computes the loss several times, an update has one gradient; "
            "use an optimiser whose step() takes no argument, such as torch.optim.Adam"
        )
    return made  # type: ignore[return-value]
