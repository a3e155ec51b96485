"""Coded findings: what an audit noticed that its reader must know."""

from dataclasses import dataclass

from mlflow_b3.results import Result

CODES: dict[str, str] = {
    "B301": "few clusters",
    "B302": "a class is missing from a fold",
    "B303": "one-class resamples",
    "B304": "leaked rows hurt",
    "B305": "the loss curve is not convex",
    "B306": "extrapolation dominates",
    "B307": "the leaked share is not known",
    "B308": "no profit from leakage was shown",
    "B309": "constant or repeated feature columns",
    "B310": "missing feature values",
    "B311": "single-row clusters",
    "B312": "refits failed",
    "B313": "known clusters sit on both sides of a fold",
    "B314": "the loss limit is exceeded",
    "B315": "few refits",
    "B316": "the learner warned",
    "B317": "rows scored unequally often",
    "B318": "the rows do not bound the leaked share",
    "B319": "a solver was not sure",
    "B320": "no distribution of the loss",
    "B321": "the refits show part of the bias only",
    "B322": "refits are unlike the logged model",
    "B323": "features that identify clusters",
    "B324": "less leakage is to be had",
    "B325": "match probabilities that nobody checked",
    "B326": "the folds are made of match probabilities",
    "B327": "about the linkage evidence",
    "B328": "the losses of suspected rows do not fit",
    "B329": "not the table that the model was trained on",
    "B330": "the audit was stopped early",
    "B331": "too few groups to correct cross-validation",
    "B332": "classes separate by group or score",
    "B333": "the model of the correlation was not found",
    "B334": "one-class folds of cross-validation",
    "B335": "few groups, so that the correction is uncertain",
    "B336": "no variance between groups was found",
    "B337": "the correction is an approximation of lower quality",
    "B338": "whole groups left out score worse than corrected cross-validation",
    "B339": "the correction rests on few simulated samples",
    "B340": "cluster ids are taken as right",
    "B341": "about the model of the correlation",
    "B342": "the model knows groups by name that will be new",
    "B343": "a feature gives away the target",
    "B344": "rows that are copies of rows of other clusters",
    "B350": "features act differently in different groups",
    "B351": "a constant answer meets the threshold",
    "B352": "the time was over before all planned refits",
    "B353": "scores of smaller models",
}


@dataclass(frozen=True, kw_only=True)
class Finding(Result):
    """One thing an audit noticed.

    Attributes
    ----------
    code : str
        A key of `CODES`; it keeps its meaning between versions.
    message : str
        What was seen, with its numbers, and what to do about it.
    """

    code: str
    message: str

    def __post_init__(self) -> None:
        """Refuse a code that is not documented."""
        if self.code not in CODES:
            raise ValueError(f"finding code {self.code!r} is not in CODES")

    @property
    def title(self) -> str:
        """The short name of the code."""
        return CODES[self.code]

    def __str__(self) -> str:
        """Code, title and message on one line."""
        return f"{self.code} ({self.title}): {self.message}"
