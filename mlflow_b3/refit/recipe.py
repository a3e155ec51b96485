"""The training recipe of a neural network: given by the user, or logged with the run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_b3.errors import InputError, ModelError, closest
from mlflow_b3.refit.interface import Source

#: How runs spell what a recipe needs: people, PyTorch Lightning's autologging, Keras' autologging.
SPELLINGS = {
    "epochs": ("epochs", "max_epochs", "num_epochs", "n_epochs"),
    "learning_rate": ("learning_rate", "lr", "opt_learning_rate", "optimizer_learning_rate"),
    "batch_size": ("batch_size", "train_batch_size"),
    "optimizer": ("optimizer", "optimizer_name", "opt_name"),
    "loss": ("loss", "loss_fn", "loss_function", "criterion"),
    "shuffle": ("shuffle",),
    "weight_decay": ("weight_decay", "opt_weight_decay", "optimizer_weight_decay"),
    "momentum": ("momentum", "opt_momentum", "optimizer_momentum"),
    "nesterov": ("nesterov", "opt_nesterov", "optimizer_nesterov"),
}
#: What optimizers take beside the learning rate; where a recipe is silent, their own defaults hold.
OPTIMIZER_SETTINGS = ("weight_decay", "momentum", "nesterov")
EXAMPLE = (
    "refit_options={'epochs': 20, 'learning_rate': 0.001, 'batch_size': 32, 'optimizer': 'Adam', "
    "'loss': 'cross_entropy'}"
)
GIVEN, LOGGED = "from refit_options", "from the run's parameters"
DEFAULT = "by default"
#: What autologging writes about a training, and no recipe here repeats; and how it writes nothing.
OTHERS = ("class_weight", "validation_split", "steps_per_epoch", "patience")
NOTHING = ("None", "0", "0.0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is known about a training, and from where.

    Attributes
    ----------
    values : mapping of str to value
        By the names of `SPELLINGS`; a `batch_size` of None is all rows at once.
    origins : mapping of str to str
        Where each of them comes from, in words for the report.
    problems : tuple of str
        What was logged but could not be used.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def missing(self, required: Iterable[str]) -> list[str]:
        """Return what is required but not known."""
        return [name for name in required if name not in self.values]

    def completed(self, origin: str, **values: Any) -> "Recipe":
        """Return the recipe with values from another origin for what it does not say."""
        new = {name: value for name, value in values.items() if name not in self.values}
        return Recipe(
            values={**self.values, **new},
            origins={**self.origins, **dict.fromkeys(new, origin)},
            problems=self.problems,
        )

    def without(self, *names: str) -> "Recipe":
        """Return the recipe without what the user did not say about these."""
        gone = [name for name in names if self.origins.get(name) != GIVEN]
        return Recipe(
            values={name: value for name, value in self.values.items() if name not in gone},
            origins={name: origin for name, origin in self.origins.items() if name not in gone},
            problems=self.problems,
        )

    def settings(self) -> dict[str, Any]:
        """Return what the optimizer is given beside the learning rate."""
        return {name: self.values[name] for name in OPTIMIZER_SETTINGS if name in self.values}

    def note(self, route: str) -> str:
        """Return the sentence for the report."""
        known = [name for name in SPELLINGS if name in self.values]
        listed = ", ".join(f"{name}={_shown(name, self.values[name])}" for name in known)
        origins: dict[str, list[str]] = {}
        for name in known:
            origins.setdefault(self.origins[name], []).append(name)
        told = "; ".join(f"{', '.join(names)} {origin}" for origin, names in origins.items())
        return f"{route} training with {listed} ({told})"


def read_recipe(
    source: Source, names: Mapping[str, Callable[[Any], Any]], more: Iterable[str] = ()
) -> Recipe:
    """Return the recipe in the user's options and in the run's parameters; the options win.

    Parameters
    ----------
    source : Source
    names : mapping of str to callable
        What makes of the name of an `optimizer` or a `loss` one that the library knows; a
        `ValueError` says which there are.
    more : iterable of str
        Options beside those of a recipe.
    """
    checks = {**CHECKS, **names}
    options = source.require_options(*checks, *more)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    problems = []
    for name, check in checks.items():
        if name in options:
            try:
                values[name] = check(options[name])
            except ValueError as error:
                raise InputError(
                    f"refit_options {name}={options[name]!r} must be {error}."
                ) from error
            origins[name] = GIVEN
            continue
        found = _logged(name, check, source.params)
        if isinstance(found, str):
            problems.append(found)
        elif found is not None:
            values[name], origins[name] = found[0], LOGGED
    return Recipe(values=values, origins=origins, problems=tuple(problems))


def not_repeated(params: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on what a run logs about its training that no recipe here has."""
    said = [f"{name}={params[name]}" for name in OTHERS if params.get(name) not in (None, *NOTHING)]
    return (f"not repeated, although the run logs it: {', '.join(said)}",) if said else ()


