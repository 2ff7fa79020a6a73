"""Everything that decides a run, in frozen dataclasses: flags are made from them, config.json stores them."""

from parcade.config.run import RunConfig
from parcade.config.saved import (
    CHANGED_BY_RESUMING,
    check_structure,
    from_json,
    load_config,
    save_changes,
    structure,
    to_json,
)
from parcade.config.sizes import check_device, check_divisible, check_process_memory
from parcade.config.topology import TopologyConfig
from parcade.config.train import TrainConfig

__all__ = [
    "CHANGED_BY_RESUMING",
    "RunConfig",
    "TopologyConfig",
    "TrainConfig",
    "check_device",
    "check_divisible",
    "check_process_memory",
    "check_structure",
    "from_json",
    "load_config",
    "save_changes",
    "structure",
    "to_json",
]
