"""Compare stepping all environments together with ``send`` and ``recv`` of a part, interleaved.

    python benchmarks/send_recv.py [--game breakout] [--steps 40000] [--repeats 3] [--learn-ms 0]

Random actions; 32 environments on two threads, batches of 16. ``--learn-ms`` adds a pause of that length per
16 environments, in place of a network on another device: ``send`` and ``recv`` play during the pause.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

from parcade import make_vec
from parcade.machine.facts import commit, machine

RESULT = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "send_recv.json"
NUM_ENVS, BATCH_SIZE, NUM_THREADS = 32, 16, 2
WARM_UP_STEPS = 4000


def play(game: str, batch_size: int, steps: int, learn_seconds: float) -> dict[str, float]:
    """Return frames per second of the wall clock and of CPU time, restarts included."""
    env = make_vec(game, NUM_ENVS, batch_size=batch_size, num_threads=NUM_THREADS)
    generator = np.random.default_rng(0)
    size = batch_size or NUM_ENVS
    if batch_size:
        env.async_reset(seed=0)
    else:
        env.reset(seed=0)
    frames = played = 0
    ids = [env.recv()[4]["env_id"]] if batch_size else []
    while played < WARM_UP_STEPS + steps:
        if played <= WARM_UP_STEPS:
            frames, wall, cpu = 0, time.perf_counter(), time.process_time()
        time.sleep(learn_seconds * size / BATCH_SIZE)
        actions = generator.integers(0, env.single_action_space.n, size)
        infos = env.step(actions, *ids)[4]
        ids = [infos["env_id"]] if batch_size else []
        frames += int(infos["frames"].sum() + infos["reset_frames"].sum())
        played += size
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    env.close()
    return {"frames_per_second": frames / wall, "frames_per_cpu_second": frames / cpu}


def main() -> None:
    """Measure both ways in turn and save the medians."""
    parser = script_parser(__doc__)
    parser.add_argument("--game", type=game_name, default="breakout")
    parser.add_argument("--steps", type=whole_number, default=40_000)
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--learn-ms", type=float, default=0)
    parser.add_argument("--out", type=output_file, default=RESULT)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"together": [], "send_recv": []}
    for _ in range(args.repeats):
        for way, batch_size in (("together", 0), ("send_recv", BATCH_SIZE)):
            runs[way].append(play(args.game, batch_size, args.steps, args.learn_ms / 1000))
            print(way, {name: round(value) for name, value in runs[way][-1].items()}, flush=True)
    medians = {
        way: {name: round(statistics.median(each[name] for each in runs[way])) for name in runs[way][0]}
        for way in runs
    }
    record = {
        "command": f"python benchmarks/send_recv.py --game {args.game} --steps {args.steps} "
        f"--repeats {args.repeats} --learn-ms {args.learn_ms:g}",
        "commit": commit(),
        "machine": machine(),
        "medians": medians,
        "runs": runs,
    }
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.write_text(json.dumps({**kept, f"learn_ms={args.learn_ms:g}": record}, indent=2) + "\n")
    print(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
