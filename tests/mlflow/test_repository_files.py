"""Files that GitHub and citation managers read: workflows, CITATION.cff, SECURITY.md."""

import re
from pathlib import Path

import pytest
import yaml

import mlflow_b3

pytestmark = pytest.mark.newest

ROOT = Path(__file__).parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
#: An action of somebody else, by the commit of a version.
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")


def steps(workflow: str, job: str) -> list[dict]:
    return WORKFLOWS[workflow]["jobs"][job]["steps"]


def test_the_citation_has_the_version_of_the_package_and_what_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mlflow_b3.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert all({"type", "title", "authors"} <= each.keys() for each in citation["references"])


def test_ci_runs_what_every_change_must_pass():
    assert ".ci/run" in [step.get("run") for step in steps("ci", "everything")]


def test_ci_tests_every_python_of_the_classifiers():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    assert WORKFLOWS["ci"]["jobs"]["pythons"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_may_only_read_unless_a_job_says_otherwise(workflow):
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_scripts_of_workflows_contain_no_expressions(workflow):
    """What GitHub writes into a script could be part of it: texts of others, such as names of branches."""
    for job in WORKFLOWS[workflow]["jobs"].values():
        assert not [step for step in job["steps"] if "${{" in step.get("run", "")]


def test_actions_of_others_are_named_by_a_commit():
    """A tag can be moved to other code; a commit cannot. Beside it is the version it belongs to."""
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "action.yml"]
    used = re.findall(r"\buses: (\S+)(.*)", "".join(each.read_text("utf-8") for each in files))
    assert len(used) > 5
    assert [name for name, version in used if not PINNED.match(f"{name}{version}")] == []


def test_no_job_leaves_a_token_of_git_to_what_it_runs():
    """Tests and builds run code of all dependencies."""
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    cloned = [step for job in jobs for step in job["steps"] if "/checkout@" in step.get("uses", "")]
    assert cloned
    assert all(step["with"]["persist-credentials"] is False for step in cloned)


def test_only_the_job_that_publishes_can_prove_who_it_is_and_runs_no_code_of_the_package():
    jobs = WORKFLOWS["release"]["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["environment"] == "pypi"
    assert not [step for step in steps("release", "publish") if "run" in step]
    published = steps("release", "publish")[-1]
    assert published["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert published["with"] == {"attestations": True}
