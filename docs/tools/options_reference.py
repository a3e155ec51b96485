"""Writes docs/reference/options.md from the registry: python docs/tools/options_reference.py."""

from pathlib import Path

from mlflow_b3.options import EVALUATOR, GROUPS, OPTIONS, PROJECT, PYTHON, Option

PAGE = Path(__file__).parents[1] / "reference" / "options.md"
INTRODUCTION = """# The options of an audit

<!-- Written by docs/tools/options_reference.py from mlflow_b3/options.py; do not edit. -->

One option has one name: it is an argument of [`mlflow_b3.audit`](python/audit.md#mlflow_b3.audit), an option of
[`mlflow-b3 audit`](cli.md#mlflow-b3-audit), a parameter of the MLflow project's entry point `audit`, and a key of
[the evaluator `b3`](../howto/evaluate.md). The exceptions are in the last column. Those that *change numbers* are
committed by [`preregister`](../howto/preregister.md).

In Python the rarer ones have a place in a value: `design.scheme` is the field `scheme` of
[`Design`](python/audit.md#mlflow_b3.Design), given as `design=b3.Design(scheme="replace")`. The others are
[`LinkageEvidence`](python/audit.md#mlflow_b3.LinkageEvidence) in `linkage`, [`RefitOptions`](python/audit.md#mlflow_b3.RefitOptions) in
`refit`, and [`Running`](python/audit.md#mlflow_b3.Running) in `running`. Their own names work too, `scheme="replace"`, and are
the only ones on the command line and in configurations.
"""
HEADER = "| option | in Python | command line | default | changes numbers | what it is | not in |\n|---|---|---|---|---|---|---|"
PLACES = {
    PYTHON: "Python",
    "audit": "`mlflow-b3 audit`",
    PROJECT: "MLproject",
    EVALUATOR: "evaluator",
}


def options_reference() -> str:
    """Return the page: a table for each group of options."""
    return "\n".join([INTRODUCTION, *map(_section, GROUPS)])


def _section(group: str) -> str:
    rows = [_row(option) for option in OPTIONS.values() if option.group == group]
    return "\n".join([f"## {group}\n", HEADER, *rows, ""])


def _row(option: Option) -> str:
    cells = [
        f"`{option.name}`",
        f"`{option.inside or option.name}`" if PYTHON in option.where else "",
        _on_the_command_line(option),
        _default(option),
        "yes" if option.changes_numbers else "no",
        option.help,
        ", ".join(words for place, words in PLACES.items() if place not in option.where),
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _on_the_command_line(option: Option) -> str:
    if "audit" not in option.where:
        return ""
    switch = "/" in option.flags
    return f"`{option.flags}`" if switch else f"`{option.flags} {option.type.name}`"


def _default(option: Option) -> str:
    here, there = option.default, option.command_line_default
    if here == there or there is None:
        return "" if here is None else f"`{here}`"
    return f"`{here}`; `{there}` on the command line"


if __name__ == "__main__":
    PAGE.write_text(options_reference(), encoding="utf-8")
