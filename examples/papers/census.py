"""Income of immigrants from countries that the model has not seen (UAI 2017, experiment II; AISTATS 2019)."""

from pathlib import Path

import pandas as pd
from experiment import Outcome, Request
from problem import Problem, classification, read_uci
from protocol import reproduce

WHERE = "https://archive.ics.uci.edu/dataset/2/adult"
COLUMNS = ["age", "workclass", "fnlwgt", "education", "education_num", "marital_status"]
COLUMNS += ["occupation", "relationship", "race", "sex", "capital_gain", "capital_loss"]
COLUMNS += ["hours_per_week", "native_country", "income"]
FEATURES = ["age", "education_num", "hours_per_week", "race", "occupation"]
TRAINING = ["United-States", "El-Salvador", "Germany", "Mexico", "Philippines", "Puerto-Rico"]
PUBLISHED = {
    "e0": 0.3278,
    "IID": 0.0143,
    "LOCO": 0.0062,
    "T4+mono": 0.0033,
    "Basis(2)": 0.0037,
    "Basis(7)": 0.0041,
    "Sketch": 0.0022,
}


def run(request: Request) -> Outcome:
    path = request.file("UCI's Adult data (adult.zip or adult.data)", WHERE)
    return reproduce(load(path, fits=4 if request.quick else 50), request)


def load(path: Path, fits: int) -> Problem:
    """Read UCI's adult.data, or a table with a header and the columns of the experiment."""
    table = read_table(path)
    return classification(
        "census",
        table[FEATURES],
        table["income"].str.startswith(">"),
        table["native_country"].isin(TRAINING),
        table["native_country"].isin(["India", "Canada"]),
        fits=fits,
        clean=500,
        published=PUBLISHED,
    )


def read_table(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    (file,) = read_uci(path, ["adult.data"])
    return pd.read_csv(file, names=COLUMNS, skipinitialspace=True, na_filter=False)
