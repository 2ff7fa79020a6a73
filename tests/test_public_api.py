"""The public names: what users import, and the types that a type checker sees (``make types``)."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, assert_type

import gymnasium
import gymnasium.vector
import numpy as np
import pytest
import torch

import parcade
from parcade.agent import Agent
from parcade.envs.native_async import AsyncNativeVectorEnv
from parcade.report.callbacks import Report
from parcade.rl.returns import discounted_returns

pytestmark = pytest.mark.quick
PACKAGE = Path(parcade.__file__).parent


def test_the_stub_has_every_public_name_from_the_module_it_comes_from() -> None:
    imports = [
        (alias.asname or alias.name, node.module, alias.name)
        for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]
    stubbed = {name: (module, original) for name, module, original in imports}
    assert {*stubbed, "__version__"} == set(parcade.__all__)
    for name, (module, original) in stubbed.items():
        assert getattr(importlib.import_module(module), original) is getattr(parcade, name)


def test_the_page_of_the_python_interface_lists_every_public_name_and_its_file() -> None:
    page = (PACKAGE.parent / "docs" / "api.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \|.*?\]\(\.\./parcade/([\w/]+\.py)\)", page, re.MULTILINE))
    assert {*listed, "__version__"} == set(parcade.__all__)
    for name, path in listed.items():
        assert Path(inspect.getsourcefile(getattr(parcade, name)) or "") == PACKAGE / path
        assert f"::: parcade.{name}\n" in page, "the site has its docstring"


def test_the_package_tells_type_checkers_that_it_has_types() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_environments_have_the_types_that_the_annotations_promise() -> None:
    env = parcade.make_vec("tiny_catch", num_envs=2)
    assert_type(env, gymnasium.vector.VectorEnv)
    observations, _ = env.reset(seed=0)
    assert observations.shape == (2, 1, 6, 5)
    env.close()


def test_functions_of_tensors_return_tensors() -> None:
    ones = torch.ones(3, 2)
    returns = discounted_returns(ones, ones, torch.zeros(2))
    assert_type(returns, torch.Tensor)
    assert returns[0].tolist() == [3.0, 3.0]


def uses_of_the_public_api(run: Path) -> None:
    """Only for the type checker."""
    agent = parcade.load(run)
    assert_type(agent, Agent)
    assert_type(agent.act(np.zeros((1, 4, 84, 84), np.uint8), greedy=True), np.ndarray)
    assert_type(parcade.make("pong", render_mode="rgb_array"), gymnasium.Env)
    assert_type(parcade.make_vec("pong", 4, batch_size=2), AsyncNativeVectorEnv)
    assert_type(parcade.make_vec("pong", 4, batch_size=None), gymnasium.vector.VectorEnv)
    assert_type(parcade.make_vec(["pong", "breakout"], 4, "native", "cuda"), gymnasium.vector.VectorEnv)
    assert_type(parcade.Arcade("pong", 2).act(np.zeros(2, np.int64)), np.ndarray)
    config = parcade.TrainConfig(
        "pong", parcade.RunConfig(total_frames=1000), parcade.EnvSettings(noop_max=0)
    )
    assert_type(parcade.start_run(config), Path)
    assert_type(parcade.run_training(config, run), dict[str, Any] | None)

    def ends(report: Report) -> bool:
        return report.frames > 500

    def shows(report: Report) -> None:
        print(report.score_mean)

    parcade.learn("pong", callbacks=ends)
    parcade.learn("pong", callbacks=parcade.Callback())
    parcade.learn("pong", callbacks=[ends, shows, parcade.Callback()])
    assert_type(parcade.learn("pong", callbacks=None), parcade.Trained)
