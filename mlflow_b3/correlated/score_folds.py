"""Folds by which rows get a score that their groups have not taught."""

from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np

from mlflow_b3.correlated.engines import unused_groups
from mlflow_b3.correlated.structure import Array, Level, Structure
from mlflow_b3.correlated.working import fit_null_model
from mlflow_b3.data import AuditData
from mlflow_b3.folds import Fold, make_folds
from mlflow_b3.subject import Subject

#: Folds of each level, where groups of several levels are left out together.
FOLDS_OF_SEVERAL = 4


def known_by_name(subject: Subject, structure: Structure) -> list[tuple[str, str]]:
    """Return the problem of a model to which new groups have names that it has never met."""
    unused = unused_groups(subject.learner)
    names = [
        level.name
        for level in structure.new
        if level.name in subject.table.feature_names and level.name not in unused
    ]
    if not names:
        return []
    listed = ", ".join(map(repr, names))
    message = (
        f"the model has {listed} as a feature, and will meet values of it that it has never seen. The "
        "simulated world gives new groups the names of old ones, so that no correction can be given; "
        "leaving out whole groups shows what new names do."
    )
    return [("B342", message)]


def folds_by(
    table: AuditData, level: Level, seed: int, count: int | None = None
) -> tuple[Fold, ...]:
    """Return folds that keep the groups of a level whole."""
    return make_folds(table.regrouped(level.codes.astype(np.intp)), count, seed=seed)


def folds_for_scores(subject: Subject, target: Array, seed: int) -> tuple[Fold, ...]:
    """Return folds that leave out what must not teach a row its score.

    That is its group of the level with most of the variance, and its group of every level that the
    model has as a feature.
    """
    structure, table = subject.structure, subject.table
    assert structure is not None
    if len(structure.grouping) == 1:
        return folds_by(table, structure.grouping[0], seed)
    most = structure.levels[int(np.argmax(fit_null_model(subject.task, target, structure)))]
    known = [level for level in structure.levels if level.name in table.feature_names]
    levels = [most, *(level for level in known if level is not most)]
    if len(levels) == 1:
        return folds_by(table, most, seed)
    return crossed(
        [folds_by(table, level, seed, min(FOLDS_OF_SEVERAL, level.n_groups)) for level in levels]
    )


def joined(folds: Sequence[Fold], others: Sequence[Fold]) -> tuple[tuple[Fold, ...], range]:
    """Return two sets of folds as one, and where the second stands in it."""
    same = len(folds) == len(others) and all(
        np.array_equal(a.validation, b.validation) for a, b in zip(folds, others, strict=True)
    )
    if same:
        return tuple(folds), range(len(folds))
    return (*folds, *others), range(len(folds), len(folds) + len(others))


def crossed(sets: Sequence[Sequence[Fold]]) -> tuple[Fold, ...]:
    """Return folds that leave out what all of some sets of folds leave out.

    One for each combination: it validates the rows that one fold of every set validates, and trains on
    those that all of these train on.
    """
    folds = []
    for combination in product(*sets):
        validation = reduce(np.intersect1d, [fold.validation for fold in combination])
        training = reduce(np.intersect1d, [fold.training for fold in combination])
        if len(validation) and len(training):
            folds.append(Fold(training=training, validation=validation))
    return tuple(folds)
