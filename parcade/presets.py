"""Presets: named sets of flags. Explicit flags override a preset."""

from __future__ import annotations

from parcade.errors import unknown_name

# Images small enough for CPUs, and a network that preserves the position of one-pixel objects.
SMALL_PICTURES = "--image-height 42 --image-width 42 --network fine_cnn --hidden 256 "

PRESETS: dict[str, str] = {
    # PPO on small images, run by `make pong`. docs/LOG.md describes the search that found it.
    # Minibatches of 64 are too small for two threads, which then wait for each other.
    "pong_fast": (
        f"--algorithm ppo {SMALL_PICTURES} --precision auto --num-envs 32 --unroll-length 32 --epochs 2 "
        "--num-minibatches 16 --learning-rate 1e-3 --final-learning-rate 2e-4 --entropy-weight 0.02 "
        "--final-entropy-weight 0.01 --schedule-share 0.45 --value-weight 2 --max-grad-norm 1 "
        "--threads-per-rank 1 --total-frames 6000000 --target-score 18"
    ),
    # The network on a GPU: more environments and minibatches of 256, as measured on an H100 (docs/gpu.md).
    "pong_gpu": (
        f"--algorithm ppo {SMALL_PICTURES} --device cuda --precision auto --num-envs 128 --unroll-length 32 "
        "--epochs 3 --num-minibatches 16 --learning-rate 1e-3 --final-learning-rate 2e-4 "
        "--final-entropy-weight 0.005 --schedule-share 0.45 --value-weight 2 --max-grad-norm 1 "
        "--total-frames 6000000 --target-score 18"
    ),
    # The consoles on the GPU too: a step of 256 takes as long there as one of 128.
    "pong_gpu_consoles": (
        f"--algorithm ppo {SMALL_PICTURES} --device cuda --env-device cuda --start-states cached "
        "--precision auto --num-envs 256 --unroll-length 32 --epochs 3 --num-minibatches 32 "
        "--learning-rate 1e-3 --final-learning-rate 2e-4 --final-entropy-weight 0.005 --schedule-share 0.27 "
        "--value-weight 2 --max-grad-norm 1 --total-frames 10000000 --target-score 18"
    ),
    "pong_pqn": (
        f"--algorithm pqn {SMALL_PICTURES} --layer-norm --precision auto --num-envs 32 --unroll-length 32 "
        "--epochs 2 --num-minibatches 8 --q-lambda 0.9 --learning-rate 1e-3 --final-learning-rate 2e-4 "
        "--epsilon-until 0.1 --epsilon-end 0.001 --total-frames 8000000 --target-score 18"
    ),
    "pong_a2c": (
        f"--algorithm a2c {SMALL_PICTURES} --precision auto --num-envs 16 --unroll-length 8 --optimizer adam "
        "--learning-rate 4e-4 --final-learning-rate 4e-4 --normalize-advantages --gae-lambda 0.95 "
        "--value-weight 1 --total-frames 16000000 --target-score 0.01"
    ),
    "pong_vtrace": (
        f"--algorithm vtrace {SMALL_PICTURES} --num-envs 40 --num-groups 5 --unroll-length 20 "
        "--learning-rate 5e-4 --final-learning-rate 3e-4 --trace-lambda 0.95 --total-frames 16000000 "
        "--target-score 0.01"
    ),
    "pong_dqn": (
        f"--algorithm dqn {SMALL_PICTURES} --normalize-input --layer-norm --precision auto --num-envs 32 "
        "--unroll-length 1 --batch-size 128 --replay-capacity 200000 --learning-starts 10000 --n-step 10 "
        "--learning-rate 5e-4 --final-learning-rate 1e-4 --target-period 200 --epsilon-until 0.02 "
        "--epsilon-end 0.001 --total-frames 16000000 --target-score 18"
    ),
    "pong_impala": (
        f"--algorithm impala --engine serial {SMALL_PICTURES} --precision auto --num-envs 32 --num-actors 2 "
        "--unroll-length 20 --unrolls-per-update 1 --learning-rate 1e-3 --final-learning-rate 3e-4 "
        "--trace-lambda 0.95 --entropy-weight 0.01 --total-frames 16000000 --target-score 18"
    ),
    "pong_apex": (
        f"--algorithm apex --engine serial {SMALL_PICTURES} --normalize-input --layer-norm --precision auto "
        "--num-envs 32 --num-actors 2 --unroll-length 8 --batch-size 128 --steps-per-update 32 "
        "--replay-capacity 200000 --learning-starts 10000 --n-step 10 --learning-rate 5e-4 "
        "--final-learning-rate 1e-4 --target-period 200 --epsilon-base 0.1 --total-frames 16000000 "
        "--target-score 18"
    ),
    "pong_gorila": (
        f"--algorithm gorila --engine serial {SMALL_PICTURES} --num-envs 8 --num-learners 2 --num-shards 2 "
        "--batch-size 32 --replay-capacity 200000 --learning-starts 10000 --target-period 1000 "
        "--epsilon-until 0.02 --total-frames 16000000 --target-score -10"
    ),
    "pong_a3c": (
        f"--algorithm a3c --engine serial {SMALL_PICTURES} --num-envs 32 --num-learners 2 --unroll-length 8 "
        "--optimizer adam --learning-rate 5e-4 --final-learning-rate 3e-4 --normalize-advantages "
        "--gae-lambda 0.95 --normalize-input --total-frames 16000000 --target-score -10"
    ),
    "pong_async_q": (
        f"--algorithm async-q --engine serial {SMALL_PICTURES} --num-envs 16 --num-learners 4 "
        "--method n_step --unroll-length 8 --optimizer adam --learning-rate 5e-4 --final-learning-rate 2e-4 "
        "--target-period 250 --epsilon-until 0.05 --no-different-epsilons --normalize-input "
        "--total-frames 16000000 --target-score -10"
    ),
    "pong_ga3c": (
        f"--algorithm ga3c --engine serial {SMALL_PICTURES} --num-envs 32 --num-actors 4 --unroll-length 8 "
        "--optimizer adam --learning-rate 5e-4 --final-learning-rate 3e-4 --normalize-advantages "
        "--gae-lambda 0.95 --total-frames 16000000 --target-score -10"
    ),
    "pong_es": (
        "--algorithm es --image-height 42 --image-width 42 --num-envs 1 --population 40 --sigma 0.1 "
        "--learning-rate 2e-2 --final-learning-rate 2e-2 --hidden 64 --total-frames 100000000 "
        "--target-score 18"
    ),
    # Rainbow on any game: Hessel 2018, arXiv 1710.02298, table 1. Instead of noisy layers, exploration is
    # epsilon-greedy, annealed over 250,000 frames as in the paper's agents without them. Checkpoints leave
    # out the replay, which takes 7 GB.
    "rainbow": (
        "--algorithm dqn --env-preset dqn_2015 --network nature_cnn --hidden 512 --dueling --value-head c51 "
        "--num-envs 4 --unroll-length 1 --batch-size 32 --replay-capacity 1000000 --no-save-replay "
        "--learning-starts 20000 --n-step 3 --priority-exponent 0.5 --importance-exponent 0.4 "
        "--learning-rate 6.25e-5 --adam-epsilon 1.5e-4 --max-grad-norm None "
        "--target-period 2000 --epsilon-until 0.00125 --epsilon-end 0.01 "
        "--total-frames 200000000"
    ),
    # Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    "karpathy_2016": "--algorithm reinforce --env-preset karpathy_2016 --total-frames 400000000",
}


def preset_flags(name: str) -> list[str]:
    """Return the flags of a preset. Errors: UsageError with the nearest name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name].split()
