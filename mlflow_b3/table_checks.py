"""What is wrong with the columns of a table, in words that say what to do about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, closest
from mlflow_b3.losses import are_fractional
from mlflow_b3.table_findings import is_plain
from mlflow_b3.wording import shortened

MINIMUM_ROWS = 20
#: What notes about dtypes have in common.
IN_TABLE = "in the table, and"


def require_names(**arguments: object) -> None:
    """Raise an `InputError` for what cannot be the name of a column; None stands for no column."""
    problems = [
        f"{argument}={value!r} must be the name of a column, as text."
        for argument, value in arguments.items()
        if value is not None and not isinstance(value, str)
    ]
    if problems:
        raise InputError.from_problems("data", problems)


def shape_problems(frame: pd.DataFrame, target: str, cluster: str) -> list[str]:
    """Say which columns are not there, or that there are too few rows."""
    columns = [str(name) for name in frame.columns]
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:  # everything below would be ambiguous
        raise InputError(f"data: column names {doubled} occur more than once; rename or drop them.")
    problems = []
    for argument, name in (("target", target), ("cluster", cluster)):
        if name not in frame.columns:
            problems.append(
                f"{argument}={name!r} is not a column.{closest(str(name), columns)} "
                f"The columns are {shortened(columns)}."
            )
    if target == cluster:
        problems.append(f"target and cluster are the same column, {target!r}.")
    if len(frame) < MINIMUM_ROWS:
        problems.append(f"{len(frame)} rows are too few to audit; {MINIMUM_ROWS} is the least.")
    return problems


def target_problems(frame: pd.DataFrame, target: str, task: str) -> list[str]:
    """Say why the target cannot be predicted."""
    if target not in frame.columns:
        return []
    values = frame[target]
    if not is_plain(values):
        return [f"target {target!r} holds lists or arrays; one value per row is needed."]
    missing = int(values.isna().sum())
    if missing:
        return [f"target {target!r} is missing in {missing} rows; drop or fill them."]
    if values.nunique() < 2:
        return [f"target {target!r} has the same value in every row; there is nothing to predict."]
    if pd.api.types.is_complex_dtype(values):
        return [f"target {target!r} holds complex numbers; real ones or classes are needed."]
    if task == "regression" and not pd.api.types.is_numeric_dtype(values):
        return [f"target {target!r} has dtype {values.dtype}, but the model is a regressor."]
    if not pd.api.types.is_float_dtype(values):
        return []
    numbers = values.to_numpy(dtype=float)
    if not np.isfinite(numbers).all():
        return [f"target {target!r} has infinite values; drop those rows."]
    if task == "classification" and are_fractional(numbers):
        return [
            f"target {target!r} has fractional numbers, but the model is a classifier; name the "
            "column with the classes."
        ]
    return []


def cluster_problems(frame: pd.DataFrame, cluster: str) -> list[str]:
    """Say why the cluster ids cannot be used."""
    if cluster not in frame.columns:
        return []
    if not is_plain(frame[cluster]):
        return [f"cluster {cluster!r} holds lists or arrays; one id per row is needed."]
    missing = int(frame[cluster].isna().sum())
    if missing:
        return [
            f"cluster {cluster!r} is missing in {missing} rows; give each such row an id of its "
            "own if nothing is known about it, or drop the rows."
        ]
    if frame[cluster].nunique() == 1:
        return [f"cluster {cluster!r} has one value only; at least two clusters are needed."]
    return []


def _column(
    frame: pd.DataFrame, argument: str, name: str, problems: list[str], hint: str = ""
) -> "pd.Series[Any] | None":
    """Return the column that an argument names; note a problem where it is not there."""
    if name in frame.columns:
        return frame[name]
    columns = [str(column) for column in frame.columns]
    problems.append(f"{argument}={name!r} is not a column.{closest(str(name), columns)}{hint}")
    return None


def _floats(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return a column as numbers, NaN where it holds none."""
    try:
        return column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        return np.full(len(column), np.nan)


