"""What every test shares. Nothing here imports MLflow: `pytest tests/unit` starts at once."""

import gc
import os
import signal
import sys
from types import SimpleNamespace

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported
# workers share the cores; threads of their own would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
# many tests start Python, which takes seconds longer where no bytecode of libraries may be kept
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish():
    """Keep the libraries that are imported by now out of every later search for garbage."""
    gc.freeze()


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


@pytest.fixture
def no_keys(monkeypatch):
    """Keep the keys and the policy of whoever runs the tests out of them."""
    for name in ("MLFLOW_B3_SIGNING_KEY", "MLFLOW_B3_TRUSTED_KEYS", "MLFLOW_B3_POLICY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Return a pair of keys: the path of the signing key, and the public key."""
    from mlflow_b3.evidence.document import make_keys

    private, _, public = make_keys(tmp_path_factory.mktemp("keys"))
    return SimpleNamespace(private=private, public=public)


@pytest.fixture
def signing(keys, monkeypatch):
    """Sign what is recorded; return the public key."""
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(keys.private))
    return keys.public
