"""What every test shares. Nothing here imports MLflow: `pytest tests/unit` starts at once."""

import os
import signal

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c():
    """Hear Ctrl-C also where tests run in the background of a shell, which switches it off."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def stop_at(monkeypatch):
    """Press Ctrl-C during a certain refit of naive Bayes."""
    from sklearn.naive_bayes import GaussianNB

    made, fit = [], GaussianNB.fit

    def choose(number):
        def pressed(self, X, y, sample_weight=None):
            made.append(len(X))
            if len(made) == number:
                os.kill(os.getpid(), signal.SIGINT)
            return fit(self, X, y, sample_weight)

        monkeypatch.setattr(GaussianNB, "fit", pressed)
        return made

    return choose


@pytest.fixture(scope="session", autouse=True)
def _small_forests():
    """Make the classifier of the bound on p0 small: most audits of the tests do not look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlflow_b3.estimation.p0.TREES", 4)
        yield


@pytest.fixture(scope="session", autouse=True)
def _journals(tmp_path_factory):
    """Keep the journals of commands out of the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_B3_JOURNALS", str(tmp_path_factory.mktemp("journals")))
        yield
