"""The aliases of Stable-Baselines3 are names that it logs."""

import pytest

from parcade.report.metric_names import METRIC_NAMES

sb3 = pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.integrations

from stable_baselines3.common.logger import KVWriter, Logger  # noqa: E402

from parcade.integrations.sb3 import make_vec  # noqa: E402


class Names(KVWriter):
    """A log that keeps the names and the last values."""

    def __init__(self):
        self.values = {}

    def write(self, key_values, key_excluded, step=0):
        self.values |= key_values

    def close(self):
        pass


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_sb3_logs_every_name_and_its_entropy_loss_is_negative():
    kept = Names()
    learners = [
        sb3.PPO("MlpPolicy", make_vec("tiny_catch", 2), n_steps=16, batch_size=16, n_epochs=1, device="cpu"),
        sb3.A2C("MlpPolicy", make_vec("tiny_catch", 2), device="cpu"),
        sb3.DQN("MlpPolicy", make_vec("tiny_catch", 1), learning_starts=8, buffer_size=100, device="cpu"),
    ]
    for learner in learners:
        learner.set_logger(Logger(None, [kept]))
        learner.learn(96, log_interval=1)
    assert {alias.name for alias in METRIC_NAMES["sb3"].aliases} <= set(kept.values)
    assert kept.values["train/entropy_loss"] < 0
