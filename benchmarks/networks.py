"""CPU time of one step of learning by network and image size: forward and backward pass of a torso.

    python benchmarks/networks.py [--repeats 7]

One thread, float32, batches of 256 stacks of four images, Q values of six actions. The networks take turns,
so that other work on the machine meets all of them. The median over the repeats is reported per step, i.e.
divided by the batch size. Writes ``benchmarks/results/networks.json``.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch
from script_arguments import output_file, script_parser, whole_number

from parcade.machine.facts import commit, machine
from parcade.model.networks import NetworkConfig
from parcade.model.policy import Policy

RESULT = Path(__file__).resolve().parent / "results" / "networks.json"
NETWORKS = {  # name: flags; PQN learns with layer normalisation
    "fine_cnn": NetworkConfig(network="fine_cnn", hidden=256, layer_norm=True),
    "nature_cnn": NetworkConfig(network="nature_cnn", hidden=512, layer_norm=True),
    "nature_cnn, LSTM of 512": NetworkConfig(network="nature_cnn", hidden=512, layer_norm=True, lstm=512),
    "impala_resnet": NetworkConfig(network="impala_resnet", hidden=256),
    "hadamax": NetworkConfig(network="hadamax", hidden=512),
    "impala_btr": NetworkConfig(network="impala_btr", hidden=512),
}
SIZES = (42, 84)
BATCH = 256
UNROLL = 32  # steps of an unroll of the recurrent policy


def learner(config: NetworkConfig, size: int) -> tuple[Policy, torch.Tensor]:
    """Return a policy and the inputs of one update: single steps, or unrolls of a recurrent policy."""
    torch.manual_seed(0)
    policy = Policy((4, size, size), "uint8", 6, config, "q")
    lengths = (UNROLL, BATCH // UNROLL) if config.lstm else (1, BATCH)
    return policy, torch.randint(0, 256, (*lengths, 4, size, size), dtype=torch.uint8)


def cpu_milliseconds(policy: Policy, observations: torch.Tensor) -> float:
    """CPU time of a forward and a backward pass, in milliseconds per step."""
    inputs = policy.prepare(observations)
    started = time.process_time()
    policy.evaluate(inputs).scores.square().mean().backward()
    return (time.process_time() - started) * 1e3 / BATCH


def main() -> None:
    """Measure, print and store."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=whole_number, default=7)
    parser.add_argument("--out", type=output_file, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    learners = {(name, size): learner(NETWORKS[name], size) for name in NETWORKS for size in SIZES}
    times: dict[tuple[str, int], list[float]] = {key: [] for key in learners}
    for repeat in range(arguments.repeats + 1):  # the first one warms up
        for key, parts in learners.items():
            spent = cpu_milliseconds(*parts)
            if repeat:
                times[key].append(spent)
    rows = [
        {
            "network": name,
            "size": size,
            "parameters": sum(p.numel() for p in learners[name, size][0].parameters()),
            "cpu_ms_per_step": round(statistics.median(spent), 3),
            "lowest": round(min(spent), 3),
            "highest": round(max(spent), 3),
        }
        for (name, size), spent in times.items()
    ]
    for row in rows:
        print(
            f"{row['network']:<26}{row['size']:>4}{row['parameters']:>12,}{row['cpu_ms_per_step']:>9.3f} ms "
            f"({row['lowest']:.3f} to {row['highest']:.3f})"
        )
    result = {"rows": rows, "repeats": arguments.repeats, "commit": commit(), "machine": machine()}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
