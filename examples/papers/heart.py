"""Heart disease at a hospital that the model has not seen (UAI 2017, experiment III; AISTATS 2019)."""

from pathlib import Path

import pandas as pd
from experiment import Outcome, Request
from problem import Problem, classification, read_uci
from protocol import reproduce

WHERE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
COLUMNS += ["slope", "ca", "thal", "num"]
#: UCI's codes; what is missing is a category of its own.
CODES = {
    "sex": {0: "female", 1: "male"},
    "cp": {1: "typical", 2: "atypical", 3: "non", 4: "asymptomatic"},
    "restecg": {0: "normal", 1: "abnormal", 2: "probable"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed", 7: "reversible"},
}
PUBLISHED = {
    "e0": 0.2657,
    "IID": 0.0627,
    "LOCO": 0.0446,
    "T4+mono": 0.0185,
    "Basis(2)": 0.0451,
    "Basis(7)": 0.0140,
    "Sketch": 0.0269,
}


def run(request: Request) -> Outcome:
    path = request.file("UCI's Heart Disease data (heart+disease.zip, or its folder)", WHERE)
    return reproduce(load(path, fits=4 if request.quick else 50), request)


def load(path: Path, fits: int) -> Problem:
    """Read UCI's four files, or one table with the columns `country` and `num`."""
    table = read_table(path)
    return classification(
        "heart",
        table.drop(columns=["country", "num"]),
        table["num"] == "pos",
        table["country"].isin(["cleveland", "va", "switzerland"]),
        table["country"] == "hungarian",
        fits=fits,
        published=PUBLISHED,
    )


def read_table(path: Path) -> pd.DataFrame:
    """Return 741 patients: those with all measurements that are numbers."""
    if path.suffix == ".csv":
        return pd.read_csv(path, keep_default_na=False)
    parts = []
    for hospital, file in zip(
        HOSPITALS, read_uci(path, [f"processed.{each}.data" for each in HOSPITALS]), strict=True
    ):
        part = pd.read_csv(file, names=COLUMNS, na_values=["?", "-9", "-9.0"])
        parts.append(part.assign(country=hospital).drop(columns="ca"))
    table = pd.concat(parts, ignore_index=True)
    for column, names in CODES.items():
        table[column] = table[column].map(names).fillna("missing")
    table["num"] = (table["num"] > 0).map({True: "pos", False: "neg"})
    return table.dropna(ignore_index=True)
