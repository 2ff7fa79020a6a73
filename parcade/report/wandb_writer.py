"""Weights & Biases as a destination of reports (``--track wandb``).

The W&B run has the name of the run's directory, which stores its id in ``wandb.json``; a resumed run
continues the same W&B run. W&B's own environment variables apply: ``WANDB_MODE=offline`` writes to
``DIR/wandb``, ``WANDB_PROJECT`` and ``WANDB_ENTITY`` say where the run belongs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcade.config import TrainConfig, to_json
from parcade.errors import UsageError, missing_extra
from parcade.files import run_directory
from parcade.report.metric_names import MetricNames
from parcade.report.writers import Writer

if TYPE_CHECKING:
    import wandb

# Time limits in seconds of the first answer of the server, and of the upload of what is left at the end.
INIT_SECONDS = 60
FINISH_SECONDS = 60
ID_FILE = "wandb.json"


def check_wandb() -> None:
    """Check that the package is installed. Errors: UsageError."""
    if importlib.util.find_spec("wandb") is None:
        raise missing_extra("wandb", "wandb", "--track wandb")


class WandbWriter(Writer):
    """Sends reports to a W&B run, which it starts or continues.

    Errors: UsageError if W&B is not installed, nobody is logged in, or the server does not answer.
    """

    name = "Weights & Biases"

    def __init__(
        self, config: TrainConfig, run: Path, names: MetricNames, say: Callable[[str], None]
    ) -> None:
        check_wandb()
        import wandb

        self._names = names
        try:
            self._run = _start(config, run)
        except (wandb.Error, OSError, ValueError) as error:  # ValueError: an unknown WANDB_MODE
            raise UsageError(
                f"Weights & Biases cannot start ({' '.join(str(error).split())}); "
                "correct this, set WANDB_MODE=offline, or leave out --track wandb"
            ) from error
        self._run.define_metric(names.axis_name)
        self._run.define_metric("*", step_metric=names.axis_name)
        if self._run.offline:
            files = run / "wandb" / "offline-run-*"
            say(f"Weights & Biases: offline; upload with: wandb sync --id {self._run.id} {files}")
        elif self._run.url:
            say(f"Weights & Biases: {self._run.url}")

    def write(self, metrics: dict[str, Any]) -> None:
        self._run.log({**self._names.rename(metrics), self._names.axis_name: metrics[self._names.axis]})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


def _start(config: TrainConfig, run: Path) -> wandb.Run:
    """Start or continue the W&B run of a directory. Errors: those of ``wandb.init``."""
    import wandb

    if wandb.setup().settings.mode in ("online", "run", "shared") and not wandb.login(prompt=False):
        raise UsageError("nobody is logged in; run: wandb login")
    known = run_directory.read_json(run / ID_FILE) if (run / ID_FILE).exists() else {}
    started = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "parcade"),
        name=run.resolve().name,
        id=known.get("id"),
        resume="allow",
        config=to_json(config),
        allow_val_change=True,  # a resumed run may have new limits
        tags=[config.game, config.run.algorithm, config.run.backend, config.run.engine],
        dir=run,
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
        ),
    )
    run_directory.write_json(run / ID_FILE, {"id": started.id, "project": started.project})
    return started
