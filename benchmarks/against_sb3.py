"""Compare parcade's PPO with Stable-Baselines3's: same network and hyper-parameters, interleaved.

    python benchmarks/against_sb3.py [--repeats 3] [--iterations 4]

Both learn Pong with the Nature CNN on 84x84x4, 8 environments x 128 steps, 4 epochs x 4 minibatches of 256,
and Adam at 2.5e-4. Each measurement runs in its own child process, which warms up for one iteration and then
reports the wall-clock and CPU seconds of the following iterations.

``arithmetic`` is the ceiling: only the network's forward passes for acting, and its forward and backward
passes for learning, on inputs that are ready.

Stable-Baselines3 is not a dependency: pip install stable-baselines3 opencv-python-headless.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from script_arguments import output_file, script_parser, whole_number

RESULT = Path(__file__).resolve().parent / "results" / "against_sb3.json"
NUM_ENVS, UNROLL, EPOCHS, MINIBATCHES = 8, 128, 4, 4
STEPS = NUM_ENVS * UNROLL


class Clock:
    """Wall and CPU seconds between the first and the last call of ``tick``."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def tick(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def result(self) -> dict[str, float]:
        (wall_0, cpu_0), (wall_1, cpu_1) = self.marks[0], self.marks[-1]
        steps = STEPS * (len(self.marks) - 1)
        return {
            "steps_per_second": steps / (wall_1 - wall_0),
            "steps_per_cpu_second": steps / (cpu_1 - cpu_0),
        }


def measure_sb3(iterations: int, threads: int) -> dict[str, float]:
    """Measure Stable-Baselines3 with its own wrappers; ``threads=0`` keeps torch's default."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    if threads:
        torch.set_num_threads(threads)
    clock = Clock()

    class Ticker(BaseCallback):
        def _on_rollout_start(self) -> None:
            clock.tick()

        def _on_step(self) -> bool:
            return True

    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=NUM_ENVS, seed=0), 4)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=UNROLL,
        batch_size=STEPS // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=2.5e-4,
        clip_range=0.2,
        ent_coef=0.01,
        device="cpu",
    )
    model.learn(STEPS * (iterations + 2), callback=Ticker())
    clock.marks = clock.marks[1 : iterations + 2]
    return clock.result()


def parcade_config(precision: str, backend: str):
    """The config that matches Stable-Baselines3's settings."""
    from parcade.algorithms.ppo import PPOConfig
    from parcade.config import RunConfig, TrainConfig
    from parcade.model.policy import NetworkConfig

    hyper = PPOConfig(
        num_envs=NUM_ENVS,
        unroll_length=UNROLL,
        epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learning_rate=2.5e-4,
        final_learning_rate=2.5e-4,
        network=NetworkConfig(network="nature_cnn", hidden=512, normalize_input=False),
    )
    return TrainConfig("pong", RunConfig(precision=precision, backend=backend), hyper=hyper)


def measure_parcade(iterations: int, threads: int, precision: str, backend: str = "ale") -> dict[str, float]:
    """Measure the loop of ``parcade.train`` without its reporter; the default backend is ale-py."""
    import torch

    from parcade.build.learner import make_algorithm, make_exchange
    from parcade.build.source import make_source
    from parcade.machine.facts import available_cores
    from parcade.machine.timing import Timer

    threads = threads or available_cores()
    torch.set_num_threads(threads)
    config = parcade_config(precision, backend)
    timer, clock = Timer(), Clock()
    exchange = make_exchange(config, timer)
    algorithm = make_algorithm(config, exchange)
    source = make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=threads)
    for _ in range(iterations + 2):
        clock.tick()
        algorithm.update(source.next_batch(), exchange, 0.0)
        source.publish(algorithm.policy)
    source.close()
    clock.marks = clock.marks[1:]
    return clock.result()


