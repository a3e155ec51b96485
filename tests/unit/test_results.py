"""Results and findings: plain numbers that travel as strict JSON and come back the same."""

import dataclasses
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import CODES, Finding, Result


@dataclass(frozen=True, kw_only=True)
class Part(Result):
    name: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Whole(Result):
    parts: tuple[Part, ...]
    pair: tuple[float, Part]
    matrix: tuple[tuple[float, ...], ...]
    best: Part | None = None
    limits: tuple[float, float] | None = None
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


WHOLE = Whole(
    parts=(Part(name="a", value=0.5), Part(name="ü")),
    pair=(1.0, Part(name="b")),
    matrix=((1.0, 2.0), (3.0,)),
    best=Part(name="c", value=1.0),
    limits=(0.0, 1.0),
    notes={"k": "v"},
)
BARE = Whole(parts=(), pair=(1.0, Part(name="b")), matrix=())


@pytest.mark.parametrize("result", [WHOLE, BARE], ids=["full", "bare"])
def test_dictionary_and_json_give_the_result_back(result):
    assert Whole.from_dict(result.to_dict()) == result
    assert Whole.from_dict(json.loads(result.to_json())) == result


@pytest.mark.parametrize(
    "result",
    [
        Finding(code="B301", message="8 clusters."),
        FoldSummary(
            n_training=30,
            n_validation=10,
            clusters_training=3,
            clusters_validation=1,
            shared_clusters=0,
            shared_rows=0.0,
        ),
        LossCurve(injected=(0.0, 0.5), loss=(0.4, 0.2), stderr=(0.01, 0.01), n_train=100),
        LossCurve(
            injected=(0.0, 0.5),
            loss=(0.4, 0.2),
            stderr=(0.01, 0.01),
            n_train=100,
            fits=(10, 10),
            covariance=((0.1, 0.0), (0.0, 0.1)),
            degrees_of_freedom=7,
        ),
    ],
    ids=lambda result: type(result).__name__,
)
def test_the_packages_results_come_back_from_json(result):
    assert type(result).from_dict(json.loads(result.to_json())) == result


def test_to_dict_holds_nothing_but_plain_values():
    assert WHOLE.to_dict() == {
        "parts": [{"name": "a", "value": 0.5}, {"name": "ü", "value": None}],
        "pair": [1.0, {"name": "b", "value": None}],
        "matrix": [[1.0, 2.0], [3.0]],
        "best": {"name": "c", "value": 1.0},
        "limits": [0.0, 1.0],
        "notes": {"k": "v"},
    }


def test_optional_fields_may_be_left_out():
    assert Part.from_dict({"name": "a"}) == Part(name="a")


@pytest.mark.parametrize(
    "values",
    [
        {**WHOLE.to_dict(), "colour": "red", "age": 3},
        {**WHOLE.to_dict(), "best": {"name": "c", "colour": "red", "age": 3}},
        {**WHOLE.to_dict(), "parts": [{"name": "c", "colour": "red", "age": 3}]},
    ],
    ids=["outside", "nested", "in a list"],
)
def test_unknown_keys_are_an_error_that_names_them(values):
    with pytest.raises(TypeError, match=r"has no fields \['age', 'colour'\]; it has \["):
        Whole.from_dict(values)


def test_missing_keys_are_an_error_that_names_them():
    with pytest.raises(TypeError, match="'name'"):
        Part.from_dict({"value": 1.0})


def test_tuples_of_fixed_length_keep_their_length():
    with pytest.raises(ValueError, match="zip"):
        Whole.from_dict({**WHOLE.to_dict(), "pair": [1.0]})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_json_refuses_numbers_that_are_not_finite(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Part(name="a", value=value).to_json()


def test_json_keeps_letters_of_all_languages_readable():
    assert '"ü"' in WHOLE.to_json()


def test_json_can_be_one_line():
    assert Part(name="a").to_json(indent=None) == '{"name": "a", "value": null}'


def test_results_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WHOLE.best = None


# ---------------------------------------------------------------- findings


def test_finding_reads_as_code_title_and_message():
    finding = Finding(code="B302", message="in folds [0].")
    assert finding.title == "a class is missing from a fold"
    assert str(finding) == "B302 (a class is missing from a fold): in folds [0]."


def test_finding_with_an_undocumented_code_is_refused():
    with pytest.raises(ValueError, match="'B999' is not in CODES"):
        Finding(code="B999", message="?")


def test_codes_are_b3_and_two_digits_with_different_titles():
    assert all(len(code) == 4 and code[:2] == "B3" and code[2:].isdigit() for code in CODES)
    assert len(set(CODES.values())) == len(CODES)
