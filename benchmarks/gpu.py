"""Everything that needs a GPU, in one call: facts, parity, throughput, tuning, training. Resumable; appends to results.

    python benchmarks/gpu.py --minutes 9 --results DIR

Stages in the order of their worth. Each has a share of the minutes that are left when it begins; what does not fit is left for the
next call, and rows that are there already, in DIR or in benchmarks/results, are not measured again:

| stage      | share | result           | what                                                                             |
|------------|-------|------------------|----------------------------------------------------------------------------------|
| facts      |       | gpu_facts.json   | card, driver, versions                                                           |
| warm-up    | 50 %  | the same         | machine code of all kernels and ROMs, side by side; seconds a kernel             |
| breadth    | 30 %  | gpu_parity.csv   | 60 frames of every game: RAM, screen, reward, lives, end, against the CPU engine |
| throughput | 50 %  | gpu_speed.csv    | frames/s against consoles and game, kernel by kernel                             |
| depth      | 50 %  | gpu_parity.csv   | the same as breadth, 3,000 frames                                                |
| tuning     | 50 %  | gpu_tuning.csv   | threads a block, registers a thread, 32 bits, consoles a warp                    |
| training   | 60 %  | gpu_training.csv | Pong to 18, a seed a row; run directories under DIR/runs                         |
| games      | 60 %  | the same         | 10 million steps of BeamRider, Breakout, Qbert and SpaceInvaders                 |
| schedule   | 70 %  | the same         | CuLE's table of consoles, groups and unrolls, on Pong                            |
| networks   | all   | the same         | frames and updates a second against the size of the network                      |

A case that fails leaves a row with its error. After an error that ends this process's use of the card, or a stage that does not come
back, the script begins again in a fresh process with the minutes that are left; games that were in flight together are then
played fewer at a time until the one at fault is found.

What trains needs all of parcade's dependencies and says so where one is missing; the rest numpy, numba, numba-cuda, torch and ale-py's
ROMs (the wheel, or --roms DIR).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_results import RESULTS, Clock, DeviceLost, Gpu, Results, one_line

SHARES = {"facts": 1.0, "warm-up": 0.5, "breadth": 0.3, "throughput": 0.5, "depth": 0.5, "tuning": 0.5}
SHARES |= {"training": 0.6, "games": 0.6, "schedule": 0.7, "networks": 1.0}
PARITY = ("breadth", "depth")
TRAINING = ("training", "games", "schedule", "networks")
TABLES = {**dict.fromkeys(PARITY, "gpu_parity.csv"), "throughput": "gpu_speed.csv", "tuning": "gpu_tuning.csv"}
TABLES |= dict.fromkeys(TRAINING, "gpu_training.csv")
BREADTH_FRAMES = 60
GAMES_AT_ONCE = 104
GRACE_SECONDS = 45  # a stage that has not ended so long after its share hangs
MOST_RESTARTS = 8  # then the stage is given up


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The call's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--stages", nargs="*", default=list(SHARES), choices=list(SHARES), metavar="STAGE")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of new rows")
    parser.add_argument("--frames", type=int, default=3000, help="of parity, a game")
    parser.add_argument("--seeds", type=int, default=5, help="of training")
    parser.add_argument("--dollars-an-hour", type=float, help="price of the machine, for frames to a dollar")
    parser.add_argument("--roms", type=Path, help="folder with ale-py's ROMs where its wheel is not installed")
    parser.add_argument("--games-at-once", type=int, default=GAMES_AT_ONCE, help="of parity, in flight together")
    parser.add_argument("--skip", nargs="*", default=[], help="cases that are not tried, such as parity/pong")
    parser.add_argument("--restarts", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def after_loss(options: argparse.Namespace, stage: str, cases: list[str], left_seconds: float) -> list[str] | None:
    """Arguments of the fresh process after `cases` of a stage were on a card that was lost; None where too little time is left.

    One case is skipped from now on. Of many games the one at fault is looked for, a quarter of them at a time.
    """
    if left_seconds < 30:
        return None
    stages = options.stages[options.stages.index(stage) :]
    skip, at_once, restarts = [*options.skip], options.games_at_once, options.restarts + 1
    if len(cases) > 1:
        at_once = max(1, min(at_once, len(cases)) // 4)
    elif cases:
        skip, at_once = sorted({*skip, *cases}), GAMES_AT_ONCE
    if not cases or restarts > MOST_RESTARTS:
        stages, restarts, at_once = stages[1:], 0, GAMES_AT_ONCE
    if not stages:
        return None
    changed = ["--minutes", f"{left_seconds / 60:.3f}", "--stages", *stages, "--games-at-once", str(at_once), "--restarts", str(restarts)]
    kept = ["--results", str(options.results), "--frames", str(options.frames), "--seeds", str(options.seeds)]
    kept += ["--roms", str(options.roms)] if options.roms else []
    kept += ["--dollars-an-hour", str(options.dollars_an_hour)] if options.dollars_an_hour else []
    return [*changed, *kept, "--skip", *skip]


def begin_again(arguments: list[str] | None) -> None:
    """Become a fresh process with these arguments; does not return, without arguments either."""
    for process in multiprocessing.active_children():
        process.kill()
    sys.stdout.flush()
    if arguments is None:
        os._exit(1)
    os.execv(sys.executable, [sys.executable, str(Path(__file__).resolve()), *arguments])


def write_facts(results: Results, facts: dict) -> None:
    """gpu_facts.json, and the same on stdout."""
    (results.folder / "gpu_facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts), flush=True)


def find_facts(device: Gpu, results: Results) -> dict:
    """Card and versions: nothing runs on the card for them."""
    import numba
    import numba_cuda
    import torch

    from parcade.atari.cuda.layout import environment_bytes

    return {
        "card": device.card(),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "numba": numba.__version__,
        "numba_cuda": numba_cuda.__version__,
        "torch": torch.__version__,
        "bytes_of_65536_environments": environment_bytes(65_536, 210, 4, 84, 84),
        "commit": results.commit,
    }


def run_stage(stage: str, clock: Clock, device: Gpu, results: Results, options: argparse.Namespace) -> None:
    """One stage, for as long as its clock says. Errors: DeviceLost naming what was on the card."""
    if stage == "facts":
        write_facts(results, find_facts(device, results))
    elif stage == "warm-up":
        from gpu_warm_up import warm_up

        facts = warm_up(clock, tuning="tuning" in options.stages, roms=options.roms)
        write_facts(results, {**find_facts(device, results), "compiled": facts})
    elif stage in PARITY:
        from gpu_parity import parity

        num_frames = min(BREADTH_FRAMES, options.frames) if stage == "breadth" else options.frames
        parity(clock, device, results, num_frames=num_frames, games_at_once=options.games_at_once)
    elif stage in TRAINING:
        from gpu_training import train_stage

        train_stage(stage, clock, device, results, num_seeds=options.seeds, dollars_an_hour=options.dollars_an_hour)
    else:
        import gpu_speed

        {"throughput": gpu_speed.throughput, "tuning": gpu_speed.tuning}[stage](clock, device, results)


def run_stages(options: argparse.Namespace, device: Gpu, results: Results, *, restart=begin_again) -> None:
    """The stages in order; `restart` takes the arguments of a fresh process, or None."""
    clock = Clock(60 * options.minutes)

    def give_up(stage: str, cases: list[str]) -> None:
        options.skip = sorted(results.skip)
        restart(after_loss(options, stage, cases, clock.left_seconds))

    for stage in options.stages:
        share = clock.share(SHARES[stage])

        def overrun(stage: str = stage) -> None:
            case, error = results.case, "the device did not come back"
            print(f"{stage}: {error}", flush=True)
            if case and stage in TABLES:
                results.append(TABLES[stage], **case_columns(case), error=error)
            unknown = [f"{stage}/?"] * options.games_at_once if stage in PARITY else []
            give_up(stage, [case] if case else unknown)

        guard = threading.Timer(share.left_seconds + GRACE_SECONDS, overrun)
        guard.daemon = True
        guard.start()
        try:
            run_stage(stage, share, device, results, options)
        except DeviceLost as lost:
            print(f"{stage}: {lost}; going on in a fresh process", flush=True)
            return give_up(stage, lost.cases)
        except Exception as error:
            print(f"{stage}: {one_line(error)}", flush=True)
            if device.is_lost():
                return give_up(stage, [])
        finally:
            guard.cancel()


def case_columns(case: str) -> dict[str, str]:
    """The column that tells a case's row from others, for an error that came from outside of it."""
    stage, _, name = case.partition("/")
    if stage in TRAINING:
        return {"stage": stage, "game": name}
    return {{"parity": "game", "throughput": "game", "tuning": "consoles"}[stage]: name}


def main() -> None:
    """Run the stages that were asked for, in order, for as long as there is time."""
    options = parse()
    # Set before the card is first used: as many queues as it has, so that games in flight do not wait in each other's.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    from parcade.atari import games
    from parcade.atari.cuda import engine

    if options.roms:
        games.rom_directory = lambda: options.roms
    try:
        device = Gpu()
    except engine.DeviceUnavailable as error:
        raise SystemExit(f"benchmarks/gpu.py: {error}") from error
    run_stages(options, device, Results(options.results, skip=tuple(options.skip)))


if __name__ == "__main__":
    main()
