"""Block bodies that make observations on a GPU: levels of an image, resize and frame stack, or the RAM.

| body            | does                                                                                  |
|-----------------|---------------------------------------------------------------------------------------|
| `observe_block` | pushes the image of a step onto the stack; the final stack of an episode that ended   |
| `begin_block`   | if an episode has started: a stack that holds only its first frame                    |

A block is one console's. Its threads write the levels of one channel to shared memory and resize from there,
each thread one column of the image in several rows, so that it loads the column's weights once. The frames of
a stack move by words of 4 bytes.
"""

import numpy as np

from ..compiling.jit import inlined
from ..primitives.warp import block_sync
from ..settings import MAX_POOL
from ..state import PICTURE
from .layout import BLACK, KEPT, THIRD
from .pictures import brighter, levels_of_word, write_column

# --- frame stacks -------------------------------------------------------------------------------------------


@inlined
def _age(t, threads, stack):
    """Move every frame of a stack [frames, bytes] to the place before it; the newest stays there, too."""
    if (stack.shape[1] & 3) == 0:
        _age_words(t, threads, stack.view(np.uint32))
    else:
        for place in range(np.uint32(t), np.uint32(stack.shape[1]), np.uint32(threads)):
            for k in range(np.uint32(stack.shape[0] - 1)):
                stack[np.uint32(k), place] = stack[np.uint32(k) + np.uint32(1), place]


@inlined
def _age_words(t, threads, words):
    older = np.uint32(words.shape[0] - 1)
    for place in range(np.uint32(t), np.uint32(words.shape[1]), np.uint32(threads)):
        if older == 3:  # all loads first, so that they do not wait for the stores
            second, third = words[np.uint32(1), place], words[np.uint32(2), place]
            fourth = words[np.uint32(3), place]
            words[np.uint32(0), place] = second
            words[np.uint32(1), place] = third
            words[np.uint32(2), place] = fourth
        else:
            for k in range(older):
                words[np.uint32(k), place] = words[np.uint32(k) + np.uint32(1), place]


@inlined
def _blacken(t, threads, stack):
    """Set all frames of a stack but the newest to 0."""
    for k in range(np.uint32(stack.shape[0] - 1)):
        for place in range(np.uint32(t), np.uint32(stack.shape[1]), np.uint32(threads)):
            stack[np.uint32(k), place] = 0


@inlined
def _copy_stack(t, threads, stack, target):
    for k in range(np.uint32(stack.shape[0])):
        for place in range(np.uint32(t), np.uint32(stack.shape[1]), np.uint32(threads)):
            target[np.uint32(k), place] = stack[np.uint32(k), place]


# --- observations -------------------------------------------------------------------------------------------


@inlined
def _load_table(t, threads, levels_of_colours, table):
    for colour in range(np.uint32(t), np.uint32(256), np.uint32(threads)):
        table[colour] = levels_of_colours[colour]


@inlined
def _pool(e, t, threads, c, levels, table, how, consoles, seen, outcome):
    """Write the pooled levels of channel `c` to `levels`; return whether the step shows a new image."""
    words = np.uint32(seen.kept.shape[1])
    picture_now = np.uint32(consoles.registers[PICTURE, e])
    newest, other = words * picture_now, words * np.uint32(1 - picture_now)
    pools = how.settings[MAX_POOL] != 0
    over = outcome.over[e]
    where = np.int64(outcome.counts[e, THIRD] if over else seen.second[e])
    if over and (not pools or where == BLACK):
        return False
    screen, before = consoles.screens[e], seen.levels[e, c]
    frame = screen[newest : newest + words]
    # Without a second frame, the newest one is its own, which changes nothing.
    second_frame = frame
    if pools and where != BLACK:
        second_frame = seen.kept[e] if where == KEPT else screen[other : other + words]
    for word in range(np.uint32(t), words, np.uint32(threads)):
        # As in ale-py, an episode that ends shows the previous image, pooled with the next frame, if any.
        shown, second = frame[word], second_frame[word]
        first = before[word] if over else levels_of_word(shown, table)
        if over or second != shown:
            first = brighter(first, levels_of_word(second, table))
        levels[word] = first
        before[word] = first
    return True


@inlined
def _write_channel(t, threads, c, levels, picture, newest):
    """Resize the levels of channel `c` to the newest frame of a stack, uint8 [rows * columns * channels]."""
    columns, stride = np.uint32(len(picture.column_start)), np.uint32(threads)
    # As many threads as there are columns share a row of the image.
    rows_at_once = stride // columns if stride > columns else np.uint32(1)
    first_row = np.uint32(t) // columns if stride > columns else np.uint32(0)
    if first_row < rows_at_once:
        for x in range(np.uint32(t) - first_row * columns, columns, stride):
            write_column(levels, np.uint32(x), first_row, rows_at_once, picture, newest, np.uint32(c))


@inlined
def observe_block(e, t, threads, levels, table, picture, how, consoles, seen, outcome):
    """Push an observation onto the stack of console `e`: an image, or the RAM if there are no channels."""
    channels = np.uint32(len(picture.levels))
    stack, final = seen.observations[e], seen.final_observations[e]
    newest = stack[np.uint32(stack.shape[0] - 1)]
    _age(t, threads, stack)
    if channels == 0:
        block_sync()
        for place in range(np.uint32(t), np.uint32(len(newest)), np.uint32(threads)):
            newest[place] = consoles.memory[e, place]
    for c in range(channels):
        _load_table(t, threads, picture.levels[c], table)
        block_sync()
        is_new = _pool(e, t, threads, c, levels, table, how, consoles, seen, outcome)
        block_sync()
        if is_new:
            _write_channel(t, threads, c, levels.view(np.uint8), picture, newest)
    if outcome.over[e]:
        block_sync()
        _copy_stack(t, threads, stack, final)


@inlined
def begin_block(e, t, threads, levels, table, picture, consoles, seen, outcome):
    """Write the first stack of an episode that has just started on console `e`."""
    if not outcome.over[e]:
        return
    channels, words = np.uint32(len(picture.levels)), np.uint32(seen.kept.shape[1])
    stack = seen.observations[e]
    newest = stack[np.uint32(stack.shape[0] - 1)]
    _blacken(t, threads, stack)
    if channels == 0:
        for place in range(np.uint32(t), np.uint32(len(newest)), np.uint32(threads)):
            newest[place] = consoles.memory[e, place]
    shown = words * np.uint32(consoles.registers[PICTURE, e])
    for c in range(channels):
        _load_table(t, threads, picture.levels[c], table)
        block_sync()
        for word in range(np.uint32(t), words, np.uint32(threads)):
            levels[word] = levels_of_word(consoles.screens[e, shown + word], table)
            seen.levels[e, c, word] = levels[word]
        block_sync()
        _write_channel(t, threads, c, levels.view(np.uint8), picture, newest)
