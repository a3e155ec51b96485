"""Tables in: read, checked with all problems named at once, and fingerprinted."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.multiclass import type_of_target

from mlflow_b3.errors import InputError, closest
from mlflow_b3.findings import Finding
from mlflow_b3.table_findings import is_plain, table_findings
from mlflow_b3.wording import shortened

MINIMUM_ROWS = 20
#: What the cluster column is called when labels are given instead of its name.
LABELLED = "cluster"


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What a model wants to be given, as far as it says so.

    Attributes
    ----------
    columns : tuple of str or None
        Names of the feature columns in the model's order; None when it does not say.
    dtypes : mapping of str to str
        The dtype that the model's signature gives a column.
    count : int or None
        Number of features, known even for models trained on bare arrays.
    as_array : bool
        The model was trained on an array without column names and is given one again.
    anything : bool
        A function of the user's takes whatever values, and all columns, or none, where those named
        above are not there.
    """

    columns: tuple[str, ...] | None = None
    dtypes: Mapping[str, str] | None = None
    count: int | None = None
    as_array: bool = False
    anything: bool = False


@dataclass(frozen=True, kw_only=True)
class AuditData:
    """A checked table: features, target and cluster of every row.

    Attributes
    ----------
    features : pandas.DataFrame or numpy.ndarray
        What the learner is trained on, one row per record.
    target : numpy.ndarray
        What it predicts.
    clusters : numpy.ndarray
        The cluster of each row as a whole number from 0.
    names : tuple of str
        The cluster id as it stood in the table, by that number.
    digest : str
        36 characters that change with any value, name or order in the table.
    ids : numpy.ndarray
        The id of each row: from the column that was named for it, or the table's index.
    match_probability : numpy.ndarray or None
        For each row, the probability that its cluster id is right, where a column holds it.
    weight : numpy.ndarray or None
        The sample weight of each row, for training; losses are not weighted.
    """

    features: Any
    target: NDArray[Any]
    clusters: NDArray[np.intp]
    names: tuple[str, ...]
    target_name: str
    cluster_name: str
    feature_names: tuple[str, ...]
    digest: str
    findings: tuple[Finding, ...]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None
    match_probability: NDArray[np.float64] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.target)

    @property
    def n_clusters(self) -> int:
        """Number of distinct cluster ids."""
        return len(self.names)

    def take(self, rows: NDArray[np.intp]) -> Any:
        """Return the features of some rows, in the given order."""
        return self.features.iloc[rows] if hasattr(self.features, "iloc") else self.features[rows]

    def with_features(self, features: Any) -> "AuditData":
        """Return the same rows with their features in another form."""
        return replace(self, features=features)

    def regrouped(self, groups: NDArray[np.intp]) -> "AuditData":
        """Return the same rows with other clusters, given as whole numbers from 0."""
        names = tuple(map(str, range(int(groups.max()) + 1)))
        return replace(self, clusters=groups, names=names)

    def reordered(self, order: NDArray[np.intp]) -> "AuditData":
        """Return the same cluster ids with the rows dealt to them in another order."""
        return replace(
            self,
            features=self.take(order),
            target=self.target[order],
            ids=self.ids[order],
            weight=None if self.weight is None else self.weight[order],
        )


