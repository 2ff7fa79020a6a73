"""Train, score and store the agents that are part of the package (``parcade/zoo/agents``).

    python benchmarks/zoo.py [GAME ...] [--frames 40000000] [--runs runs/zoo]
    python benchmarks/zoo.py [GAME ...] --greedy    # let stored agents play greedily, without training

A finished run is not repeated; an interrupted one resumes from its checkpoint. Each agent then plays 100
episodes on seeds that no training uses, once sampling its actions and once greedily, and its policy is stored
with its scores. A stored agent is replaced only by one with a higher mean score when it samples. Weights are
stored in float16 and scored as stored.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from curves import is_started
from script_arguments import script_parser, whole_number

from parcade.agent import load
from parcade.checkpoint import read_policy
from parcade.config import TrainConfig, load_config, to_json
from parcade.evaluate import evaluate
from parcade.files import run_directory
from parcade.files.rank_file import write_rank_file
from parcade.files.state import behind
from parcade.zoo import AGENTS, agent_names, card

ROOT = Path(__file__).resolve().parents[1]
EPISODES = 100
SEED = 11
SMALL_IMAGES = "--network fine_cnn --hidden 256 --image-height 42 --image-width 42"
FULL_SIZE = "--network nature_cnn --hidden 512 --image-height 84 --image-width 84"
PPO_FLAGS = (
    "--num-envs 32 --unroll-length 32 --epochs 3 --num-minibatches 4 --learning-rate 5e-4 "
    f"--final-learning-rate 5e-5 {SMALL_IMAGES} --precision auto --checkpoint-seconds 120 "
    "--report-seconds 60"
)
# Minibatches half as large as PPO's. On Beam Rider it scores more: 1,993 instead of 1,791.
PQN_FLAGS = (
    "--num-envs 32 --unroll-length 32 --epochs 2 --num-minibatches 8 --learning-rate 5e-4 "
    f"--final-learning-rate 5e-5 --epsilon-end 0.01 {SMALL_IMAGES} --precision auto "
    "--checkpoint-seconds 120 --report-seconds 60"
)
# On Beam Rider and Space Invaders the scores of the Nature CNN on full-size images go on rising where others
# stay (docs/LOG.md), at a third of the steps per second.
PQN_FULL_SIZE_FLAGS = PQN_FLAGS.replace(SMALL_IMAGES, FULL_SIZE)
# Pong's own preset learns fastest. Here it runs to the end, while learning rate and entropy weight fall.
PONG_FLAGS = (
    "--preset pong_fast --target-score None --schedule-share 1 --final-learning-rate 2e-5 "
    "--final-entropy-weight 0.001 --checkpoint-seconds 120"
)
PPO = f"--algorithm ppo {PPO_FLAGS} --threads-per-rank 1"
PQN_FULL_SIZE = f"--algorithm pqn {PQN_FULL_SIZE_FLAGS} --threads-per-rank 1"
GAMES: dict[str, str] = {
    "beam_rider": PQN_FULL_SIZE,
    "breakout": PPO,
    "pong": f"{PONG_FLAGS} --threads-per-rank 1",
    "qbert": PPO,
    "space_invaders": PQN_FULL_SIZE,
}
"""The flags of each training."""


def command(game: str, frames: int) -> list[str]:
    """The arguments of ``parcade`` that train an agent for a game."""
    return ["train", game, *GAMES[game].split(), "--seed", str(SEED), "--total-frames", str(frames)]


def train(game: str, frames: int, run: Path) -> None:
    """Start or resume the training, unless it has finished."""
    if run_directory.is_finished(run):
        return
    started = is_started(run)
    words = ["train", "--resume", str(run)] if started else [*command(game, frames), "--run-dir", str(run)]
    subprocess.run([sys.executable, "-m", "parcade", *words], check=True, cwd=ROOT)


def store(game: str, frames: int, run: Path) -> None:
    """Write and score the agent of a finished run, and store it unless the stored one is as good."""
    target, making = AGENTS / game, AGENTS / f"{game}.making"
    shutil.rmtree(making, ignore_errors=True)
    try:
        config, trained_frames = write_agent(run, making)
        result = json.loads((run / "result.json").read_text())
        scores = evaluate(load(making), EPISODES, seed=SEED)
        print(f"{game}: {scores['score_mean']:.1f} +- {scores['score_deviation']:.1f}")
        if game in agent_names() and card(game)["scores"]["score_mean"] >= scores["score_mean"]:
            print(f"{game}: the stored agent scores {card(game)['scores']['score_mean']:.1f} and stays")
            return
        run_directory.write_json(
            making / "card.json",
            {
                "game": game,
                "algorithm": config.run.algorithm,
                "frames": trained_frames,
                "seed": SEED,
                "wall_seconds": round(result["wall_seconds"]),
                "cpu_seconds": round(result["cpu_seconds"]),
                "command": " ".join(["parcade", *command(game, frames)]),
                "commit": result["commit"],
                "machine": result["machine"],
                "scores": without_list(scores),
            },
        )
        score_greedily(making)
        shutil.rmtree(target, ignore_errors=True)
        making.rename(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def score_greedily(agent: Path) -> None:
    """Add the scores of greedy play to the card of an agent's directory."""
    scores = evaluate(load(agent), EPISODES, seed=SEED, greedy=True)
    print(
        f"{scores['game']}, greedy: {scores['score_mean']:.1f} +- {scores['score_deviation']:.1f}", flush=True
    )
    known = run_directory.read_json(agent / "card.json")
    run_directory.write_json(agent / "card.json", {**known, "greedy_scores": without_list(scores)})


