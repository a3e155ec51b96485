"""Simulated records of persons who are known by name only, with their linkage by Splink.

A hospital keeps a record of each visit: name, birth date, sex and postcode as they were typed in, a
few measurements and a diagnosis. Which records belong to one person has to be found out by linkage;
here the truth is known, so that what is said about a linkage and about a model can be checked.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

FEATURES = ("bmi", "glucose", "pressure", "cholesterol", "creatinine")
WEIGHTS = np.array([3.0, -2.0, 1.4, 0.0, 0.0])
WITHIN_PERSON = 0.2
#: Spread of the disposition: what decides about the disease and no measurement shows.
PERSON_EFFECT = 4.0

MOST_RECORDS = 17
RELATIVES, TWINS, MOVES, NEW_NAMES = 0.35, 0.03, 0.30, 0.15
POSTCODES = 200
#: Of the fields that are wrong: mistyped, somebody else's, or left out.
KINDS_OF_NOISE = (0.35, 0.35, 0.3)

WOMEN = """Maria Anna Emma Laura Julia Sarah Lena Clara Sofia Alice Ida Nora Eva Helen Ruth Irene Ella
Mia Rosa Martha Judith Paula Greta Olga Vera Dora Lucy Grace Jane Agnes Monica Teresa Elena Susan Linda
Nina Karen Carol Diana Esther"""
MEN = """John Peter Paul Thomas David Martin Daniel Simon Jacob Adam Max Felix Oscar Victor Leo Hugo
Emil Anton Robert Frank George Henry James Mark Luke Noah Samuel Joseph Walter Albert Bruno Carl Eric
Philip Roger Stephen Gregor Isaac Julian Otto"""
STEMS = """Berg Hart Stein Lind Holm Ash Wood Mar Kell Bern Wal Wern Fisch Grün Hil Roth Sand Sun Tal
Wein Brad Dal Eng Far Gold Hager Jan Kir Lang Mor Nor Oster Pet Quin Rich Sul Tan Ul Vog Zim"""
ENDINGS = "er mann man ley son ton berg feld field dorf ham ström well ing lund by ow ski ard haus"
LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"


@dataclass(frozen=True, kw_only=True)
class PersonRecords:
    """Records of simulated persons.

    Attributes
    ----------
    identity : pandas.DataFrame
        For linkage: `record_id`, `forename`, `surname`, `birth_date`, `sex`, `postcode`.
    frame : pandas.DataFrame
        For a model: `record_id`, standardised measurements, and the label `disease`.
    persons : numpy.ndarray
        The true person of each record.
    """

    identity: pd.DataFrame
    frame: pd.DataFrame
    persons: NDArray[np.intp]

    def truth(
        self, model: Any, *, folds: int = 5, repeats: int = 4, fresh: int = 8000, seed: int = 0
    ) -> float:
        """Return the error rate on records of fresh persons: what the audit's e0 is meant to be.

        The model is trained on folds by the true persons, `repeats` times over, and scored on the
        records of `fresh` persons that no fold has seen.
        """
        rng = np.random.default_rng([seed, 1])
        outside = _visits(np.repeat(np.arange(fresh), _sizes(fresh, rng)), rng)
        X, target = self.frame[list(FEATURES)], self.frame["disease"].to_numpy()
        losses = []
        for _ in range(repeats):
            groups = rng.permutation(self.persons.max() + 1)[self.persons]
            for rows, _ in GroupKFold(folds).split(X, groups=groups):
                fitted = clone(model).fit(X.iloc[rows], target[rows])
                wrong = fitted.predict(outside[list(FEATURES)]) != outside["disease"]
                losses.append(float(np.mean(wrong)))
        return float(np.mean(losses))


def make_person_records(
    *, persons: int = 1500, noise: float = 0.15, seed: int = 0
) -> PersonRecords:
    """Simulate a hospital.

    Persons have 1 to 17 records, 2.6 on average. A third of them are relatives, who share surname
    and postcode, some of them twins; some persons move or change their surname. Fields are mistyped,
    mixed up or left out, for some persons more often than for others. A person's records repeat her
    state of health with little noise; her disposition no measurement shows. A learner that has
    seen other records of hers knows it.

    Parameters
    ----------
    persons : int
    noise : float
        Mean share of the fields that are wrong or missing.
    seed : int
    """
    rng = np.random.default_rng([seed, 0])
    true = np.repeat(np.arange(persons), _sizes(persons, rng))
    identity = _identity(true, persons, noise, rng)
    frame = _visits(true, rng)
    shuffled = rng.permutation(len(true))
    names = [f"R{number:05d}" for number in range(len(true))]
    tables = [table.iloc[shuffled].reset_index(drop=True) for table in (identity, frame)]
    for table in tables:
        table.insert(0, "record_id", names)
    return PersonRecords(identity=tables[0], frame=tables[1], persons=true[shuffled])


def link_records(identity: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Score pairs of records with Splink: its table with `match_probability`.

    Parameters are found by expectation maximisation, without labels; pairs that agree in none of
    six blocking rules are not scored.
    """
    import splink.comparison_library as compare
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on

    by_frequency = {"term_frequency_adjustments": True}
    settings = SettingsCreator(
        link_type="dedupe_only",
        unique_id_column_name="record_id",
        retain_matching_columns=False,
        comparisons=[
            compare.JaroWinklerAtThresholds("forename", [0.92, 0.8]).configure(**by_frequency),
            compare.JaroWinklerAtThresholds("surname", [0.92, 0.8]).configure(**by_frequency),
            compare.LevenshteinAtThresholds("birth_date", [1, 2]),
            compare.ExactMatch("sex"),
            compare.LevenshteinAtThresholds("postcode", [1, 2]).configure(**by_frequency),
        ],
        blocking_rules_to_generate_predictions=[
            block_on("birth_date"),
            block_on("surname"),
            block_on("forename", "postcode"),
            block_on("forename", "substr(birth_date, 1, 4)"),
            block_on("postcode", "substr(birth_date, 1, 4)"),
            block_on("sex", "substr(birth_date, 6, 5)"),
        ],
    )
    # the connection has threads of its own; one makes sums, and so the scores, repeatable
    database = DuckDBAPI()
    database.duckdb_con.execute("SET threads = 1")
    linker = Linker(database.register(identity), settings, log_level=logging.ERROR)
    rules = [block_on("forename", "surname", "birth_date"), block_on("birth_date", "postcode")]
    training = linker.training
    training.estimate_probability_two_random_records_match(rules, recall=0.7)
    training.estimate_u_using_random_sampling(max_pairs=2e6, seed=seed)
    for rule in (block_on("birth_date"), block_on("forename", "surname")):
        training.estimate_parameters_using_expectation_maximisation(rule)
    columns = ["record_id_l", "record_id_r", "match_probability"]
    return linker.inference.predict().as_pandas_dataframe()[columns]


