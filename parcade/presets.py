"""Presets: names for flags that were found to belong together. A flag given beside a preset wins."""

from __future__ import annotations

from parcade.errors import unknown_name

PRESETS: dict[str, str] = {
    # What `make pong` runs: PPO on small pictures, found by the search that docs/LOG.md tells of.
    "pong_fast": (
        "--algorithm ppo --image-height 42 --image-width 42 --network fine_cnn --hidden 256 --precision auto "
        "--num-envs 32 --unroll-length 32 --epochs 3 --num-minibatches 4 --learning-rate 1e-3 "
        "--final-learning-rate 2e-4 --final-entropy-weight 0.005 --schedule-share 0.45 --value-weight 2 "
        "--max-grad-norm 1 --total-frames 6000000 --target-score 18"
    ),
    "pong_pqn": (
        "--algorithm pqn --image-height 42 --image-width 42 --network nature_cnn --hidden 512 --layer-norm "
        "--precision auto --num-envs 32 --unroll-length 32 --epochs 2 --num-minibatches 4 --q-lambda 0.9 "
        "--learning-rate 1e-3 --final-learning-rate 2e-4 --epsilon-until 0.05 --epsilon-end 0.01 "
        "--total-frames 16000000 --target-score 18"
    ),
    "pong_a2c": (
        "--algorithm a2c --image-height 42 --image-width 42 --network nature_cnn --hidden 512 --precision auto "
        "--num-envs 32 --unroll-length 16 --optimizer adam --learning-rate 7e-4 --final-learning-rate 7e-4 "
        "--normalize-advantages --gae-lambda 0.95 --value-weight 2 --max-grad-norm 1 --total-frames 16000000 "
        "--target-score 0.01"
    ),
    # Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    "karpathy_2016": "--algorithm reinforce --env-preset karpathy_2016 --total-frames 400000000",
}


def preset_flags(name: str) -> list[str]:
    """The flags a preset stands for. Errors: UsageError with the nearest name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name].split()
