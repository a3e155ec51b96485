"""Learners with bad manners, at the top of a module so that worker processes can import them."""

import os
import signal
import time
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


def chance(X):
    """Return a number in [0, 1) that the training rows decide on."""
    return abs(float(np.asarray(X, dtype=float)[:, 0].sum())) * 1e4 % 1


class Patient(ClassifierMixin, BaseEstimator):
    """Predicts the more frequent class; takes its time."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def fit(self, X, y):  # noqa: ARG002 - as learners have it
        time.sleep(self.seconds)
        self.classes_, counts = np.unique(y, return_counts=True)
        self.answer_ = self.classes_[counts.argmax()]
        return self

    def predict(self, X):
        return np.repeat(self.answer_, len(X))


class Moody(Patient):
    """Raises on a share of the training sets."""

    def __init__(self, share=0.0, seconds=0.0):
        super().__init__(seconds)
        self.share = share

    def fit(self, X, y):
        if chance(X) < self.share:
            raise RuntimeError("in a bad mood")
        return super().fit(X, y)


class Vague(Moody):
    """Predicts NaN after a share of the training sets."""

    def fit(self, X, y):
        self.vague_ = chance(X) < self.share
        return Patient.fit(self, X, y)

    def predict(self, X):
        given = super().predict(X).astype(float)
        return np.full(len(X), np.nan) if self.vague_ else given


class Sleepy(Moody):
    """Never comes back from a share of the training sets."""

    def fit(self, X, y):
        if chance(X) < self.share:
            time.sleep(3600)
        return Patient.fit(self, X, y)


class Noting(Patient):
    """Notes the `chance` of its training sets, in this process."""

    noted: ClassVar[list[float]] = []

    def fit(self, X, y):
        Noting.noted.append(chance(X))
        return super().fit(X, y)


class Choosy(Patient):
    """Has bad manners with one training set, the one with this `chance`."""

    def __init__(self, which=-1.0, seconds=0.0):
        super().__init__(seconds)
        self.which = which

    def chosen(self, X):
        return abs(chance(X) - self.which) < 1e-6


class Stubborn(Choosy):
    """Does not come back, and swallows everything that is thrown at it."""

    def fit(self, X, y):
        while self.chosen(X):
            try:
                time.sleep(3600)
            except BaseException:
                continue
        return super().fit(X, y)


class Deadly(Choosy):
    """Kills its own process."""

    def fit(self, X, y):
        if self.chosen(X):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(X, y)


class DeadlyOnce(Patient):
    """Kills its own process if a file is not there yet, which it makes."""

    def __init__(self, file="", seconds=0.0):
        super().__init__(seconds)
        self.file = file

    def fit(self, X, y):
        if chance(X) > 0.5:
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(X, y)
