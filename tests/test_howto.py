"""The complete examples of the how-to pages do what the pages say."""

import importlib
import importlib.metadata
import re
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest

import parcade
from parcade import plugins
from parcade.algorithms.table import ALGORITHMS
from parcade.cli import main
from parcade.envs.backends import BACKENDS
from parcade.files.run_directory import read_json

PAGES = Path(__file__).resolve().parents[1] / "docs" / "howto"
MODULE = re.compile(r"```python\n# my_package/(\w+\.py)\n(.*?)```", re.DOTALL)
TRAINING = ["--total-frames", "2000", "--threads-per-rank", "1"]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Imports the module on a page, as an entry point does; undoes its registrations."""
    before = dict(ALGORITHMS), dict(BACKENDS), dict(gymnasium.registry)

    def run(page: str) -> ModuleType:
        file, source = MODULE.search((PAGES / page).read_text()).groups()
        (tmp_path / file).write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(Path(file).stem)

    yield run
    for table, rows in zip((ALGORITHMS, BACKENDS, gymnasium.registry), before, strict=True):
        table.clear()
        table.update(rows)


def test_the_environment_of_the_page_trains_by_its_id(example, tmp_path, monkeypatch):
    class Entry:
        def load(self):
            example("environment.md")

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Entry()] if group == "parcade" else []
    )
    plugins.load_plugins.cache_clear()
    envs = parcade.make_vec("mine/Corridor-v0", num_envs=4)
    assert envs.reset(seed=0)[0].shape == (4, 8)
    envs.close()
    plugins.load_plugins.cache_clear()
    run = tmp_path / "run"
    assert main(["train", "mine/Corridor-v0", *TRAINING, "--run-dir", str(run)]) == 0
    assert read_json(run / "result.json")["episodes"] > 0


def test_the_algorithm_of_the_page_trains_with_its_own_flag(example, tmp_path):
    example("algorithm.md")
    flags = ["--algorithm", "optimist", "--pessimism", "0.2", *TRAINING]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    assert read_json(tmp_path / "run" / "config.json")["hyper"]["pessimism"] == 0.2
    assert main(["train", "tiny_catch", "--algorithm", "optimist", "--pessimism", "2"]) == 2


def test_the_backend_of_the_page_shows_pictures_in_a_mirror(example):
    example("backend.md")
    mirrored, usual = (parcade.make_vec("pong", 2, backend=name) for name in ("mirrored", "native"))
    seen, expected = mirrored.reset(seed=1)[0], usual.reset(seed=1)[0]
    assert np.array_equal(seen, expected[..., ::-1]) and not np.array_equal(seen, expected)
    seen, expected = (env.step(np.array([2, 3]))[0] for env in (mirrored, usual))
    assert np.array_equal(seen, expected[..., ::-1])
    for env in (mirrored, usual):
        env.close()
    with pytest.raises(parcade.UsageError, match="shows grey pictures, got rgb"):
        parcade.make_vec("pong", 2, "mirrored", observations="rgb")
