"""What all vector environments share: ``call``, ``get_attr`` and ``set_attr`` of Gymnasium, and ``repr``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from parcade.errors import UsageError, in_short

ITEMISED = ("render", "games")  # these have an item per environment
OF_ALL = ("reset", "step", "close", "async_reset", "send", "recv")


class SharedAttributes:
    """Mixin for vector environments that are one object: their environments share its attributes."""

    num_envs: int
    close: Callable[..., Any]
    description: tuple[str, ...] = ()
    """The game, and then the settings, as ``repr`` shows them."""

    def __repr__(self) -> str:
        game, settings = self.description[:1], self.description[1:]
        return f"{type(self).__name__}({', '.join((*game, f'num_envs={self.num_envs}', *settings))})"

    def __enter__(self) -> Self:
        """Close the environments at the end of a ``with`` block, as a ``gymnasium.Env`` does."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method, or read an attribute; return the result of each environment, a tuple of n.

        ``render`` returns the frame and ``games`` the game of each. ``observation_space`` and
        ``action_space`` are those of a single environment.
        Errors: UsageError for an unknown name, and for methods that play.
        """
        if name in OF_ALL:
            raise UsageError(f"call({name!r}): environments {name} together; use the method {name} itself")
        if name in ("observation_space", "action_space"):
            name = f"single_{name}"
        if not hasattr(self, name):
            raise UsageError(f"{type(self).__name__} has no attribute {name!r}")
        value = getattr(self, name)
        if callable(value):
            value = value(*args, **kwargs)
        return tuple(value) if name in ITEMISED else (value,) * self.num_envs

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment, a tuple of n. Errors: UsageError for an unknown name."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of all environments to a value, or to a list or tuple of n equal values.

        Errors: UsageError if the values differ or are not n.
        """
        if isinstance(values, list | tuple):
            if len(values) != self.num_envs or not all(np.array_equal(value, values[0]) for value in values):
                raise UsageError(
                    f"set_attr({name!r}): environments share their attributes; "
                    f"expected one value or {self.num_envs} equal ones, got {in_short(values)}"
                )
            values = values[0]
        setattr(self, name, values)