def without_list(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of an evaluation without the score of every episode."""
    return {name: value for name, value in scores.items() if name != "scores"}


def write_agent(run: Path, target: Path) -> tuple[TrainConfig, int]:
    """Write a run's configuration and policy to a folder. Returns the configuration and the frames."""
    (target / "checkpoints").mkdir(parents=True)
    config = load_config(run)
    # float32 gives every user the same agent, whatever formats their CPU supports.
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir="", precision="float32"))
    run_directory.write_json(target / "config.json", to_json(config))
    tensors, trained_frames = read_policy(run)
    weights = {name: smaller(name, value) for name, value in tensors.items()}
    final = run_directory.checkpoint_directory(target, trained_frames)
    making = final.with_name(final.name + ".making")
    digest = write_rank_file(making, 0, behind("policy.", weights))
    run_directory.finish_checkpoint(making, final, {"progress": {"frames": trained_frames}}, [digest], keep=1)
    (final / "rank-0.safetensors").chmod(0o644)
    return config, trained_frames


def smaller(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a weight in float16, and everything else as it is: biases, counters, statistics of the input.

    It halves the files. The training itself multiplied in bfloat16, which has three bits fewer.
    """
    is_weight = value.dtype == torch.float32 and value.dim() > 1 and not name.startswith("statistics.")
    return value.half() if is_weight else value


def main() -> None:
    """Train and store the requested agents, by default all of them."""
    parser = script_parser(__doc__)
    parser.add_argument("games", nargs="*", choices=GAMES, default=list(GAMES), metavar="GAME")
    parser.add_argument("--frames", type=whole_number, default=40_000_000, help="of each; default 40 million")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "zoo", help="directory of the runs")
    parser.add_argument("--greedy", action="store_true", help="score stored agents greedily, train none")
    arguments = parser.parse_args()
    for game in arguments.games or GAMES:
        if arguments.greedy:
            score_greedily(AGENTS / game)
            continue
        run = arguments.runs / game
        train(game, arguments.frames, run)
        if run_directory.is_finished(run):
            store(game, arguments.frames, run)


if __name__ == "__main__":
    main()