def measure_arithmetic(iterations: int, threads: int, precision: str) -> dict[str, float]:
    """Measure the network's passes of the same iterations, on inputs that are ready."""
    import torch

    from parcade.build.learner import make_algorithm, make_exchange
    from parcade.machine.timing import Timer

    torch.set_num_threads(threads)
    config = parcade_config(precision, "native")
    algorithm = make_algorithm(config, make_exchange(config, Timer()))
    policy, precision_used = algorithm.policy, algorithm.precision
    images = torch.randint(0, 256, (1, STEPS // MINIBATCHES, 4, 84, 84), dtype=torch.uint8)
    seen, learned = (policy.prepare(x, precision_used.dtype) for x in (images[:, :NUM_ENVS], images))
    clock = Clock()
    for _ in range(iterations + 2):
        clock.tick()
        with torch.no_grad(), precision_used.autocast():
            for _ in range(UNROLL):
                policy.evaluate(seen)
        for _ in range(EPOCHS * MINIBATCHES):
            with precision_used.autocast():
                output = policy.evaluate(learned)
            (output.scores.sum() + output.values.sum()).backward()
    clock.marks = clock.marks[1:]
    return clock.result()


SUBJECTS = {
    "sb3 float32, 1 thread": ("sb3", 1, "float32"),
    "parcade float32, 1 thread": ("parcade", 1, "float32"),
    "sb3 float32, its default threads": ("sb3", 0, "float32"),
    "parcade float32, its default threads": ("parcade", 0, "float32"),
    "parcade bfloat16, 1 thread": ("parcade", 1, "bfloat16"),
    "parcade bfloat16, its default threads": ("parcade", 0, "bfloat16"),
    "parcade bfloat16, its default threads, native consoles": ("parcade-native", 0, "bfloat16"),
    "parcade float32, 1 thread, native consoles": ("parcade-native", 1, "float32"),
    "parcade bfloat16, 1 thread, native consoles": ("parcade-native", 1, "bfloat16"),
    "arithmetic float32, 1 thread": ("arithmetic", 1, "float32"),
    "arithmetic bfloat16, 1 thread": ("arithmetic", 1, "bfloat16"),
}
PAIRS = {
    "float32, steps per CPU-second, 1 thread": (
        "parcade float32, 1 thread",
        "sb3 float32, 1 thread",
        "steps_per_cpu_second",
    ),
    "bfloat16 against float32, steps per CPU-second, 1 thread": (
        "parcade bfloat16, 1 thread",
        "sb3 float32, 1 thread",
        "steps_per_cpu_second",
    ),
    "float32, steps per second of wall clock, default threads": (
        "parcade float32, its default threads",
        "sb3 float32, its default threads",
        "steps_per_second",
    ),
    "bfloat16 against float32, steps per second of wall clock, default threads": (
        "parcade bfloat16, its default threads",
        "sb3 float32, its default threads",
        "steps_per_second",
    ),
    "bfloat16 on native consoles against float32, steps per second of wall clock, default threads": (
        "parcade bfloat16, its default threads, native consoles",
        "sb3 float32, its default threads",
        "steps_per_second",
    ),
    **{
        f"{precision} on native consoles against float32, steps per CPU-second, 1 thread": (
            f"parcade {precision}, 1 thread, native consoles",
            "sb3 float32, 1 thread",
            "steps_per_cpu_second",
        )
        for precision in ("float32", "bfloat16")
    },
    **{
        f"ceiling: arithmetic alone in {precision} against float32, steps per CPU-second, 1 thread": (
            f"arithmetic {precision}, 1 thread",
            "sb3 float32, 1 thread",
            "steps_per_cpu_second",
        )
        for precision in ("float32", "bfloat16")
    },
    **{
        f"share of the ceiling reached in {precision} on native consoles": (
            f"parcade {precision}, 1 thread, native consoles",
            f"arithmetic {precision}, 1 thread",
            "steps_per_cpu_second",
        )
        for precision in ("float32", "bfloat16")
    },
}


def child(subject: str, iterations: int) -> None:
    """Measure one subject and print the result as JSON."""
    who, threads, precision = SUBJECTS[subject]
    if who == "sb3":
        measured = measure_sb3(iterations, threads)
    elif who == "arithmetic":
        measured = measure_arithmetic(iterations, threads, precision)
    else:
        measured = measure_parcade(
            iterations, threads, precision, "native" if who == "parcade-native" else "ale"
        )
    print("RESULT " + json.dumps(measured))


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--iterations", type=whole_number, default=4)
    parser.add_argument("--child")
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.iterations)
        return 0
    from parcade.machine.facts import commit, machine

    samples: dict[str, list[dict[str, float]]] = {subject: [] for subject in SUBJECTS}
    for _ in range(arguments.repeats):
        for subject, (who, _, _) in SUBJECTS.items():
            # parcade sets this itself; Stable-Baselines3 runs with its defaults.
            env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"} if who != "sb3" else dict(os.environ)
            if who == "sb3":
                env.pop("OMP_WAIT_POLICY", None)
            words = [sys.executable, __file__, "--child", subject, "--iterations", str(arguments.iterations)]
            out = subprocess.run(
                words, capture_output=True, text=True, env=env, timeout=1800, check=True
            ).stdout
            samples[subject].append(json.loads(out.split("RESULT ")[1]))
            print(subject, samples[subject][-1], flush=True)
    ratios = {}
    for name, (ours, theirs, figure) in PAIRS.items():
        values = [a[figure] / b[figure] for a, b in zip(samples[ours], samples[theirs], strict=True)]
        ratios[name] = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
        print(f"{name}: {statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]")
    command = (
        f"python benchmarks/against_sb3.py --repeats {arguments.repeats} --iterations {arguments.iterations}"
    )
    result = {
        "command": command,
        "commit": commit(),
        "machine": machine(),
        "ratios": ratios,
        "samples": samples,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
