"""Every preset parses, and every preset named by the documentation and the benchmarks exists."""

import re
from pathlib import Path

import pytest

from parcade.presets import PRESETS, preset_flags
from parcade.training_flags import parse_training

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_parses_to_the_algorithm_it_names(name):
    config = parse_training(["pong", "--preset", name])
    flags = preset_flags(name)
    assert config.run.algorithm == flags[flags.index("--algorithm") + 1]
    assert config.run.total_frames == int(flags[flags.index("--total-frames") + 1])


def test_pong_fast_is_the_candidate_that_its_search_names(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from pong_search import CANDIDATES, START

    flags = [*START.split(), *CANDIDATES["minibatches_of_64_entropy_0.02"].split()]
    assert parse_training(["pong", "--preset", "pong_fast"]) == parse_training(["pong", *flags])


def test_presets_named_elsewhere_exist():
    pages = [ROOT / "README.md", ROOT / "Makefile", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.py")]
    named = {name for page in pages for name in re.findall(r"(?<!env)-preset ([a-z0-9_]+)", page.read_text())}
    assert {"pong_fast", "pong_impala", "karpathy_2016"} <= named
    assert named <= PRESETS.keys()
