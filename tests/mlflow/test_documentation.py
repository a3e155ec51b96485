"""Everything that a user can meet is documented, and what is documented exists."""

import ast
import doctest
import importlib.util
import re
import shlex
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport, linkage
from mlflow_b3.auditing.comparison import compare_reports
from mlflow_b3.cli import main
from mlflow_b3.evidence.policy import SECTIONS, default_policy_text
from mlflow_b3.reporting.comparison import comparison_files
from mlflow_b3.results import CODES
from mlflow_b3.tracking.metrics_and_files import curves_of, files_of, metrics_of, parameters_of

pytestmark = pytest.mark.newest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / file for file in FILES), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Options of other programs that our pages name.
FOREIGN_OPTIONS = {"--env-manager", "--constraint", "--app-name", "--nthreads"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tool(module: str) -> ModuleType:
    """Load one of the programs with which the pages are made."""
    spec = importlib.util.spec_from_file_location(module, DOCS / "tools" / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", text_of(path))


def blocks(path: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(text_of(path)) if language in languages]


# --- commands -------------------------------------------------------------------------------------


def options(command: click.Command) -> set[str]:
    given = [each for each in command.params if isinstance(each, click.Option)]
    own = {name for each in given for name in (*each.opts, *each.secondary_opts)}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def test_the_reference_of_the_command_line_is_in_step():
    told = "run python docs/tools/cli_reference.py"
    assert text_of(DOCS / "reference" / "cli.md") == tool("cli_reference").cli_reference(), told


def test_the_table_of_options_is_in_step():
    told = "run python docs/tools/options_reference.py"
    page = text_of(DOCS / "reference" / "options.md")
    assert page == tool("options_reference").options_reference(), told


def test_the_mlflow_project_is_in_step():
    told = "run python docs/tools/mlproject.py"
    assert text_of(ROOT / "MLproject") == tool("mlproject").mlproject(), told


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_option_of_a_command_is_documented(command):
    page = text_of(DOCS / "reference" / "cli.md")
    sections = re.split(r"^## mlflow-b3 ", page, flags=re.MULTILINE)
    section = "".join(each for each in sections if each.split()[:1] == [command])
    assert set(re.findall(r"`(--[\w-]+)`", section)) >= options(main.commands[command])


def command_lines(path: Path) -> Iterator[list[str]]:
    """Yield the calls of our command in a page's blocks for the shell, word by word."""
    for block in blocks(path, "sh", "yaml"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("run: ", "").strip(), comments=True)
            if "mlflow-b3" in words[:1]:
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_shell_commands_of_a_page_have_options_that_exist(page):
    for command, *words in command_lines(page):
        assert command in main.commands
        given = {word for word in words if word.startswith("--")}
        assert given <= options(main.commands[command]), (command, words)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_that_a_page_speaks_of_exist(page):
    known = {option for each in main.commands.values() for option in options(each)}
    spans = re.findall(r"`(?:mlflow-b3 \w+ )?(--[\w-]+)", prose_of(page))
    assert set(spans) <= known | FOREIGN_OPTIONS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_parameters_of_the_mlflow_project_in_a_page_exist(page):
    project = yaml.safe_load(text_of(ROOT / "MLproject"))["entry_points"]
    known = {parameter for entry in project.values() for parameter in entry["parameters"]}
    assert set(re.findall(r"-P (\w+)=", text_of(page))) <= known


# --- findings and names ---------------------------------------------------------------------------


def test_every_finding_is_documented_by_its_code_and_title():
    rows = re.findall(r"^\| (B\d+) \| (.*?) \|", text_of(DOCS / "findings.md"), re.MULTILINE)
    assert dict(rows) == CODES


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_codes_of_findings_in_a_page_exist(page):
    assert set(re.findall(r"\bB3\d\d\b", text_of(page))) <= {*CODES}


@pytest.mark.parametrize(
    ("pages", "package"),
    [(["api.md", "python/*.md"], mlflow_b3), (["linkage.md"], linkage)],
    ids=["mlflow_b3", "mlflow_b3.linkage"],
)
def test_every_public_name_is_in_the_reference_once(pages, package):
    found = [path for page in pages for path in sorted((DOCS / "reference").glob(page))]
    text = "\n".join(map(text_of, found))
    shown = re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.MULTILINE)
    elsewhere = {"__version__", "linkage"} if package is mlflow_b3 else set()
    assert sorted([*shown, *elsewhere]) == package.__all__
    assert all(each in text for each in elsewhere)


def test_names_of_modules_in_the_reference_of_linkage_exist():
    """Result classes and special functions are documented where the façade has no name for them."""
    text = text_of(DOCS / "reference" / "linkage.md")
    shown = re.findall(r"^::: (mlflow_b3\.linkage\.\w+)\.(\w+)$", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert [each for each in shown if not hasattr(import_module(each[0]), each[1])] == []
    assert {each for _, each in shown} >= set(linkage._MOVED)


@pytest.mark.parametrize("package", [mlflow_b3, linkage], ids=["mlflow_b3", "mlflow_b3.linkage"])
def test_every_public_name_has_a_docstring(package):
    names = [each for each in package.__all__ if each != "__version__"]
    assert [each for each in names if not getattr(package, each).__doc__] == []


# --- what MLflow holds ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """Return an audit by doses that was told nothing: it has all curves, and the charts of both patterns."""
    clinic = mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)
    return mlflow_b3.audit(
        GaussianNB(),
        clinic.frame,
        target="disease",
        cluster="patient_id",
        method="dose",
        budget=40,
        n_jobs=1,
    )


def documented(section: str) -> list[str]:
    """Return the names in the first column of a section's table."""
    page = text_of(DOCS / "reference" / "metrics.md")
    body = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)
    return re.findall(r"`(.*?)`", " ".join(cells))


