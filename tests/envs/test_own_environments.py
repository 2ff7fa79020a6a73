"""Environments of modules outside the package: MODULE:ID on the command line and from Python."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import parcade
from parcade.cli import main
from parcade.config import load_config
from parcade.envs.gym import CheckedEnv
from parcade.errors import UsageError
from parcade.suite.jobs import next_command, run_of
from parcade.suite.plan import Cell, Plan

pytestmark = pytest.mark.processes
MODULE = """
import gymnasium
import numpy as np
import parcade

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1)
        return np.float32([self.x]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = 1 - abs(float(action[0]) - self.x)
        return self.reset()[0], reward, False, False, {}

gymnasium.register("Line-v0", Line, max_episode_steps=4)
"""
GAME = "line_env:Line-v0"
RUN = ["--num-envs", "4", "--unroll-length", "8", "--total-frames", "640", "--threads-per-rank", "1"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the working directory that registers ``Line-v0``; forgotten after the test."""
    (tmp_path / "line_env.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget()


def forget():
    sys.modules.pop("line_env", None)
    gymnasium.registry.pop("Line-v0", None)


@pytest.mark.parametrize("words", [[GAME], ["--env", GAME]])
def test_a_module_of_the_working_directory_trains(module, words):
    assert main(["train", *words, *RUN, "--run-dir", "run"]) == 0
    assert json.loads((module / "run" / "config.json").read_text())["game"] == GAME
    assert parcade.load("run").policy.actions.count == 1  # its module is imported already


def test_a_run_directory_imports_its_module_only_if_the_user_names_it(module, capsys, monkeypatch):
    assert main(["train", GAME, *RUN, "--run-dir", "run"]) == 0
    forget()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for words in (["eval", "run"], ["watch", "run"], ["train", "--resume", "run", "--total-frames", "960"]):
        assert main(words) == 2
        said = capsys.readouterr().err.splitlines()
        assert (
            len(said) == 1
            and f"importing line_env runs its code; if you trust it, add --env {GAME}" in said[0]
        )
        assert "line_env" not in sys.modules
    with pytest.raises(UsageError, match=f"was trained on {GAME}; got env other:Line-v0"):
        load_config(module / "run", "other:Line-v0")
    assert "line_env" not in sys.modules
    assert main(["eval", "run", "--env", GAME, "--episodes", "2"]) == 0
    forget()
    assert main(["train", "--resume", "run", "--env", GAME, "--total-frames", "960"]) == 0
    assert json.loads((module / "run" / "result.json").read_text())["frames"] == 960


def test_ranks_import_the_module(module):
    pytest.importorskip("mpi4py")
    words = ["--env", GAME, *RUN, "--engine", "mpi", "--ranks", "2", "--run-dir", "run"]
    subprocess.run([sys.executable, "-m", "parcade", "train", *words], check=True, timeout=120)
    assert json.loads((module / "run" / "result.json").read_text())["ranks"] == 2


def test_a_module_can_register_a_network_for_its_environment(module):
    with open("line_env.py", "a") as file:
        file.write(
            "import torch\n"
            "class Two(torch.nn.Linear):\n"
            "    num_features = 2\n"
            'parcade.register_network("two", lambda shape, config: Two(shape[0], 2))\n'
        )
    try:
        assert main(["train", "--env", GAME, "--network", "two", *RUN, "--run-dir", "run"]) == 0
        assert parcade.load("run").policy.torso.weight.shape == (2, 1)
    finally:
        from parcade.model.networks import NETWORKS

        NETWORKS.pop("two", None)


def test_a_suite_continues_its_training_and_scores_it(module):
    plan = Plan((GAME,), (0,), "ppo", "640-frames", "null-op", tuple(RUN[:4]))
    cell, folder = Cell(GAME, 0), module / "suite"
    run = run_of(folder, cell)
    assert main([*next_command(folder, plan, cell), "--checkpoint-seconds", "0.01"]) == 0
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "finished_by": "stopped"}))
    forget()
    assert main([*next_command(folder, plan, cell), "--total-frames", "960"]) == 0
    forget()
    assert main([*next_command(folder, plan, cell), "--episodes", "2"]) == 0


