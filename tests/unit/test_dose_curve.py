"""The loss by dose as a table and as a drawing."""

import pytest
from matplotlib.figure import Figure

import mlflow_b3 as b3


@pytest.fixture
def curve() -> b3.DoseCurve:
    return b3.DoseCurve(
        d=(0, 1, 3), loss=(0.34, 0.29, 0.2), low=(0.3, 0.25, 0.17), high=(0.39, 0.33, 0.24)
    )


def test_a_curve_is_a_table_with_a_row_for_each_dose(curve):
    frame = curve.frame()
    assert frame["d"].tolist() == [0, 1, 3]
    assert frame.iloc[2].to_dict() == {"d": 3, "loss": 0.2, "low": 0.17, "high": 0.24}


def test_a_curve_is_drawn_on_given_axes_with_e0_marked(curve):
    ax = Figure().add_subplot()
    assert curve.plot(ax) is ax
    losses, e0 = ax.lines
    assert losses.get_xydata().tolist() == [[0, 0.34], [1, 0.29], [3, 0.2]]
    assert e0.get_xydata().tolist() == [[0, 0.34]]
    (band,) = ax.collections
    assert band.get_datalim(ax.transData).intervaly.tolist() == [0.17, 0.39]
    assert ax.get_xlabel() == "other rows of the same cluster in training"


def test_a_curve_is_drawn_on_axes_of_its_own(curve):
    from matplotlib import pyplot as plt

    ax = curve.plot()
    assert len(ax.lines) == 2
    plt.close(ax.figure)


def test_a_curve_survives_json(curve):
    assert b3.DoseCurve.from_json(curve.to_json()) == curve
