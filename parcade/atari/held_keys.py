"""A joystick's held directions and button as one of ale-py's action ids."""

from collections.abc import Iterable, Sequence

UP, DOWN, LEFT, RIGHT, FIRE = "up", "down", "left", "right", "fire"
OPPOSITE = {UP: DOWN, DOWN: UP, LEFT: RIGHT, RIGHT: LEFT}
# ale-py's action ids by the set of held keys.
ACTIONS = {
    frozenset(held): action
    for action, held in enumerate(
        [(), (FIRE,), (UP,), (RIGHT,), (LEFT,), (DOWN,), (UP, RIGHT), (UP, LEFT), (DOWN, RIGHT), (DOWN, LEFT),
         (UP, FIRE), (RIGHT, FIRE), (LEFT, FIRE), (DOWN, FIRE),
         (UP, RIGHT, FIRE), (UP, LEFT, FIRE), (DOWN, RIGHT, FIRE), (DOWN, LEFT, FIRE)]
    )
}  # fmt: skip
# ale-py's names of its actions, such as UPRIGHTFIRE, by id.
ACTION_NAMES = tuple(
    "".join(key.upper() for key in (UP, DOWN, RIGHT, LEFT, FIRE) if key in held) or "NOOP" for held in ACTIONS
)
_LETTERS = {UP: "w", DOWN: "s", RIGHT: "d", LEFT: "a", FIRE: " "}
# Paddles know only left and right. Where one moves up and down, it goes up with RIGHT.
UPRIGHT_PADDLES = {"pong": {UP: RIGHT, DOWN: LEFT}}


def action_of(held: Iterable[str], game: str = "") -> int:
    """Return ale-py's id of the action of some held keys; two opposite ones cancel each other.

    game: in its snake_case name; in games whose paddle moves vertically, up and down move it, too.
    """
    paddle = UPRIGHT_PADDLES.get(game, {})
    keys = {paddle.get(key, key) for key in held}
    return ACTIONS[frozenset(key for key in keys if OPPOSITE.get(key) not in keys)]


def keys_to_action(action_ids: Sequence[int]) -> dict[tuple[str, ...], int]:
    """Return the index of each action by its keys, as in ale-py: w, s, d, a, space, and e for NOOP."""
    held = list(ACTIONS)
    keys = [tuple(letter for key, letter in _LETTERS.items() if key in held[each]) for each in action_ids]
    return {each or ("e",): index for index, each in enumerate(keys)}
