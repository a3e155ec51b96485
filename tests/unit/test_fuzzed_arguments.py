"""Wild values of arguments: an audit with one ends with a report, or names the argument."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier
from test_fuzzed_tables import check

import mlflow_b3
from mlflow_b3.errors import B3Error, InputError

pytestmark = pytest.mark.newest

FUZZED = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
NAN, INFINITY = float("nan"), float("inf")
WILD = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 1.0, -0.1, 1e-300, 1e308, NAN, INFINITY, -INFINITY, 1j),
    *("", "0.1", "grid", "mixture", "balanced", "nan", "-5m", "m", "uniform", "halves", "é\x00"),
    *(np.float64(0.1), np.float32(0.2), np.int64(2), np.bool_(True), pd.NA, pd.NaT, np.array(0.1)),
    *((0.1, 0.2), (0.2, 0.1), (0.1,), (0.1, 0.2, 0.3), (None, 1), ("a", "b"), (NAN, 0.2), (), []),
    *({}, {"a": 1}, b"x", object(), np.array([0.1, 0.2]), np.array([]), pd.Series([0.1]), ...),
    *([1, 2, 3], [0.5, 0.2], [0], [-1], [1e9], [NAN], ["a"], [True], [10**400], range(3)),
    *([([0], [1])], [(range(12), range(12, 24))], [0, 1] * 12, [0] * 24, [[0, 1], [2, 3]]),
)
ARGUMENTS = (
    *("p0", "p0_validation", "cluster_error", "split_rate", "fragments", "folds", "repeats"),
    *("budget", "seed", "method", "scheme", "levels", "test", "distribution"),
)
FRAME = mlflow_b3.make_clinic(patients=8, records=3).frame
TREE = DecisionTreeClassifier(max_depth=2, random_state=0)
USUAL = {"folds": 2, "budget": 60, "repeats": 1, "n_jobs": 1}


@FUZZED
@given(
    st.dictionaries(
        st.sampled_from(ARGUMENTS), st.integers(0, len(WILD) - 1), min_size=1, max_size=2
    )
)
def test_an_audit_with_wild_arguments_ends_with_a_report_or_names_one_of_them(places):
    wild = {name: WILD[place] for name, place in places.items()}
    wild = {name: value for name, value in wild.items() if (name, value) != ("budget", None)}
    try:
        report = mlflow_b3.audit(
            TREE, FRAME, target="disease", cluster="patient_id", **{**USUAL, **wild}
        )
    except B3Error as error:
        told = str(error)
    else:
        check(report)
        return
    assert any(name in told for name in wild), told


# --- reports that were written by hand, or torn -----------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder for files of an audit, and their text."""
    from mlflow_b3.tracking.metrics_and_files import files_of

    report = mlflow_b3.audit(
        TREE, FRAME, target="disease", cluster="patient_id", cluster_error=0.1, **USUAL
    )
    return tmp_path_factory.mktemp("audit"), report.to_dict(), files_of(report)["influence.csv"]


def places_in(value, path=()):
    """Yield the way to every value in a document; of lists, to the first two."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places_in(item, (*path, key))


WRONG = (
    True,
    -1,
    10**400,
    NAN,
    INFINITY,
    "",
    "x",
    [],
    {},
    [1],
    [[]],
    {"a": 1},
    [None],
    "0.1",
    "\ud800",
)


@FUZZED
@given(st.data())
def test_a_damaged_report_is_read_or_refused_and_what_is_read_can_be_printed(written, data):
    from mlflow_b3.tracking.metrics_and_files import load_report

    folder, whole, influence = written
    document = json.loads(json.dumps(whole))
    *way, last = data.draw(st.sampled_from(list(places_in(document))))
    part = document
    for key in way:
        part = part[key]
    part[last] = data.draw(st.sampled_from(WRONG))
    text = json.dumps(document)
    if data.draw(st.integers(0, 9)) == 9:
        text = text[: data.draw(st.integers(0, len(text)))]
    (folder / "audit.json").write_text(text, encoding="utf-8")
    cut = data.draw(st.integers(0, len(influence)))
    (folder / "influence.csv").write_text(influence[:cut], encoding="utf-8")
    try:
        report = load_report(folder)
    except InputError:
        return
    assert str(report)


def test_numbers_of_an_influence_come_back_to_the_last_digit_without_a_warning():
    from mlflow_b3.estimation.influence import Influence

    numbers = np.random.default_rng(0).normal(size=(200, 3)) * 1e-7
    made = Influence(
        unit="clusters",
        ids=np.arange(200),
        share=numbers[:, 0],
        loco=numbers[:, 1],
        e0=numbers[:, 2:],
    )
    read = Influence.from_csv(made.to_csv())
    assert (read.ids == made.ids).all()
    assert (read.share == made.share).all()
    assert (read.loco == made.loco).all()
    assert (read.e0 == made.e0).all()


@pytest.mark.parametrize("wrong", ["0.1", True, [], 10**400, {}], ids=repr)
def test_a_number_of_a_report_that_is_none_is_refused_when_it_is_read(written, wrong):
    _, whole, _ = written
    with pytest.raises((TypeError, OverflowError)):
        mlflow_b3.AuditReport.from_dict({**whole, "measured": {**whole["measured"], "loco": wrong}})


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_report_with_numbers_that_json_does_not_know_is_refused(written, constant):
    _, whole, _ = written
    text = json.dumps({**whole, "loco": "HERE"}).replace('"HERE"', constant)
    with pytest.raises(ValueError, match=constant):
        mlflow_b3.AuditReport.from_json(text)
