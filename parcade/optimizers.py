"""torch's optimisers without their import of ``torch._dynamo``.

The step of every ``torch.optim`` optimiser is decorated with graph breaks for torch.compile, which import
``torch._dynamo``: 1 s and 70 MB per process. parcade never compiles an optimiser step, so these classes
remove the decorators. The arithmetic is torch's own.
"""

from __future__ import annotations

import inspect

import torch


def _without_marks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of the optimiser with its undecorated methods."""
    methods = {
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), methods)


Adam = _without_marks(torch.optim.Adam)
RAdam = _without_marks(torch.optim.RAdam)
RMSprop = _without_marks(torch.optim.RMSprop)
