"""Writes MLproject from the commands themselves: python docs/tools/mlproject.py."""

import textwrap
from pathlib import Path

import click
import yaml

from mlflow_b3.cli import main
from mlflow_b3.options import OPTIONS, PROJECT

FILE = Path(__file__).parents[2] / "MLproject"
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
#: What the registry says is not for projects, such as whether to write to MLflow: `mlflow run` does.
LEFT_OUT = {option.parameter for option in OPTIONS.values() if PROJECT not in option.where}


def mlproject() -> str:
    """Return the file: an entry point for each of the commands."""
    return INTRODUCTION + "\n".join(_entry_point(name) for name in COMMANDS)


def _entry_point(name: str) -> str:
    given = [each for each in main.commands[name].params if each.name not in LEFT_OUT]
    words = ["python", "-m", "mlflow_b3", name, *map(_word, given)]
    lines = [
        f"  {name}:",
        *_wrapped(COMMANDS[name], "    # "),
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
