"""The files around the package: workflows, citation, container, notebook, wheel."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import parcade

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps(workflow: Path) -> list[dict]:
    """All steps of all jobs, with the values of each job's matrix put in."""
    found = []
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            texts = [json.dumps(step)]
            for key, values in matrix.items():
                name = f"${{{{ matrix.{key} }}}}"
                texts = [text.replace(name, value) for text in texts for value in values]
            found += [json.loads(text) for text in dict.fromkeys(texts)]
    return found


def make_targets(commands: str) -> list[str]:
    """The targets of every ``make`` in some lines of shell, in the foreground or in the background."""
    lines = re.findall(r"^(?:make|background \w+)((?: [\w-]+(?!\S))+)", commands, re.MULTILINE)
    return [target for line in lines for target in line.split()]


def test_workflows_and_ci_run_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [
        target for file in WORKFLOWS for step in steps(file) for target in make_targets(step.get("run", ""))
    ]
    of_ci = make_targets((ROOT / ".ci" / "run").read_text())
    checks = {each for each in targets if each.startswith("test")} | {"lint", "types", "docs"}
    assert checks - {"test-exact-gpu"} <= set(of_ci)  # which takes too long and runs at night
    assert {"lint", "types", "docs", "test", "test-wheel", "test-exact-gpu"} <= set(called)
    assert {*called, *(each for each in of_ci if not each.startswith("."))} <= targets
    assert all("uses" in step or make_targets(step["run"]) for file in WORKFLOWS for step in steps(file))


def test_the_tests_run_on_every_python_that_the_package_allows():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    claimed = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert tested == claimed
    low, high = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    assert claimed == [f"3.{minor}" for minor in range(int(low), int(high))]
    assert f"(3, {low}) <= sys.version_info < (3, {high})" in (ROOT / "Makefile").read_text()


def test_the_citation_names_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (parcade.__version__, PROJECT["license"])
    assert PROJECT["version"] == parcade.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]


def test_the_container_installs_extras_that_exist_and_the_makefiles_torch():
    text = (ROOT / "Containerfile").read_text()
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    (torch,) = re.findall(r"torch==[\d.]+", text)
    assert (
        torch in (ROOT / "Makefile").read_text()
        and torch in (ROOT / "tests" / "wheel" / "use.sh").read_text()
    )
    assert re.search(r"^USER \d+$", text, re.MULTILINE) and 'ENTRYPOINT ["parcade"]' in text


def test_the_notebook_is_stored_as_executed_from_top_to_bottom_and_names_no_machine():
    text = (ROOT / "examples" / "quickstart.ipynb").read_text()
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in code) and len(text) < 200_000
    assert not [output for output in outputs if output["output_type"] == "error"]
    said = json.dumps([{**each, "data": each.get("data", {}).get("text/plain")} for each in outputs])
    assert not re.search(r"(/tmp|/home|/root|/usr|/opt|/mnt)/", said)


def test_every_page_of_the_docs_is_in_the_navigation():
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    assert pages == listed - {"CONTRIBUTING.md", "CHANGELOG.md"}


def test_an_sdist_has_the_package_and_no_half_of_the_tests(tmp_path):
    # Setuptools adds tests/test_*.py by itself, without conftest.py and the directories that they need.
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info", "--egg-base"]
    subprocess.run([*command, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    files = (tmp_path / "parcade.egg-info" / "SOURCES.txt").read_text().splitlines()
    assert [name for name in files if name.startswith("tests/")] == []
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "README.md", "pyproject.toml"} <= set(files)
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "parcade" / "web" / "static").iterdir()}
    assert pages <= set(files) and "parcade/py.typed" in files


def test_a_wheel_with_a_rom_or_without_types_is_refused():
    spec = importlib.util.spec_from_file_location("contents", ROOT / "tests" / "wheel" / "contents.py")
    contents = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contents)
    good = [*contents.REQUIRED, "parcade/zoo/agents/pong/card.json"]
    assert contents.complaints(good) == []
    assert contents.complaints([*good, "parcade/pong.bin"]) == ["parcade/pong.bin is there"]
    for left in ("rom-6a.o", "rom-6a.ptx", "rom-6a.notes1", "__pycache__/pong.txt"):
        assert contents.complaints([*good, f"parcade/atari/{left}"])
    assert contents.complaints(good[1:]) == ["parcade/py.typed is missing"]
