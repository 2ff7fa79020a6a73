"""Images of bytes as a network reads them, normalised in one pass on a CPU.

Shapes: N images of F frames of P pixels, in memory uint8 ``[N, F, P]``. Networks read channels last,
``[N, P, F]``. torch passes over the images once for each operation, and takes four to six times as long.
"""

import numba
import numpy as np

from .compiling.jit import inlined, separate, stand_alone

IS_COMPILED = not numba.config.DISABLE_JIT


@inlined
def _normalized(pixel, offset, scale, clip):
    return max(-clip, min(clip, (np.float32(pixel) - offset) * scale))


@separate("void(uint8[:, ::1], float32[::1], float32[::1], float32, float32[::1])")
def normalize_image(image, offset, scale, clip, values_out):
    """Write ``(pixel - offset) * scale`` of one image ``[F, P]``, clipped, to float32 ``[P * F]``.

    ``offset`` and ``scale`` ``[P]`` are those of a pixel in every frame.
    """
    stand_alone()
    num_frames = len(image)
    if num_frames == 4:  # LLVM makes vectors of four stores that are written out, not of a loop over frames
        first, second, third, fourth = image[0], image[1], image[2], image[3]
        for p in range(len(offset)):
            values_out[4 * p] = _normalized(first[p], offset[p], scale[p], clip)
            values_out[4 * p + 1] = _normalized(second[p], offset[p], scale[p], clip)
            values_out[4 * p + 2] = _normalized(third[p], offset[p], scale[p], clip)
            values_out[4 * p + 3] = _normalized(fourth[p], offset[p], scale[p], clip)
    else:
        for f in range(num_frames):
            for p in range(len(offset)):
                values_out[p * num_frames + f] = _normalized(image[f, p], offset[p], scale[p], clip)


@separate("void(uint8[:, :, ::1], float32[::1], float32[::1], float32, float32[:, ::1])")
def normalize_float32(images, offset, scale, clip, values_out):
    """Write normalised images to float32 ``[N, P * F]``."""
    stand_alone()
    for n in range(len(images)):
        normalize_image(images[n], offset, scale, clip, values_out[n])


@separate(
    "void(uint8[:, :, ::1], float32[::1], float32[::1], float32, float32[::1], uint32[::1], uint16[:, ::1])"
)
def normalize_bfloat16(images, offset, scale, clip, values, bits, values_out):
    """Write normalised images to bfloat16 ``[N, P * F]``, rounded to nearest, ties to even.

    Work space: ``values`` float32 ``[P * F]``, and ``bits``, the same memory as uint32.
    """
    stand_alone()
    for n in range(len(images)):
        normalize_image(images[n], offset, scale, clip, values)
        for i in range(len(bits)):
            is_odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
            values_out[n, i] = np.uint16((bits[i] + np.uint32(0x7FFF) + is_odd) >> np.uint32(16))
