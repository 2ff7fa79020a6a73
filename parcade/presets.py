"""Presets: names for flags that were found to belong together. A flag given beside a preset wins."""

from __future__ import annotations

from parcade.errors import unknown_name

PRESETS: dict[str, str] = {
    # What `make pong` runs: PPO on small pictures, found by the search that docs/LOG.md tells of.
    "pong_fast": (
        "--algorithm ppo --image-height 42 --image-width 42 --network nature_cnn --hidden 512 --precision auto "
        "--num-envs 32 --unroll-length 64 --epochs 3 --num-minibatches 4 --learning-rate 1e-3 "
        "--final-learning-rate 3e-4 --value-weight 2 --max-grad-norm 1 --total-frames 6000000 --target-score 18"
    ),
    "pong_pqn": (
        "--algorithm pqn --image-height 42 --image-width 42 --network nature_cnn --hidden 512 --precision auto "
        "--num-envs 32 --unroll-length 32 --epochs 2 --num-minibatches 8 --learning-rate 2.5e-4 "
        "--final-learning-rate 1e-4 --epsilon-until 0.05 --epsilon-end 0.001 --total-frames 8000000 --target-score 18"
    ),
    "pong_a2c": (
        "--algorithm a2c --image-height 42 --image-width 42 --num-envs 32 --unroll-length 8 --optimizer adam "
        "--learning-rate 1e-3 --final-learning-rate 3e-4 --normalize-advantages --gae-lambda 0.95 "
        "--total-frames 16000000 --target-score 0.01"
    ),
    "pong_dqn": (
        "--algorithm dqn --image-height 42 --image-width 42 --num-envs 8 --unroll-length 1 --batch-size 32 "
        "--replay-capacity 200000 --learning-starts 10000 --n-step 3 --learning-rate 2.5e-4 --final-learning-rate 1e-4 "
        "--target-period 500 --epsilon-until 0.02 --epsilon-end 0.01 --total-frames 16000000 --target-score 18"
    ),
    "pong_impala": (
        "--algorithm impala --engine serial --image-height 42 --image-width 42 --num-envs 32 --num-actors 2 "
        "--unroll-length 20 --unrolls-per-update 1 --learning-rate 1e-3 --final-learning-rate 3e-4 --trace-lambda 0.95 "
        "--entropy-weight 0.01 --total-frames 16000000 --target-score 18"
    ),
    "pong_apex": (
        "--algorithm apex --engine serial --image-height 42 --image-width 42 --num-envs 16 --num-actors 2 "
        "--unroll-length 8 --batch-size 64 --steps-per-update 8 --replay-capacity 200000 --learning-starts 10000 "
        "--learning-rate 2.5e-4 --final-learning-rate 1e-4 --target-period 500 --total-frames 16000000 --target-score 18"
    ),
    "pong_gorila": (
        "--algorithm gorila --engine serial --image-height 42 --image-width 42 --num-envs 8 --num-learners 2 --num-shards 2 "
        "--batch-size 32 --replay-capacity 200000 --learning-starts 10000 --target-period 1000 --epsilon-until 0.02 "
        "--total-frames 16000000 --target-score -10"
    ),
    "pong_a3c": (
        "--algorithm a3c --engine serial --image-height 42 --image-width 42 --num-envs 32 --num-learners 2 --unroll-length 8 "
        "--optimizer adam --learning-rate 5e-4 --final-learning-rate 3e-4 --normalize-advantages --gae-lambda 0.95 "
        "--normalize-input --total-frames 16000000 --target-score -10"
    ),
    "pong_async_q": (
        "--algorithm async-q --engine serial --image-height 42 --image-width 42 --num-envs 16 --num-learners 4 "
        "--method n_step --unroll-length 8 --optimizer adam --learning-rate 5e-4 --final-learning-rate 2e-4 "
        "--target-period 250 --epsilon-until 0.05 --no-different-epsilons --normalize-input --total-frames 16000000 --target-score -10"
    ),
    "pong_ga3c": (
        "--algorithm ga3c --engine serial --image-height 42 --image-width 42 --num-envs 32 --num-actors 4 --unroll-length 8 "
        "--optimizer adam --learning-rate 5e-4 --final-learning-rate 3e-4 --normalize-advantages --gae-lambda 0.95 "
        "--total-frames 16000000 --target-score -10"
    ),
    "pong_es": (
        "--algorithm es --image-height 42 --image-width 42 --num-envs 1 --population 40 --sigma 0.05 --learning-rate 1e-2 "
        "--final-learning-rate 1e-2 --hidden 64 --total-frames 100000000 --target-score 18"
    ),
    # Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    "karpathy_2016": "--algorithm reinforce --env-preset karpathy_2016 --total-frames 400000000",
}


def preset_flags(name: str) -> list[str]:
    """The flags a preset stands for. Errors: UsageError with the nearest name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name].split()