def one_of(value: Any, known: Mapping[str, str]) -> str:
    """Return the name that a value stands for, by names without case, spaces and underscores."""
    name = plain(value) if isinstance(value, str) else ""
    if name not in known:
        words = list(dict.fromkeys(known.values()))
        hint = closest(str(value), words).replace(" Did", " (did").replace("?", "?)")
        raise ValueError(f"one of {', '.join(map(repr, words))}{hint}")
    return known[name]


def plain(name: str) -> str:
    """Return a name in small letters and without what separates words."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _logged(
    name: str, check: Callable[[Any], Any], params: Mapping[str, str]
) -> tuple[Any] | str | None:
    """Return what the run says, in a tuple; or why it cannot be used; or None for nothing."""
    said = {spelling: params[spelling] for spelling in SPELLINGS[name] if spelling in params}
    understood: dict[str, Any] = {}
    refused = []
    for spelling, text in said.items():
        try:
            understood[spelling] = check(text)
        except ValueError as error:
            if text != "None":  # what autologging writes for an argument that was left out
                refused.append(f"the run's {spelling}={text!r} is not {error}")
    if len(set(understood.values())) > 1:
        both = " and ".join(f"{spelling}={said[spelling]!r}" for spelling in understood)
        return f"the run logs both {both}"
    if understood:
        return (next(iter(understood.values())),)
    return refused[0] if refused else None


def incomplete(route: str, missing: Iterable[str], recipe: Recipe) -> ModelError:
    """Return the error for a recipe that lacks something."""
    lacking = ", ".join(map(repr, missing))
    where = (
        "refit_options (the epochs logged with a run are those of its whole training)"
        if route == "hot-start"
        else "refit_options or the run's parameters"
    )
    logged = f" ({'; '.join(recipe.problems)})" if recipe.problems else ""
    return ModelError(
        f"refit={route!r} needs a complete training recipe, and {where} lack {lacking}{logged}. Give "
        f"what is missing, such as {EXAMPLE}; or use refit='last-layer' or a trainer."
    )


def _shown(name: str, value: Any) -> Any:
    return "all" if name == "batch_size" and value is None else value


def _whole(value: Any) -> int:
    message = "a whole number from 1"
    if isinstance(value, bool):
        raise ValueError(message)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(message) from error
    if number != int(number) or number < 1:
        raise ValueError(message)
    return int(number)


def _batch(value: Any) -> int | None:
    try:
        return None if value == "all" else _whole(value)
    except ValueError as error:
        raise ValueError(f"{error}, or 'all'") from error


def _number(*, positive: bool) -> Callable[[Any], float]:
    message = "a number above 0" if positive else "a number from 0"

    def check(value: Any) -> float:
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError) as error:
            raise ValueError(message) from error
        if not 0 <= number < float("inf") or (positive and number == 0):
            raise ValueError(message)
        return number

    return check


def _flag(value: Any) -> bool:
    flags = {"true": True, "false": False}
    try:
        return flags[str(value).lower()]
    except KeyError as error:
        raise ValueError("true or false") from error


CHECKS: dict[str, Callable[[Any], Any]] = {
    "epochs": _whole,
    "learning_rate": _number(positive=True),
    "batch_size": _batch,
    "shuffle": _flag,
    "weight_decay": _number(positive=False),
    "momentum": _number(positive=False),
    "nesterov": _flag,
}