def test_the_batch_script_of_slurm_names_it_when_it_resumes(module, capsys):
    words = ["--script", "job.sbatch", "--", "train", GAME, "--run-dir", "run"]
    assert main(["slurm", *words]) == 0
    assert f'train --resume "$run" --env {GAME} &' in (module / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere:Line-v0"], "module 'nowhere' of nowhere:Line-v0 cannot be imported (ModuleNotFoundError"),
        ([":Line-v0"], "expected MODULE:ID"),
        (["line_env:Lime-v0"], "unknown environment of line_env 'Lime-v0'; did you mean 'Line-v0'?"),
        (["pong", "--env", GAME], f"got the game pong and --env {GAME}; leave one of them out"),
        (["--env", GAME, "--algorithm", "dqn"], f"algorithm dqn needs Discrete actions; {GAME} has Box("),
        (["empty:Lime-v0"], "module empty registers no Gymnasium id 'Lime-v0'; expected a call of"),
        (["broken:Line-v0"], "module 'broken' of broken:Line-v0 cannot be imported (ValueError: no luck)"),
        (
            ["leaving:Line-v0"],
            "module 'leaving' of leaving:Line-v0 cannot be imported (ImportError: it calls ",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run_behind(module, words, said, capsys):
    (module / "broken.py").write_text("raise ValueError('no luck')")
    (module / "leaving.py").write_text("import sys; sys.exit(0)")
    (module / "empty.py").touch()
    assert main(["train", *words, "--run-dir", "run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert not (module / "run").exists()


@pytest.mark.parametrize(
    ("start", "later", "says"),
    [
        ("[0, 0]", "[0]", r"Odd-v0 returned an observation of shape \(2,\) from reset; expected \(1,\)"),
        ("[0]", "[0, 0]", r"Odd-v0 returned an observation of shape \(2,\) from step; expected \(1,\)"),
        ("None", "[0]", r"Odd-v0 returned an observation of shape \(\) from reset; expected \(1,\)"),
        ("[0j]", "[0]", r"Odd-v0 returned an observation of complex128 from reset; expected float32"),
        ("[0]", "[None]", r"Odd-v0 returned an observation of object from step; expected float32"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of Gymnasium's checker
def test_an_observation_of_another_shape_or_type_than_the_spaces_is_named(monkeypatch, start, later, says):
    class Odd(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.array(eval(start)), {}

        def step(self, action):
            return np.array(eval(later)), 0.0, False, False, {}

    env = registered(monkeypatch, Odd)
    with pytest.raises(UsageError, match=says):
        env.reset(seed=0)
        env.step(np.zeros(2, np.int64))


def registered(monkeypatch, kind):
    """Two environments of a class, under an id that is forgotten after the test."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Odd-v0", kind)
    return parcade.make_vec("Odd-v0", 2)


class ThirdStep(gymnasium.Env):
    """Returns ``later`` from its third step, and usual values before."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        later = self.later if self.steps == 3 else (1.0, False, False, {})
        return (np.zeros(1, np.float32), *later)


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ((None, False, False, {}), "returned reward None from step; expected a finite number"),
        ((float("nan"), False, False, {}), "returned reward nan from step; expected a finite number"),
        ((np.float32("inf"), False, False, {}), r"returned reward .*inf.* from step; expected a finite"),
        (("1", False, False, {}), "returned reward '1' from step; expected a finite number"),
        ((np.ones(2), False, False, {}), r"returned reward array\(\[1., 1.\]\) from step; expected a"),
        ((1.0, "no", False, {}), "returned terminated 'no' from step; expected True or False"),
        ((1.0, False, None, {}), "returned truncated None from step; expected True or False"),
        ((1.0, False, {}), r"does not follow the interface of gymnasium.Env.step \(not enough values"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of Gymnasium's checker
def test_a_reward_or_end_that_is_none_is_named_at_its_first_step(monkeypatch, later, says):
    env = registered(monkeypatch, type("Odd", (ThirdStep,), {"later": later}))
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(UsageError, match=f"^Odd-v0 {says}"):
        env.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("later", [(1, 0, np.bool_(True), {}), (np.float64(1), np.array([False]), 1, {})])
@pytest.mark.filterwarnings("ignore")  # of Gymnasium's checker
def test_rewards_and_ends_may_be_other_kinds_of_numbers(monkeypatch, later):
    env = registered(monkeypatch, type("Odd", (ThirdStep,), {"later": later}))
    env.reset(seed=0)
    for _ in range(3):
        _, rewards, terminated, truncated, infos = env.step(np.zeros(2, np.int64))
    assert rewards.tolist() == [1, 1] and truncated.all() and not terminated.any() and "final_obs" in infos


@pytest.mark.filterwarnings("ignore")  # of Gymnasium's checker
def test_an_environment_of_another_interface_is_named_and_its_own_errors_keep_their_stacks(monkeypatch):
    class NoSeed(ThirdStep):
        def reset(self):
            return super().reset()

    with pytest.raises(UsageError, match=r"Odd-v0 does not follow the interface of gymnasium.Env.reset \("):
        registered(monkeypatch, NoSeed).reset(seed=0)

    class Fails(ThirdStep):
        def step(self, action):
            raise ValueError("mine")

    env = registered(monkeypatch, Fails)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="^mine$"):
        env.step(np.zeros(2, np.int64))

    class Ragged(ThirdStep):
        def reset(self, *, seed=None, options=None):
            return [[1, 2], [3]], {}

    with pytest.raises(UsageError, match=r"Odd-v0 returned an observation from reset that is no array \("):
        registered(monkeypatch, Ragged).reset(seed=0)


def test_an_error_of_an_environment_in_gymnasium_is_its_own():
    with pytest.raises(ValueError, match="option") as found:
        parcade.make_vec("CartPole-v1", 2).reset(options={"low": "x"})
    assert not isinstance(found.value, UsageError)


@pytest.mark.filterwarnings("ignore")  # of Gymnasium's checker
def test_usual_values_of_a_step_are_checked_without_a_call(monkeypatch):
    """With calls, the checks take 5 % of a step of CartPole, and 40 % with scalars of NumPy."""

    class Usual(ThirdStep):
        def step(self, action):
            return np.zeros(1, np.float32), self.reward, np.bool_(False), False, {}

    env = registered(monkeypatch, Usual)
    env.reset(seed=0)
    for name in ("_check_observation", "_check_number"):
        monkeypatch.setattr(CheckedEnv, name, lambda *given, **how: pytest.fail("called"))
    for reward in (1.0, 1, np.float64(1), np.float32(1)):
        monkeypatch.setattr(Usual, "reward", reward, raising=False)
        env.step(np.zeros(2, np.int64))
