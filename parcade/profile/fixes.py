"""Fixes that fit a run: flags that its algorithm has, and more ranks where cores are idle.

A program that records itself has no flags of ``parcade train``, and its profile no config.
"""

from __future__ import annotations

from parcade.algorithms.table import ALGORITHMS
from parcade.envs.games import is_atari
from parcade.profile.data import Profile

SMALL_IMAGE = 42
"""Rows and columns with which most games are still learned."""


def of_algorithm(profile: Profile, **fixes: str) -> list[str]:
    """Return the fixes, given by hyper-parameter, whose hyper-parameter the run's algorithm has."""
    return [fix for name, fix in fixes.items() if name in profile.config.get("hyper", {})]


def in_brackets(fixes: list[str]) -> str:
    """Return fixes in brackets after a space; empty without any."""
    return f" ({', '.join(fixes)})" if fixes else ""


def plays_atari(profile: Profile) -> bool:
    """Return whether the run plays an Atari game; the game of a program that records itself is unknown."""
    return is_atari(profile.config.get("game", ""))


def smaller_images(profile: Profile) -> list[str]:
    """Return the flags of the smallest usual images, if the run observes larger ones."""
    env = profile.config.get("env", {})
    pixels = env.get("image_height", 0) * env.get("image_width", 0)
    is_large = env.get("observations") in ("grey", "rgb") and pixels > SMALL_IMAGE**2
    size = f"--image-height {SMALL_IMAGE} --image-width {SMALL_IMAGE}"
    return [f"smaller images ({size})"] if plays_atari(profile) and is_large else []


def batch_bytes(profile: Profile) -> int:
    """Return the bytes of a rollout's images on one rank; 0 if it observes no images of consoles."""
    env = profile.config.get("env", {})
    colours = {"grey": 1, "rgb": 3}.get(env.get("observations", ""), 0) if plays_atari(profile) else 0
    stack = env.get("image_height", 0) * env.get("image_width", 0) * env.get("frame_stack", 1) * colours
    return profile.envs_per_rank * (profile.hyper("unroll_length") or 0) * stack


def native_consoles(profile: Profile) -> list[str]:
    """Return the flag of parcade's own consoles, if the run plays those of ale-py."""
    is_ale = plays_atari(profile) and profile.run_setting("backend") == "ale"
    return ["--backend native"] if is_ale else []


def overlap(profile: Profile) -> list[str]:
    """Return the flag that lets the run learn while it plays, if it supports that and does not do so yet."""
    on_gpu = profile.run_setting("env_device") == "cuda"
    if profile.run_setting("overlap") or profile.hyper("burn_in") or on_gpu:
        return []
    return ["--overlap (learn while playing)"] if _source_kind(profile) == "rollout" else []


def more_ranks(profile: Profile) -> list[str]:
    """Return the fix to use up to twice the ranks, if every host has an idle core for each new one.

    A run whose environments, or batch, cannot be divided among more ranks gets none.
    """
    if any(
        round(profile.cores_of(rank) - rank.local_size * rank.cores_used) < rank.local_size
        for rank in profile.ranks
    ):
        return []
    count = ranks_up_to(profile, 2 * len(profile.ranks))
    if count <= len(profile.ranks):
        return []
    flags = [f"--engine mpi --ranks {count}"] if profile.config else []
    return [f"more ranks{in_brackets(flags)}"]


def ranks_up_to(profile: Profile, most: int) -> int:
    """Return the largest number of ranks, ``most`` or fewer, that ``parcade train`` accepts for this run.

    They divide its environments, and what an update learns from, evenly.
    """
    groups = profile.hyper("num_groups") or (2 if profile.run_setting("overlap") else 1)
    divided = [(profile.hyper("num_envs") or 0) / groups, (profile.hyper("population") or 0) / 2]
    if profile.hyper("replay_capacity"):
        divided.append(profile.hyper("batch_size") or 0)
    return next((n for n in range(most, 1, -1) if all(amount % n == 0 for amount in divided)), 1)


def consoles_on_gpu(profile: Profile) -> list[str]:
    """Return the flag that moves the consoles to the GPU, if this run supports it."""
    if profile.run_setting("backend") != "native" or not plays_atari(profile):
        return []
    if _source_kind(profile) not in ("rollout", "staggered", "replay"):
        return []
    without = ", without --overlap" if profile.run_setting("overlap") else ""
    return [f"consoles on the GPU (--env-device cuda{without})"]


def _source_kind(profile: Profile) -> str:
    """Return the kind of the algorithm's experience source; empty for a program, or an unknown algorithm."""
    row = ALGORITHMS.get(profile.run_setting("algorithm", ""))
    return row.make.source_kind if row else ""
