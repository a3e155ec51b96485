"""Parkinson's disease from voice recordings of people that the model has not heard (AISTATS 2019)."""

from pathlib import Path

import pandas as pd
from experiment import Outcome, Request
from problem import Problem, classification, read_uci
from protocol import reproduce

WHERE = (
    "https://archive.ics.uci.edu/dataset/301/"
    "parkinson+speech+dataset+with+multiple+types+of+sound+recordings"
)
#: On the authors' curves; they print no numbers for this data set.
PUBLISHED = {"LOCO": 0.0061, "Basis(2)": 0.0016, "Basis(7)": 0.0223}


def run(request: Request) -> Outcome:
    path = request.file("train_data.txt of UCI's Parkinson Speech data (unpack its .rar)", WHERE)
    return reproduce(load(path, fits=20 if request.quick else 500), request)


def load(path: Path, fits: int) -> Problem:
    """Read UCI's train_data.txt: subject, 26 features, UPDRS, class."""
    table = read_table(path)
    validation = table["subject"] % 4 == 1
    return classification(
        "parkinson",
        table.drop(columns=["subject", "UPDRS", "class"]),
        table["class"] == 1,
        ~validation,
        validation,
        fits=fits,
        e0_fits=20 * fits,
        true_fits=5 * fits,
        trial_fits=10 * fits,
        levels=20,
        trend=1000.0,
        order=2,
        published=PUBLISHED,
    )


def read_table(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    (file,) = read_uci(path, ["train_data.txt"])
    features = [f"feature{number}" for number in range(26)]
    return pd.read_csv(file, names=["subject", *features, "UPDRS", "class"])
