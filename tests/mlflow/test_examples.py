"""The examples run, and their own learner is the one that they say it is."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.svm import LinearSVC

pytestmark = pytest.mark.newest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_synthetic_experiment_prints_its_tables_and_draws_its_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    tiny = ["--trials", "2", "--synthetic-fits", "20", "--largest", "30"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "published_experiments.py", *tiny, "--output", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "heart: skipped, because no --heart file was given." in done.stdout
    assert "| default, own levels |" in done.stdout
    names = {"published-synthetic.png", "published-curves.png", "published-times.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_svm_in_batches_is_linear_svc(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from published_problems import fit_svm

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 60, 5))
    y = np.where(X[..., 0] + rng.normal(size=(20, 60)) > 0, 1.0, -1.0)
    expected = [
        LinearSVC(dual=False, fit_intercept=False, tol=1e-9).fit(a, b).coef_[0]
        for a, b in zip(X, y, strict=True)
    ]
    np.testing.assert_allclose(fit_svm(X, y), expected, atol=1e-5)
