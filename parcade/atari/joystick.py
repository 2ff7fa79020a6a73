"""A player's action in one frame: ale-py's ids, and what a paddle turns, in one integer.

The low 5 bits are the id, 0 to 17. The bits above them are what a paddle turns less than a full step, so that
an id alone is a full step. Only continuous actions have others.
"""

import numpy as np

ACTION_BITS = 5
ACTION_ID = (1 << ACTION_BITS) - 1
PADDLE_STEP = 23000  # change of a paddle's resistance per frame

# Typed, so that Numba compiles one specialisation for all of them.
NOOP, FIRE, UP, RIGHT, LEFT, DOWN = (np.int64(action) for action in range(6))
UPFIRE = np.int64(10)
# Directions and fire button of the 18 joystick actions: up 1, down 2, left 4, right 8, fire 16.
JOYSTICK = np.array([0, 16, 1, 8, 4, 2, 9, 5, 10, 6, 17, 24, 20, 18, 25, 21, 26, 22], np.int64)
_BUTTON = 16
_ID_OF_KEYS = np.zeros(32, np.int64)
_ID_OF_KEYS[JOYSTICK] = np.arange(len(JOYSTICK))

# Continuous actions: the stick's distance from its middle, its angle, and how far the button is pressed.
LOWEST = np.array([0, -np.pi, 0], np.float32)
HIGHEST = np.array([1, np.pi, 1], np.float32)


def paddle_bits(strengths: np.ndarray) -> np.ndarray:
    """Return what is added to an id, so that paddles turn by a part of a full step; int64 `[n]`.

    strengths: float `[n]`, without their signs, limited to 1. As in ale-py, they are rounded to float32, but
    the product with the step is not: 1 / 23,000 is 0.99999997 of a unit, and turns none.
    """
    limited = np.clip(np.abs(strengths), 0, 1).astype(np.float32)
    turned = PADDLE_STEP * limited.astype(np.float64)
    bits: np.ndarray = (PADDLE_STEP - turned.astype(np.int64)) << ACTION_BITS
    return bits


def from_polar(actions: np.ndarray, threshold: float) -> np.ndarray:
    """Return the actions, int64 `[n]`, of continuous ones, float `[n, 3]`, as ale-py does.

    A row is the stick's distance from its middle, 0 to 1, its angle in radians, where 0 is right and pi / 2
    is up, and the button, 0 to 1. A direction or the button counts where it is above the threshold; a paddle
    turns by the distance. Distances outside of 0 to 1 are limited to it.
    Source: Farebrother and Castro 2024, arXiv 2410.23810.
    """
    distance, angle, button = np.asarray(actions, np.float32).T
    distance = np.clip(distance, 0, 1)
    x, y = distance * np.cos(angle), distance * np.sin(angle)
    keys = (y > threshold) | (y < -threshold) * 2 | (x < -threshold) * 4 | (x > threshold) * 8
    ids: np.ndarray = _ID_OF_KEYS[keys | (button > threshold) * _BUTTON]
    return ids + paddle_bits(distance)
