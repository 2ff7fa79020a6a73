"""torch's optimisers without what they import for torch.compile.

Every step of ``torch.optim`` marks where torch.compile shall break a graph, and for that imports all of ``torch._dynamo``: a
second, and 70 MB in every process. No step is compiled here, so these leave the marks out. The arithmetic is torch's own.
"""

from __future__ import annotations

import inspect

import torch


def _without_marks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimiser with its methods as they are below torch's decorators."""
    methods = {
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), methods)


Adam = _without_marks(torch.optim.Adam)
RAdam = _without_marks(torch.optim.RAdam)
RMSprop = _without_marks(torch.optim.RMSprop)