def test_every_metric_is_documented(report):
    assert sorted(documented("Metrics")) == sorted(metrics_of(report))


def test_every_curve_is_documented(report):
    assert sorted(documented("Curves")) == sorted(curves_of(report))


def test_every_file_is_documented(report):
    comparison = compare_reports({"one": report, "another": report})
    assert sorted(documented("Files")) == sorted([*files_of(report), *comparison_files(comparison)])


def tracking_sources() -> str:
    return "".join(
        path.read_text(encoding="utf-8")
        for path in (
            *(ROOT / "mlflow_b3" / "tracking").glob("*.py"),
            ROOT / "mlflow_b3" / "gating" / "attesting.py",
        )
    )


def test_every_tag_is_documented():
    """Some are on failed audits, superseded ones and versions only, so the source is asked."""
    written = set(re.findall(r'"(b3\.\w+)"', tracking_sources()))
    assert set(documented("Tags")) == written


def test_every_parameter_is_documented(report):
    """One audit does not have them all, so the source is asked for the others."""
    shown = documented("Parameters")
    assert set(parameters_of(report)) <= set(shown)
    source = (ROOT / "mlflow_b3" / "tracking" / "metrics_and_files.py").read_text(encoding="utf-8")
    body = source.partition("def parameters_of")[2].partition("\ndef ")[0]
    assert sorted(shown) == sorted(
        f"b3/{key}" for key in re.findall(r'^        "(\w+)":', body, re.M)
    )


def test_every_key_of_a_policy_is_documented_with_its_default():
    """A value that is left out has the default, so that must be where people look."""
    page = text_of(DOCS / "reference" / "policy.md")
    default = yaml.safe_load(default_policy_text())
    keys = {f"{part}.{key}": v for part in SECTIONS for key, v in default[part].items()}
    keys |= {key: default[key] for key in ("version", "inconclusive")}
    shown = dict(re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", page, re.MULTILINE))
    assert {key: yaml.safe_load(value) for key, value in shown.items()} == keys


# --- pages ----------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """Return the anchor of a heading, as Markdown's table of contents makes it."""
    plain = re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading)
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose_of(path), re.MULTILINE)
    shown = re.findall(r"^::: (\S+)$", prose_of(path), re.MULTILINE)  # names from docstrings
    return {*map(slug, headings), *shown}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_of_a_page_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", prose_of(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https:", "http:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/-]+\.md)$", text_of(ROOT / "mkdocs.yml"), re.MULTILINE)
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    made = [f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
    assert sorted(listed) == sorted([*pages, *made, "examples/index.md"])


@pytest.mark.parametrize("page", sorted((DOCS / "reference" / "python").glob("*.md")), ids=name)
def test_examples_of_the_reference_run_and_give_what_they_say(page):
    for code in blocks(page, "pycon"):
        example = doctest.DocTestParser().get_doctest(code, {}, page.stem, str(page), 0)
        failures: list[str] = []
        doctest.DocTestRunner(verbose=False).run(example, out=failures.append)
        assert not failures, "".join(failures)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_of_a_page_compiles(page):
    for code in blocks(page, "python"):
        ast.parse(code)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_our_names_in_a_pages_python_exist(page):
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                package = {"b3": mlflow_b3, "linkage": linkage}.get(node.value.id)
                assert package is None or hasattr(package, node.attr), node.attr


def test_a_page_that_loads_from_another_host_is_noticed():
    """The build refuses such pages: they could not be read without a network."""
    external_assets = tool("self_contained").external_assets
    assert external_assets('<a href="https://example.org">x</a><img src="a.png">') == []
    assert external_assets('<link rel="canonical" href="https://example.org">') == []
    loading = [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="//example.org/x.css">',
        '<img src="http://example.org/x.png">',
    ]
    assert [len(external_assets(html)) for html in loading] == [1, 1, 1]
