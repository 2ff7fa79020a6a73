"""Ranks that work for given times: ``mpiexec -n 2 python ranks.py '[{"emulate": 0.03}, {"emulate": 0.06}]'``.

Each rank sleeps in the scopes of its entry, then averages a gradient with the others. This simulates a
training run with known split, stragglers and waste.
"""

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

from parcade.exchange.allreduce import AllreduceExchange
from parcade.machine.timing import Timer
from parcade.profile.recorder import recorder_from_environment

timer = Timer()
exchange = AllreduceExchange(timer)
grad = torch.zeros(50_000)
exchange.parameters = SimpleNamespace(grad=grad)
recorder = recorder_from_environment(exchange, timer)
counts = SimpleNamespace(steps=0, frames=0)
split = json.loads(sys.argv[1])[exchange.rank]
full = False
while not full:
    for scope, seconds in split.items():
        with timer.scope(scope):
            time.sleep(seconds)
    exchange.average_gradient(grad)
    exchange.updates += 1
    counts.steps += 8
    recorder.end_iteration(counts)
    full = bool(exchange.maximum(np.array([float(recorder.is_full)]))[0])
recorder.write()