def _sizes(persons: int, rng: np.random.Generator) -> NDArray[np.int64]:
    visits = 1 + rng.poisson(rng.gamma(0.7, 1.6 / 0.7, persons))
    return np.minimum(visits, MOST_RECORDS)


def _visits(true: NDArray[np.intp], rng: np.random.Generator) -> pd.DataFrame:
    persons = int(true.max()) + 1
    health = rng.normal(size=(persons, len(FEATURES)))[true]
    disposition = PERSON_EFFECT * rng.normal(size=persons)[true]
    measured = health + WITHIN_PERSON * rng.normal(size=health.shape)
    chance = 1 / (1 + np.exp(-(measured @ WEIGHTS + disposition)))
    frame = pd.DataFrame(measured, columns=list(FEATURES))
    return frame.assign(disease=(rng.random(len(frame)) < chance).astype(int))


def _identity(
    true: NDArray[np.intp], persons: int, noise: float, rng: np.random.Generator
) -> pd.DataFrame:
    sex = rng.choice(["F", "M"], persons)
    forename = np.where(
        sex == "F", _names(WOMEN.split(), persons, rng), _names(MEN.split(), persons, rng)
    )
    surnames = rng.permutation(
        [stem + ending for stem in STEMS.split() for ending in ENDINGS.split()]
    )
    surname, new_surname = (_names(surnames, persons, rng) for _ in range(2))
    codes = rng.permutation(np.arange(10000, 99999, 7))[:POSTCODES].astype(str)
    postcode, new_postcode = (rng.choice(codes, persons) for _ in range(2))
    born = np.datetime64("1930-01-01") + rng.integers(0, 80 * 365, persons)
    for person in np.flatnonzero(rng.random(persons) < RELATIVES)[1:]:
        relative = rng.integers(person)
        surname[person], postcode[person] = surname[relative], postcode[relative]
        if rng.random() < TWINS / RELATIVES:
            born[person] = born[relative]
    moved = (rng.random(persons) < MOVES)[true] & (rng.random(len(true)) < 0.5)
    renamed = (rng.random(persons) < NEW_NAMES)[true] & (rng.random(len(true)) < 0.5)
    clean = {
        "forename": forename[true],
        "surname": np.where(renamed, new_surname[true], surname[true]),
        "birth_date": born.astype(str)[true],
        "sex": sex[true],
        "postcode": np.where(moved, new_postcode[true], postcode[true]),
    }
    rate = np.minimum(noise * rng.exponential(size=persons)[true], 0.9)
    return pd.DataFrame({name: _distort(values, rate, rng) for name, values in clean.items()})


def _names(names: Any, count: int, rng: np.random.Generator) -> NDArray[np.str_]:
    chances = 1 / (10 + np.arange(len(names)))  # a few are common, most are rare
    return rng.choice(np.array(names), count, p=chances / chances.sum())


def _distort(
    values: NDArray[np.str_], rate: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.object_]:
    """Mistype, mix up or leave out a share of the values."""
    kind = rng.choice(3, len(values), p=KINDS_OF_NOISE)
    wrong = rng.random(len(values)) < rate
    made = values.astype(object)
    made[wrong & (kind == 1)] = rng.choice(values, int(np.sum(wrong & (kind == 1))))
    made[wrong & (kind == 2)] = None
    for row in np.flatnonzero(wrong & (kind == 0)):
        made[row] = _mistype(made[row], rng)
    return made


def _mistype(text: str, rng: np.random.Generator) -> str:
    place = int(rng.integers(len(text)))
    before, letter, after = text[:place], text[place], text[place + 1 :]
    if letter.isdigit():
        return before + str(rng.choice(list(DIGITS))) + after
    if letter == "-":  # of a date: day and month change places
        return text[:5] + text[8:] + "-" + text[5:7]
    other = str(rng.choice(list(LETTERS)))
    return str(
        rng.choice([before + other + after, before + after, text[: place + 1] + other + after])
    )
