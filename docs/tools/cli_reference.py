"""Writes docs/reference/cli.md from the commands themselves: python docs/tools/cli_reference.py."""

from pathlib import Path

import click

from mlflow_b3.cli import main

PAGE = Path(__file__).parents[1] / "reference" / "cli.md"
INTRODUCTION = """# The command line

<!-- Written by docs/tools/cli_reference.py from the commands themselves; do not edit. -->

[The options of an audit](options.md) are also those of Python, of MLproject and of the evaluator. Options that
take a SHARE want a number between 0 and 1, or a range as LOW,HIGH. An empty text counts as
nothing given. `mlflow-b3 --version` prints the version.
"""


def cli_reference() -> str:
    """Return the page: every command with its options."""
    commands = [_command(name, main.commands[name]) for name in sorted(main.commands)]
    return "\n".join([INTRODUCTION, f"{_prose(main)}\n", *commands])


def _command(name: str, command: click.Command) -> str:
    rows = [_row(option) for option in command.params if isinstance(option, click.Option)]
    context = click.Context(command, info_name=f"mlflow-b3 {name}")
    table = "| option | value | what it does |\n|---|---|---|\n" + "\n".join(rows)
    usage = f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    own = f"## mlflow-b3 {name}\n\n{_prose(command)}\n\n{usage}\n"
    parts = [f"{own}\n{table}\n" if rows or not isinstance(command, click.Group) else own]
    for each, child in getattr(command, "commands", {}).items():
        parts += [] if child.hidden else [_command(f"{name} {each}", child)]
    return "\n".join(parts)


def _prose(command: click.Command) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    choices = getattr(option.type, "choices", None)
    value = " or ".join(f"`{choice}`" for choice in choices) if choices else f"{option.type.name}"
    if option.is_flag:
        value = ""
    default = f" Default: `{option.default}`." if option.show_default else ""
    text = f"{option.help or ''}{default}".replace("|", "\\|")
    return f"| {names} | {value.replace('|', ' or ')} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(cli_reference(), encoding="utf-8")
