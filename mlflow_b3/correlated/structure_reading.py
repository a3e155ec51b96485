"""Groups and coordinates from the columns of a table, with all problems named at once."""

import numpy as np
import pandas as pd

from mlflow_b3.correlated.options import CvcOptions
from mlflow_b3.correlated.structure import Field, Structure, as_level
from mlflow_b3.errors import InputError, closest


def read_structure(frame: pd.DataFrame, options: CvcOptions) -> Structure:
    """Return what correlates the rows of a table.

    Raises
    ------
    InputError
        For columns that are not there, have gaps, or coordinates that are no numbers.
    """
    columns = [str(name) for name in frame.columns]
    problems = []
    for role, names in (("groups", options.groups), ("coordinates", options.coordinates)):
        for name in names:
            if name not in columns:
                problems.append(f"{role}: {name!r} is not a column.{closest(name, columns)}")
            elif frame[name].isna().any():
                gaps = int(frame[name].isna().sum())
                problems.append(
                    f"{role}: {name!r} has {gaps} missing values; fill them or drop them."
                )
            elif role == "coordinates" and not pd.api.types.is_numeric_dtype(frame[name]):
                problems.append(
                    f"{role}: {name!r} holds {frame[name].dtype}; coordinates are numbers."
                )
    if problems:
        raise InputError.from_problems("data", problems)
    levels = tuple(as_level(name, frame[name], new=name in options.new) for name in options.groups)
    if not options.coordinates:
        return Structure(levels=levels)
    places = frame[list(options.coordinates)].to_numpy(dtype=float)
    if not np.isfinite(places).all():
        raise InputError("data: coordinates must be finite numbers.")
    return Structure(field=Field(coordinates=places, regions=levels[0]))
