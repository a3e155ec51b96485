"""From a subject and its folds to a `CvcReport`: refits, working model, bias, interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.correlated.bias import Bias
from mlflow_b3.correlated.draws import Draws
from mlflow_b3.correlated.engines import Engine, find_engine, is_linear_in_few
from mlflow_b3.correlated.group_errors import group_reach
from mlflow_b3.correlated.random_slopes import examine_slopes
from mlflow_b3.correlated.real_refits import RealRefits, run_real_refits
from mlflow_b3.correlated.refits import CvcRefitter
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.correlated.scaling import Scaling
from mlflow_b3.correlated.score_folds import (
    folds_by,
    folds_for_scores,
    joined,
    known_by_name,
)
from mlflow_b3.correlated.simulation import Simulated, run_simulation
from mlflow_b3.correlated.structure import Array, Structure, WorkingModel
from mlflow_b3.correlated.summary import summarize
from mlflow_b3.correlated.uncertainty import BiasAt
from mlflow_b3.correlated.working import (
    LEAST_GROUPS,
    fit_covariate_model,
    fit_score_model,
    matched_world,
    structure_problems,
)
from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.folds import Fold
from mlflow_b3.measurement.fits import Session, interrupted
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.levels import exposures
from mlflow_b3.measurement.outcomes import FitCounts
from mlflow_b3.measurement.resampling import Resampler
from mlflow_b3.measurement.sessions import Means, open_session
from mlflow_b3.refit.interface import Learner
from mlflow_b3.subject import Subject

#: What a correction by refits needs; formulas do with fewer.
LEAST_REFITTED_GROUPS = 10


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What is corrected, and with which means.

    Attributes
    ----------
    subject : Subject
        With a structure.
    folds : sequence of Fold
        Those of the cross-validation.
    seed : int
    means : Means
    refits : int or None
        How many refits there may be; by default what the options ask for, and up to three times as
        many samples where they leave too much noise.
    seconds : float or None
        The time after which no sample is simulated that may be left out.
    shortcut : Learner or None
        What is trained on simulated targets instead of the model itself.
    given : WorkingModel or None
        The simulated world, where it is that of another model.
    """

    subject: Subject
    folds: Sequence[Fold]
    seed: int
    means: Means
    refits: int | None = None
    seconds: float | None = None
    shortcut: Learner | None = None
    given: WorkingModel | None = None

    def run(
        self,
        journal: Journal | None = None,
        *,
        counts: FitCounts | None = None,
        grouped: tuple[float, tuple[float, float]] | None = None,
    ) -> CvcReport:
        """Run the refits, and draw the conclusions.

        Parameters
        ----------
        journal : Journal, optional
        counts : FitCounts, optional
            Of refits that were made before.
        grouped : (float, (float, float)), optional
            The loss by folds of whole groups with its interval, where it is known already.

        Raises
        ------
        InterruptedAudit
            When the user stops it before there is anything to conclude from.
        """
        subject, structure = self.subject, self._structure
        counts = counts or FitCounts()
        grouped_by = structure.new[0]
        whole = folds_by(subject.table, grouped_by, self.seed)
        folds, score_folds = joined(whole, folds_for_scores(subject, self._target, self.seed))
        refitter = self._refitter(subject.learner, subject.rows, folds)
        needed = counts.done + len(self.folds) + len({*range(len(whole)), *score_folds})
        problems = [*structure_problems(structure), *known_by_name(subject, structure)]
        if self.given is not None:
            matched_world(self.given, self._target, structure)
        engine = self._engine()
        draws = self._draws(needed, engine)
        with open_session(
            refitter, self.means, journal=journal, most=needed, expected=needed
        ) as opened:
            session = _continued(opened, counts)
            try:
                real = run_real_refits(session, refitter, len(whole), score_folds)
            except KeyboardInterrupt as interrupt:
                raise interrupted(session) from interrupt
        problems += self._too_few_to_refit(engine)
        reach = group_reach(real.losses, structure.grouping)
        model = None if problems else self._working_model(real, engine)
        if model is not None and not model.problems:
            problems += self._slope_problems(real)
        simulated: Simulated | None = None
        bias_at: BiasAt | None = None
        if model is not None and not (problems or model.problems or real.one_class):
            if engine is not None and engine.exact:
                simulated = Simulated.without_refits(engine.bias(model))
                bias_at = engine.bias
            else:
                scaling = Scaling(structure, [(f.training, f.validation) for f in self.folds])
                world = scaling.world(model)
                if engine is not None:
                    simulated = Simulated.without_refits(engine.bias(world))
                else:
                    simulated = self._simulate(world, folds, reach, draws, journal, counts)
                simulated, bias_at = _scaled(simulated, scaling.factor(world), model)
        return summarize(
            subject=subject,
            structure=structure,
            folds=self.folds,
            seed=self.seed,
            real=real,
            reach=reach,
            grouped_by=grouped_by,
            grouped=grouped,
            problems=problems,
            model=model,
            engine=self._engine_name if engine is None else engine.name,
            simulated=simulated,
            bias_at=bias_at,
            counts=counts,
        )

    def _slope_problems(self, real: RealRefits) -> list[tuple[str, str]]:
        """Return in which groups features act differently, which random intercepts do not show."""
        features, structure = self.subject.table.features, self._structure
        if structure.field is not None or not isinstance(features, pd.DataFrame):
            return []
        found = [
            examine_slopes(self._target, features, real.scores, level, self.seed)
            for level in structure.new
        ]
        return [("B350", test.message) for test in found if test is not None and test.rejected]

    def _too_few_to_refit(self, engine: Engine | None) -> list[tuple[str, str]]:
        """Return whether groups are too few for learners that are refitted on simulated targets.

        The level with the most groups counts.
        """
        if engine is not None or self._structure.field is not None:
            return []
        level = max(self._structure.grouping, key=lambda level: level.n_groups)
        if not LEAST_GROUPS <= level.n_groups < LEAST_REFITTED_GROUPS:
            return []
        return [
            (
                "B331",
                f"{level.name!r} has {level.n_groups} groups; for a learner without formulas, such "
                "as nearest neighbours or trees, the correction found a third of the bias with "
                f"eight. It needs {LEAST_REFITTED_GROUPS} groups.",
            )
        ]

    @property
    def _structure(self) -> Structure:
        structure = self.subject.structure
        assert structure is not None
        return structure

    @property
    def classes(self) -> Any:
        """The two classes, or None for numbers."""
        if self.subject.task != "classification":
            return None
        return np.unique(self.subject.table.target)

    @property
    def _target(self) -> Array:
        target, classes = self.subject.table.target, self.classes
        return np.asarray(target if classes is None else target == classes[1], dtype=float)

    @property
    def _engine_name(self) -> str:
        assert self.subject.cvc is not None
        engine = self.subject.cvc.engine
        return "full" if engine == "auto" else engine

    def _refitter(
        self, learner: Learner, data: AuditData, folds: tuple[Fold, ...], draws: Draws | None = None
    ) -> CvcRefitter:
        resampler = Resampler(
            folds=folds,
            iid_folds=self.folds,
            clusters=data.clusters,
            exposures=exposures("optimal"),
            scheme="subset",
            seed=self.seed,
        )
        return CvcRefitter(
            data=data,
            learner=learner,
            loss=self.subject.loss,
            resampler=resampler,
            seconds_at_most=self.means.seconds_per_fit(self.seconds),
            classes=self.classes,
            draws=draws,
        )

    def _working_model(self, real: RealRefits, engine: Engine | None) -> WorkingModel:
        if self.given is not None:
            return matched_world(self.given, self._target, self._structure)
        subject, structure = self.subject, self._structure
        assert subject.cvc is not None
        if subject.cvc.working == "auto" and is_linear_in_few(engine, subject.task):
            assert engine is not None
            return fit_covariate_model(subject.task, self._target, engine.features, structure)
        if subject.cvc.working == "glmm":
            return fit_covariate_model(
                subject.task, self._target, subject.table.features, structure
            )
        return fit_score_model(subject.task, self._target, real.scores, structure)

    def _engine(self) -> Engine | None:
        subject = self.subject
        assert subject.cvc is not None
        return find_engine(
            subject.cvc.engine,
            subject.learner,
            subject.rows,
            self._structure,
            self.folds,
            subject.loss,
            draws=subject.cvc.draws,
            seed=self.seed,
        )

    def _draws(self, done: int, engine: Engine | None) -> int:
        """Return how many samples are refitted, after so many other refits."""
        assert self.subject.cvc is not None
        if self.refits is None:
            return 0 if engine is not None else self.subject.cvc.draws
        left, least = self.refits - done, 0 if engine is not None else 2 * len(self.folds)
        if left < least:
            raise InputError(
                f"budget={self.refits} leaves {max(0, left)} refits on simulated targets after {done} "
                f"on the table's own; at least {least} are needed. Give {done + least} or more."
            )
        return left

    def _simulate(
        self,
        model: WorkingModel,
        folds: tuple[Fold, ...],
        reach: float,
        draws: int,
        journal: Journal | None,
        counts: FitCounts,
    ) -> Simulated:
        subject = self.subject
        learner = self.shortcut or subject.learner
        rows = subject.rows
        if self.shortcut is not None:
            rows = subject.table.with_features(
                learner.represent(subject.table.features, subject.table.ids)
            )
        samples = Draws(model, self._structure, self.seed)
        refitter = self._refitter(learner, rows, folds, samples)
        with open_session(
            refitter,
            self.means,
            journal=journal,
            seconds=self.seconds,
            most=counts.done + draws,
            expected=counts.done + draws,
        ) as opened:
            session = _continued(opened, counts)
            return run_simulation(
                session, refitter, draws=draws, reach=reach, extend=self.refits is None
            )


def _continued(session: Session, counts: FitCounts) -> Session:
    """Return a session that goes on counting where another one has stopped."""
    session.progress.advance(counts.done, counts.replayed)
    return replace(session, counts=counts)


def _scaled(
    simulated: Simulated, factor: Callable[[WorkingModel], float], model: WorkingModel
) -> tuple[Simulated, BiasAt]:
    """Return the bias of the model from that of the world that was simulated, and that of others."""
    found = simulated.bias

    def at(other: WorkingModel) -> Bias:
        times = factor(other)
        return replace(found, value=times * found.value + 0.0, error=times * found.error)

    return replace(simulated, bias=at(model)), at
