"""What all results share: frozen dataclasses of plain numbers that travel as JSON."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Self

#: Metadata of a field that grows with the rows of the table: it is kept in files of its own.
KEPT_APART = {"kept_apart": True}


class Result:
    """Base of the result dataclasses: `to_dict`, `from_dict` and `to_json`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings, numbers, booleans and None."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields
            if not field.metadata.get("kept_apart")
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return strict JSON: a number that is not finite is an error, never `NaN`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build the result from what `to_json` returned."""
        return cls.from_dict(json.loads(text, parse_constant=_refuse))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the result from what `to_dict` returned; unknown keys are an error."""
        if not isinstance(values, dict):
            raise TypeError(f"{cls.__name__} is a dictionary, not {values!r}.")
        hints = typing.get_type_hints(cls)
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(values) - names)
        if unknown:
            raise TypeError(f"{cls.__name__} has no fields {unknown}; it has {sorted(names)}.")
        return cls(**{name: _typed(hints[name], value, name) for name, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number.")


def _typed(hint: Any, value: Any, name: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _typed(options[0], value, name)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name} is a list, not {value!r}.")
        items = typing.get_args(hint)
        if len(items) == 2 and items[1] is Ellipsis:
            return tuple(_typed(items[0], item, name) for item in value)
        pairs = zip(items, value, strict=True)
        return tuple(_typed(item_hint, item, name) for item_hint, item in pairs)
    if isinstance(hint, type) and issubclass(hint, Result):
        return hint.from_dict(value)
    _check_kind(hint, value, name)
    return value


def _check_kind(hint: Any, value: Any, name: str) -> None:
    """Raise a `TypeError` for a value that is not of the kind that a field holds."""
    kinds: dict[Any, Any] = {float: Real, int: Integral, str: str, dict: Mapping}
    kind = kinds.get(typing.get_origin(hint) or hint)
    if kind is None:
        return
    if not isinstance(value, kind) or (kind in (Real, Integral) and isinstance(value, bool)):
        raise TypeError(f"{name} is a {kind.__name__}, not {value!r}.")
    if kind is Real:
        float(value)  # a whole number may be too large for one