def read_weights(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
    """Return the sample weights; note a problem where they are none."""
    column = _column(frame, "sample_weight", name, problems)
    if column is None:
        return None
    weight = _floats(column)
    if len(weight) and (not np.isfinite(weight).all() or weight.min() < 0 or weight.max() == 0):
        problems.append(
            f"sample_weight {name!r} must hold finite numbers from 0, not all of them 0."
        )
        return None
    return weight


def read_ids(frame: pd.DataFrame, row_id: str | None, problems: list[str]) -> NDArray[Any]:
    """Return the ids of the rows: those of a column, or the table's index."""
    column = None if row_id is None else _column(frame, "row_id", row_id, problems)
    if column is None:
        return frame.index.to_numpy()
    repeated, missing = int(column.duplicated().sum()), int(column.isna().sum())
    if repeated or missing:
        problems.append(
            f"row_id {row_id!r} is missing in {missing} rows and repeated in {repeated}; each row "
            "needs an id of its own."
        )
    return column.to_numpy()


def read_matches(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
    """Return, for each row, the probability that its cluster id is right."""
    hint = " Tables of pairs are given as DataFrame or as a .csv or .parquet file."
    column = _column(frame, "match_probability", name, problems, hint)
    if column is None:
        return None
    values = _floats(column)
    wrong = int((~((values >= 0) & (values <= 1))).sum())
    if wrong:
        problems.append(
            f"match_probability {name!r} must hold, for each row, the probability that its cluster "
            f"id is right; it is missing or outside [0, 1] in {wrong} rows."
        )
    return values


def value_problems(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Say which features hold what no learner takes."""
    problems = []
    for name in names:
        column = frame[name]
        if not is_plain(column):
            problems.append(f"feature {name!r} holds lists or arrays; give them columns instead.")
        if pd.api.types.is_complex_dtype(column):
            problems.append(f"feature {name!r} holds complex numbers; give their parts as columns.")
        if pd.api.types.is_float_dtype(column):
            infinite = int(np.isinf(column.to_numpy(dtype=float, na_value=np.nan)).sum())
            if infinite:
                problems.append(f"feature {name!r} is infinite in {infinite} rows.")
    return problems


def is_text(dtype: str) -> bool:
    """Return whether a dtype of a signature stands for text."""
    return dtype in ("object", "str", "string")


def as_categories(
    features: pd.DataFrame, categories: Mapping[str, tuple[Any, ...]], notes: list[str]
) -> pd.DataFrame:
    """Return features with the categories that the model was trained on; note those changed.

    Files of text do not keep categories, and learners that tell categories by their dtype would take
    the column for another one. Columns of numbers stay as they are.
    """
    changed = {}
    for name, known in categories.items():
        if name not in features.columns:
            continue
        column = features[name]
        if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_numeric_dtype(column):
            continue
        others = sorted(set(column.dropna().unique()) - set(known), key=str)
        kept = [value for value in known if not pd.isna(value)]
        changed[name] = column.astype(pd.CategoricalDtype([*kept, *others]))
        notes.append(f"{name!r} is {column.dtype} {IN_TABLE} category again as in training")
    return _with_columns(features, changed)


def _with_columns(features: pd.DataFrame, changed: Mapping[str, Any]) -> pd.DataFrame:
    if not changed:
        return features
    columns = {name: changed.get(str(name), features[name]) for name in features.columns}
    return pd.DataFrame(columns, copy=False)  # as they are, not once more


def cast_features(
    features: pd.DataFrame, dtypes: Mapping[str, str], problems: list[str], notes: list[str]
) -> pd.DataFrame:
    """Return features with the dtypes of the model's signature; note those that cannot have them.

    A signature knows no categories: it calls them text, or numbers. Columns that are categories in the
    table stay so, because learners may tell categories by their dtype.
    """
    changed = {}
    for name, dtype in dtypes.items():
        if name not in features.columns or str(features[name].dtype) == dtype:
            continue
        if is_text(dtype) and is_text(str(features[name].dtype)):
            continue
        if isinstance(features[name].dtype, pd.CategoricalDtype):
            kind = "text" if is_text(dtype) else dtype
            notes.append(f"{name!r} is category {IN_TABLE} {kind} in the model's signature")
            continue
        if is_text(dtype) and _became_numbers(features[name]):
            problems.append(
                f"feature {name!r} has dtype {features[name].dtype}, but was text in training. Texts "
                "such as '007' become numbers when a file is read: read it again with "
                f"pd.read_csv(…, dtype={{{name!r}: str}}), or give the path of the file."
            )
            continue
        try:
            cast = features[name].astype(dtype)  # type: ignore[call-overload]
            if not _same_values(features[name], cast):
                raise ValueError("values would change")
            changed[name] = cast
        except (ValueError, TypeError) as error:
            problems.append(
                f"feature {name!r} has dtype {features[name].dtype}, which cannot become the "
                f"{dtype} of the model's signature: {error}"
            )
    return _with_columns(features, changed)


def _became_numbers(column: "pd.Series[Any]") -> bool:
    """Return whether a column holds numbers or truth values, not only missing texts."""
    return pd.api.types.is_numeric_dtype(column) and bool(column.notna().any())


def _same_values(before: "pd.Series[Any]", after: "pd.Series[Any]") -> bool:
    """Return whether a column means the same after a cast; float32 may round."""
    if pd.api.types.is_bool_dtype(after):
        return bool(before.isin([0, 1]).all())
    if pd.api.types.is_integer_dtype(after) and pd.api.types.is_numeric_dtype(before):
        return bool((after.astype(float) == before.astype(float)).all())
    return True