def read_table(data: Any) -> pd.DataFrame:
    """Return `data` as a DataFrame.

    Parameters
    ----------
    data : DataFrame, path of a .csv or .parquet file, or an MLflow pandas dataset
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, (str, Path)):
        return _read_file(Path(data))
    frame = getattr(data, "df", None)  # mlflow.data.PandasDataset
    if isinstance(frame, pd.DataFrame):
        return frame
    raise InputError(
        f"data={type(data).__name__} cannot be read; give a pandas DataFrame, the path of a "
        ".csv or .parquet file, or a dataset made by mlflow.data.from_pandas."
    )


def label_clusters(frame: pd.DataFrame, cluster: Any) -> tuple[pd.DataFrame, str]:
    """Return the table and the name of its cluster column.

    Labels that are given as such become a column, and so does a level of the index that is named.
    """
    if isinstance(cluster, str):
        in_index = cluster not in frame.columns and cluster in frame.index.names
        return frame.reset_index(level=cluster) if in_index else frame, cluster
    if isinstance(cluster, pd.Series) and not cluster.index.equals(frame.index):
        raise InputError(
            "cluster is a Series whose index is not that of the table, so that its labels may belong "
            "to other rows; give cluster.to_numpy() if they are in the order of the rows."
        )
    labels = np.asarray(getattr(cluster, "labels", cluster))
    if labels.shape != (len(frame),):
        raise InputError(
            f"cluster={type(cluster).__name__} of shape {labels.shape} is not usable; give the name "
            f"of a column, or one label for each of the {len(frame)} rows."
        )
    name = LABELLED
    while name in frame.columns:
        name += "_"
    return frame.assign(**{name: labels}), name


def _read_file(path: Path) -> pd.DataFrame:
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".pq": pd.read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"data={str(path)!r} has an unknown ending; use one of {list(readers)}.")
    if not path.is_file():
        raise InputError(
            f"data={str(path)!r} is not a file here (the current folder is {str(Path.cwd())!r})."
        )
    try:
        return reader(path)  # type: ignore[no-any-return, operator]
    except (ValueError, OSError) as error:  # pyarrow's and pandas' parser errors are ValueErrors
        raise InputError(f"data={str(path)!r} cannot be read: {error}") from error


def digest_table(frame: pd.DataFrame) -> str:
    """Return 36 hexadecimal digits over names, dtypes, values and their order.

    The row labels do not count. 36 is the longest digest that MLflow stores.
    """
    sha = hashlib.sha256()
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        sha.update(f"{name}\x1f{dtype}\x1e".encode())
    plain = frame.assign(
        **{str(name): frame[name].map(repr) for name in frame if frame[name].dtype == object}
    )  # pandas would mix up 1 and "1", and cannot hash lists
    sha.update(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return sha.hexdigest()[:36]


def prepare(
    frame: pd.DataFrame,
    *,
    target: str,
    cluster: str,
    task: str,
    inputs: ModelInputs,
    sample_weight: str | None = None,
    row_id: str | None = None,
    match_probability: str | None = None,
) -> AuditData:
    """Check a table against a model and split it into features, target and clusters.

    Every problem with the columns is collected and reported in one `InputError`.

    Parameters
    ----------
    frame : DataFrame
    target, cluster : str
        Names of the target column and of the (noisy) cluster id column. They are features only
        where the model's signature names them.
    task : {"classification", "regression"}
    inputs : ModelInputs
        The columns, order and dtypes that the model was trained with.
    sample_weight : str, optional
        Name of the column with sample weights; it is no feature.
    row_id, match_probability : str, optional
        Names of the columns with the ids of rows and with the probability that their cluster id is
        right; they are no features.
    """
    frame = frame.rename(columns=str)
    problems = _shape_problems(frame, target, cluster)
    others = (sample_weight, row_id, match_probability)
    roles = [target, cluster, *(name for name in others if name is not None)]
    names = _feature_names(frame, roles, inputs, problems)
    present = [name for name in names if name in frame.columns]
    problems += _target_problems(frame, target, task) + _cluster_problems(frame, cluster)
    problems += [] if inputs.anything else _value_problems(frame, present)
    weight = None if sample_weight is None else _weights(frame, sample_weight, problems)
    ids = _ids(frame, row_id, problems)
    matches = None if match_probability is None else _matches(frame, match_probability, problems)
    features = _cast(frame[present], inputs.dtypes or {}, problems) if present else frame[present]
    if problems:
        raise InputError.from_problems("data", problems)
    codes, labels = pd.factorize(frame[cluster], sort=False)
    return AuditData(
        features=features.to_numpy() if inputs.as_array else features.reset_index(drop=True),
        target=frame[target].to_numpy(),
        clusters=np.asarray(codes, dtype=np.intp),
        names=tuple(str(label) for label in labels),
        target_name=target,
        cluster_name=cluster,
        feature_names=tuple(present),
        digest=digest_table(frame),
        findings=tuple(table_findings(features, codes)),
        ids=ids,
        weight=weight,
        match_probability=matches,
    )


def _shape_problems(frame: pd.DataFrame, target: str, cluster: str) -> list[str]:
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


def _feature_names(
    frame: pd.DataFrame, roles: Sequence[str], inputs: ModelInputs, problems: list[str]
) -> list[str]:
    others = [str(name) for name in frame.columns if name not in roles]
    absent = [name for name in inputs.columns or () if name not in frame.columns]
    if inputs.columns is not None and not (absent and inputs.anything):
        problems += [
            f"the model's feature {name!r} is not a column.{closest(name, others)}"
            for name in absent
        ]
        return list(inputs.columns)
    if inputs.anything:
        return others
    if inputs.count is not None and inputs.count != len(others):
        problems.append(
            f"the model was trained on {inputs.count} unnamed features, but the table has "
            f"{len(others)} columns beside target and cluster: {shortened(others)}. Keep just "
            "the features, in the order of training."
        )
    if not others:
        problems.append("there is no column beside target and cluster to predict from.")
    return others


def _target_problems(frame: pd.DataFrame, target: str, task: str) -> list[str]:
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
    if task == "classification" and type_of_target(values) == "continuous":
        return [
            f"target {target!r} has fractional numbers, but the model is a classifier; name the "
            "column with the classes."
        ]
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(values):
            return [f"target {target!r} has dtype {values.dtype}, but the model is a regressor."]
        if not np.isfinite(values.to_numpy(dtype=float)).all():
            return [f"target {target!r} has infinite values; drop those rows."]
    return []


def _cluster_problems(frame: pd.DataFrame, cluster: str) -> list[str]:
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


def _weights(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
    column = _column(frame, "sample_weight", name, problems)
    if column is None:
        return None
    weight = _floats(column)
    if not np.isfinite(weight).all() or weight.min() < 0 or weight.max() == 0:
        problems.append(
            f"sample_weight {name!r} must hold finite numbers from 0, not all of them 0."
        )
        return None
    return weight


def _ids(frame: pd.DataFrame, row_id: str | None, problems: list[str]) -> NDArray[Any]:
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


def _matches(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
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


def _value_problems(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    problems = []
    for name in names:
        column = frame[name]
        if not is_plain(column):
            problems.append(f"feature {name!r} holds lists or arrays; give them columns instead.")
        if pd.api.types.is_float_dtype(column):
            infinite = int(np.isinf(column.to_numpy(dtype=float, na_value=np.nan)).sum())
            if infinite:
                problems.append(f"feature {name!r} is infinite in {infinite} rows.")
    return problems


def _cast(features: pd.DataFrame, dtypes: Mapping[str, str], problems: list[str]) -> pd.DataFrame:
    changed = {}
    for name, dtype in dtypes.items():
        if name not in features.columns or str(features[name].dtype) == dtype:
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
    return features.assign(**changed) if changed else features


def _same_values(before: "pd.Series[Any]", after: "pd.Series[Any]") -> bool:
    """Return whether a column means the same after a cast; float32 may round."""
    if pd.api.types.is_bool_dtype(after):
        return bool(before.isin([0, 1]).all())
    if pd.api.types.is_integer_dtype(after) and pd.api.types.is_numeric_dtype(before):
        return bool((after.astype(float) == before.astype(float)).all())
    return True
