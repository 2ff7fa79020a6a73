"""The docs list every metric, every algorithm and its flags, and the commands in them are accepted."""

import ast
import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest

from parcade.algorithms.table import ALGORITHMS, support_matrix
from parcade.presets import PRESETS
from parcade.report.metrics import METRICS
from parcade.training_flags import PresetFlags

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def training_commands() -> dict[str, list[str]]:
    """Arguments of every ``parcade train`` in the docs, also after ``parcade slurm --``, by file and line.

    Leaves out patterns that are not commands: those with dots or brackets, or with ``--help``.
    """
    found: dict[str, list[str]] = {}
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_block = re.match(r"(    |\$ )(parcade|mpiexec|torchrun|srun) ", line)
            texts = [line.split(" #")[0]] if is_block else re.findall(r"`([^`]+)`", line)
            for text in texts:
                command = re.search(r"(?:^|\s)(?:parcade|--) train (.+)", text)
                if command and not re.search(r"\.\.\.|\[", text) and "--help" not in text:
                    found[f"{page.relative_to(ROOT)}:{number}"] = shlex.split(command[1])
    return found


COMMANDS = training_commands()


def test_the_commands_of_the_docs_are_found():
    assert len(COMMANDS) > 30 and any("slurm.md" in place for place in COMMANDS)


@pytest.mark.parametrize("place", COMMANDS)
def test_a_training_command_in_the_docs_is_taken_as_it_stands(place):
    from parcade.commands.resume import resume_flags
    from parcade.config import check_divisible
    from parcade.training_flags import parse_training

    arguments = COMMANDS[place]
    if "--resume" in arguments:
        assert resume_flags(arguments).resume
        return
    config = parse_training(arguments)
    check_divisible(config, config.run.ranks)


def test_every_metric_has_its_row_with_the_meaning_that_the_dashboard_shows():
    text = (DOCS / "metrics.md").read_text().replace("`", "")
    rows = dict(re.findall(r"^\| ([\w/]+) \| ([^|]+) \|$", text, re.MULTILINE))
    # "..." continues the meaning before it; a row of the page repeats that in a few words, and may say more.
    meanings = {name: meaning.removeprefix("... ").replace("`", "") for name, meaning in METRICS.items()}
    assert [name for name, meaning in meanings.items() if meaning not in rows.get(name, "")] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_its_page_with_every_flag_and_none_that_is_gone(algorithm):
    page = DOCS / "algorithms" / f"{algorithm}.md"
    assert page.exists(), f"write {page}, as the pages of the other algorithms are"
    text = page.read_text()
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].config)}
    known = {f"--{name.replace('_', '-')}" for name in fields} | {
        "--preset",
        "--lstm",
        "--layer-norm",
        "--dueling",
        "--value-head",
        "--num-atoms",
        "--v-min",
        "--v-max",
        "--num-quantiles",
        "--normalize-input",
    }
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `--"))
    named = {flag.replace("--no-", "--") for flag in re.findall(r"--[a-z-]+", rows)}
    assert named and named <= known
    expected = {f"--{name.replace('_', '-')}" for name in fields - {"network"}}
    assert expected - named == set(), "hyper-parameters without a row"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_page_of_an_algorithm_numbers_the_deviations_of_its_docstring(algorithm):
    docstring = inspect.getmodule(ALGORITHMS[algorithm].make).__doc__
    page = (DOCS / "algorithms" / f"{algorithm}.md").read_text()
    in_code, in_docs = (
        re.findall(r"\(([1-9])\)", text.partition("Deviations")[2]) for text in (docstring, page)
    )
    assert in_docs == in_code or not in_code  # impala's docstring refers to that of vtrace


def test_the_architecture_page_names_every_module_of_its_seams():
    text = (DOCS / "architecture.md").read_text()
    paths = [
        path
        for folder in ("", "experience", "exchange")
        for path in sorted((ROOT / "parcade" / folder).glob("*.py"))
    ]
    assert [path.name for path in paths if not path.name.startswith("__") and path.name not in text] == []


def test_every_environment_setting_and_preset_is_on_its_page():
    from parcade.envs.settings import ENV_PRESETS, EnvSettings

    text = (DOCS / "environments.md").read_text()
    names = [f"`--{field.name.replace('_', '-')}" for field in dataclasses.fields(EnvSettings)]
    assert [name for name in [*names, *ENV_PRESETS] if name not in text] == []


def test_every_training_preset_has_its_row_among_the_commands():
    page = (ROOT / "docs" / "commands.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall("`(.*?)`", row)}
    assert set(PRESETS) <= listed, set(PRESETS) - listed
    assert all(name in inspect.getsource(PresetFlags) for name in PRESETS)


def test_the_support_matrix_in_the_docs_is_the_one_there_is():
    page = DOCS / "algorithms" / "README.md"
    assert support_matrix() in page.read_text(), f"copy this into {page}:\n{support_matrix()}"


# Phrases that STYLE and the glossary rule out, in texts that users read and in docstrings.
AVOIDED = re.compile(
    r"\b(anew|whoever|so many|gets? on\b(?! with)|beside|mend(s|ed)?|born|hands? (on|out)|stands\b(?! for)"
    r"|on its way|n_envs|num_workers|timesteps?)\b",
    re.IGNORECASE,
)


def texts() -> dict[str, str]:
    """Pages of the docs, the README, and every docstring of the package and the benchmarks, by place."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile", *DOCS.rglob("*.md")]
    found = {str(page.relative_to(ROOT)): page.read_text() for page in pages if page.name != "LOG.md"}
    for path in [*(ROOT / "parcade").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_text and isinstance(node.value.value, str):
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = node.value.value
    return found


def test_texts_use_the_glossarys_words():
    used = {place: match[0] for place, text in texts().items() if (match := AVOIDED.search(text))}
    assert used == {}
    assert AVOIDED.search("nobody mends it") and not AVOIDED.search("recommended, amended; stands for")


def test_metrics_and_flags_use_the_glossarys_words():
    names = set(METRICS) | {
        field.name for row in ALGORITHMS.values() for field in dataclasses.fields(row.config)
    }
    assert [name for name in names if re.search(r"timestep|n_envs|trajectory|worker|num_steps", name)] == []
    glossary = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", glossary, re.MULTILINE)
    terms = {term.strip() for cell, _ in rows for term in cell.split(",")}
    assert {"frame", "step", "update", "iteration", "episode", "game"} <= terms


STOP = re.compile(r"`([\w/]+\.py):(\d+)` `(\w+)`")


def line_of(file: str, function: str) -> int:
    """The line on which a function or method of a module begins."""
    tree = ast.parse((ROOT / "parcade" / file).read_text())
    return next(
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function
    )


def test_the_stops_of_an_observation_are_where_the_page_says():
    stops = STOP.findall((DOCS / "architecture.md").read_text())
    assert len(stops) >= 12
    assert [stop for stop in stops if line_of(stop[0], stop[2]) != int(stop[1])] == []


if __name__ == "__main__":
    page = DOCS / "architecture.md"
    page.write_text(STOP.sub(lambda m: f"`{m[1]}:{line_of(m[1], m[3])}` `{m[3]}`", page.read_text()))
