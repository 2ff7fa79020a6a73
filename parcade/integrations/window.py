"""A window for ``render_mode="human"``."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcade.errors import UsageError, missing_extra

RENDER_MODES = ("rgb_array", "human")
SCALE = (4, 2)  # Atari pixels are twice as wide as high


def check_render_mode(render_mode: str | None) -> None:
    """Refuse a render mode that a single environment does not have. Errors: UsageError."""
    if render_mode not in (None, *RENDER_MODES):
        raise UsageError(f"render_mode={render_mode!r}: expected {', '.join(RENDER_MODES)} or None")


class Window:
    """Shows frames of a console. Errors: UsageError without pygame."""

    def __init__(self, title: str) -> None:
        try:
            import pygame
        except ImportError as error:
            raise missing_extra("pygame", "human", "render_mode 'human'") from error
        self._pygame = pygame
        pygame.display.init()
        pygame.display.set_caption(title)
        self._screen: Any = None
        self._clock = pygame.time.Clock()

    def show(self, frame: np.ndarray, frames_per_second: float) -> None:
        """Show a frame, uint8 ``[height, width, 3]``, and wait until it is time for the next."""
        pygame = self._pygame
        height, width, _ = frame.shape
        size = (width * SCALE[0], height * SCALE[1])
        if self._screen is None:
            self._screen = pygame.display.set_mode(size)
        surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(surface, size), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(frames_per_second)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()
