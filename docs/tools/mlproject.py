"""Writes MLproject from the commands themselves: python docs/tools/mlproject.py."""

import importlib.util
import textwrap
from pathlib import Path

import click
import yaml

from mlflow_b3.cli import main
from mlflow_b3.options import OPTIONS, PROJECT

ROOT = Path(__file__).parents[2]
FILE = ROOT / "MLproject"
INTRODUCTION = """# Written by docs/tools/mlproject.py from the commands themselves; do not edit.
# All parameters are strings with defaults, because an entry point cannot leave an option out: an empty
# one is not given. Paths are not of MLflow's type `path`, which would be resolved against the caller's
# folder instead of this one.
name: mlflow-b3

python_env: python_env.yaml

entry_points:
"""
#: The commands that are entry points, and what their users should know.
COMMANDS = {
    "audit": "without a model the embedded demonstration is audited",
    "compare": "models are URIs or ids of runs or audits with commas between them; without data their "
    "recorded audits are compared",
    "gate": "a registered version against a policy; `mlflow run` itself ends with 1 whatever the "
    "verdict's exit code is, so read the verdict in its output",
}
#: The experiments of the papers, which are outside of the package, so that no command of it runs them.
REPRODUCE = ROOT / "examples" / "papers" / "reproduce.py"
REPRODUCE_NOTE = (
    "experiments of the papers by name, beside the published numbers; `list` names them all"
)
#: What the registry says is not for projects, such as whether to write to MLflow: `mlflow run` does.
LEFT_OUT = {option.parameter for option in OPTIONS.values() if PROJECT not in option.where}


def mlproject() -> str:
    """Return the file: an entry point for each of the commands, and one for the experiments."""
    entries = [
        _entry_point(name, note, ["-m", "mlflow_b3", name], main.commands[name].params)
        for name, note in COMMANDS.items()
    ]
    path = REPRODUCE.relative_to(ROOT).as_posix()
    entries.append(_entry_point("reproduce", REPRODUCE_NOTE, [path], reproduce_command().params))
    return INTRODUCTION + "\n".join(entries)


def reproduce_command() -> click.Command:
    """Return the command of the experiments."""
    spec = importlib.util.spec_from_file_location("reproduce", REPRODUCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def _entry_point(name: str, note: str, program: list[str], params: list[click.Parameter]) -> str:
    # a switch, such as --full, takes no value
    given = [p for p in params if p.name not in LEFT_OUT and not getattr(p, "is_flag", False)]
    words = ["python", *program, *map(_word, given)]
    lines = [
        f"  {name}:",
        *_wrapped(note, "    # "),
        "    parameters:",
        *(f"      {each.name}: {{type: string, default: {_default(each)}}}" for each in given),
        "    command: >-",
        *_wrapped(" ".join(words), "      "),
    ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=100,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _word(parameter: click.Parameter) -> str:
    value = f"{{{parameter.name}}}"
    return value if isinstance(parameter, click.Argument) else f"{parameter.opts[0]} {value}"


def _default(parameter: click.Parameter) -> str:
    default = parameter.default
    text = str(default) if isinstance(default, str | int) else ""
    return yaml.safe_dump(text, default_style=None if text.isalpha() else '"').split("\n")[0]


if __name__ == "__main__":
    FILE.write_text(mlproject(), encoding="utf-8")
