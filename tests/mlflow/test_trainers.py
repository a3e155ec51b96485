"""Route `trainer`: a function of the user's, given or stored with the run."""

import sys
import textwrap
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.errors import InputError, ModelError, PredictionError, TrackingError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.learner import Rows
from mlflow_b3.refit.trainer import TrainerLearner, find_trainer

N = 90
RNG = np.random.default_rng(2)
X = pd.DataFrame(RNG.normal(size=(N, 2)), columns=["age", "bmi"])
SCORE = X["age"].to_numpy() + 0.7 * RNG.normal(size=N)
Y = (SCORE > 0).astype(int)
WORDS = np.where(Y, "sick", "well")
FRAME = X.assign(y=Y, cluster=np.arange(N) // 6)
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 72}


def rows(target=Y, weight=None):
    """Return all rows."""
    return Rows(X=X, target=np.asarray(target), ids=np.arange(N), weight=weight)


def neighbours(X, y, sample_ids):
    """Train what is also logged in these tests."""
    del sample_ids
    return KNeighborsClassifier(5, algorithm="brute").fit(X, y)


def log_python_model():
    """Log a model that can only predict, in a run of its own."""

    class Model(mlflow.pyfunc.PythonModel):
        def __init__(self, inner):
            self.inner = inner

        def predict(self, context, model_input: pd.DataFrame, params=None):
            del context, params
            return self.inner.predict(model_input)

    with mlflow.start_run():
        return mlflow.pyfunc.log_model(
            name="model",
            python_model=Model(neighbours(X, Y, None)),
            signature=infer_signature(X),
            pip_requirements=["scikit-learn"],
        )


def test_audit_by_a_trainer_is_the_audit_by_the_model_it_trains():
    by_clone = b3.audit(KNeighborsClassifier(5, algorithm="brute"), FRAME, **AUDIT)
    by_trainer = b3.audit(None, FRAME, trainer=neighbours, **AUDIT)
    assert by_trainer.settings.refit == "trainer"
    assert by_trainer.settings.refit_strength == "full"
    assert by_trainer.curve == by_clone.curve
    assert by_trainer.iid == by_clone.iid
    assert "neighbours" in by_trainer.settings.model


def test_numbers_do_not_depend_on_the_number_of_workers():
    one = b3.audit(None, FRAME, trainer=neighbours, **AUDIT)
    two = b3.audit(None, FRAME, trainer=neighbours, **AUDIT, n_jobs=2)
    assert one == two


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write a user's module into the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_training.py").write_text(
        textwrap.dedent(
            """
            from sklearn.neighbors import KNeighborsClassifier

            class Recipes:
                @staticmethod
                def train(X, y, sample_ids):
                    return KNeighborsClassifier(5, algorithm="brute").fit(X, y)

            def train(X, y, sample_ids):
                return Recipes.train(X, y, sample_ids)

            wrong = 3

            def too_few(X, y):
                return None
            """
        ),
        encoding="utf-8",
    )
    yield tmp_path
    sys.modules.pop("my_training", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("name", ["my_training:train", "my_training:Recipes.train"])
def test_trainer_is_imported_from_the_current_folder(name):
    learner = load_model(None, trainer=name).learner
    learner.task = "classification"
    expected = neighbours(X, Y, None).predict(X)
    np.testing.assert_array_equal(learner.fit(rows()).predict("label", X), expected)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("my_training", "is not of the form 'module:function'"),
        ("my_training:", "is not of the form 'module:function'"),
        ("no_such_module:train", "cannot be imported"),
        ("my_training:other", "cannot be imported"),
        ("my_training:wrong", "is not callable"),
        ("my_training:too_few", r"must take \(X, y, sample_ids\)"),
        (3, "is not callable"),
    ],
)
def test_unusable_trainer_is_named(name, problem):
    with pytest.raises(InputError, match=problem):
        load_model(None, trainer=name)


def test_trainer_and_another_route_contradict_each_other():
    with pytest.raises(InputError, match="contradict"):
        load_model(None, trainer=neighbours, refit="clone")


def test_route_trainer_needs_one():
    with pytest.raises(InputError, match="needs trainer="):
        load_model(LogisticRegression(), refit="trainer")


def test_trainer_goes_before_what_the_model_itself_would_allow():
    audited = load_model(LogisticRegression(), trainer=neighbours)
    assert audited.learner.route == "trainer"


# ---------------------------------------------------------------- what a trainer is given


def test_trainer_and_its_predictor_are_given_the_labels_of_the_rows():
    """Data outside the table, such as images, are found by the index."""
    outside = {f"scan-{number}": row for number, row in enumerate(X.to_numpy())}
    frame = FRAME.set_axis(list(outside), axis=0)[["y", "cluster"]]

    def look_up(labels):
        return np.array([outside[label] for label in labels])

    def train(features, y, sample_ids):
        assert list(features.index) == list(sample_ids)
        assert features.shape[1] == 0
        model = KNeighborsClassifier(5, algorithm="brute").fit(look_up(sample_ids), y)
        return lambda features: model.predict(look_up(features.index))

    report = b3.audit(None, frame, trainer=train, **AUDIT)
    same = b3.audit(
        KNeighborsClassifier(5, algorithm="brute"), FRAME, **{**AUDIT, "cluster": "cluster"}
    )
    assert report.curve.loss == same.curve.loss


def test_trainer_may_be_given_columns_of_lists():
    frame = FRAME.assign(embedding=[[1.0, 2.0]] * N)

    def train(features, y, sample_ids):
        del sample_ids
        assert list(features["embedding"].iloc[0]) == [1.0, 2.0]
        model = LogisticRegression().fit(features[["age"]], y)
        return lambda new: model.predict(new[["age"]])

    assert b3.audit(None, frame, trainer=train, **AUDIT).settings.refit == "trainer"


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("renamed", [False, True])
def test_trainer_of_a_logged_model_is_given_its_columns_or_else_all(renamed):
    """One that prepares the model's columns itself finds others in the table."""
    info, seen = log_python_model(), []
    frame = FRAME.assign(extra=1.5)
    frame = frame.rename(columns={"bmi": "raw_bmi"}) if renamed else frame

    def train(X, y, sample_ids):
        seen.append(list(X.columns))
        return neighbours(X, y, sample_ids)

    report = b3.audit(info.model_uri, frame, trainer=train, **AUDIT)
    expected = ["age", "raw_bmi", "extra"] if renamed else ["age", "bmi"]
    assert seen[0] == expected
    assert list(report.settings.features) == expected


def test_trainer_that_asks_for_seed_and_weights_is_given_them():
    given = []

    def train(X, y, sample_ids, *, sample_weight=None, seed=None):
        del sample_ids
        given.append((seed, sample_weight))
        return LogisticRegression().fit(X, y, sample_weight=sample_weight)

    learner = TrainerLearner(train).with_task("classification")
    assert learner.stochastic
    assert learner.weighted
    weight = np.linspace(1, 2, N)
    learner.fit(rows(weight=weight), 7)
    assert given[0][0] == 7
    np.testing.assert_array_equal(given[0][1], weight)


# ---------------------------------------------------------------- what a trainer may return


@pytest.mark.parametrize("target", [Y, WORDS, np.digitize(SCORE, [-0.5, 0.5])])
def test_predictor_may_be_a_function_to_labels_or_to_probabilities(target):
    original = LogisticRegression().fit(X, target)

    def to_labels(X, y, sample_ids):
        del sample_ids
        return LogisticRegression().fit(X, y).predict

    def to_probabilities(X, y, sample_ids):
        del sample_ids
        return LogisticRegression().fit(X, y).predict_proba

    for train in (to_labels, to_probabilities):
        predictor = TrainerLearner(train).with_task("classification").fit(rows(target))
        np.testing.assert_array_equal(predictor.predict("label", X), original.predict(X))
    np.testing.assert_array_equal(predictor.predict("probability", X), original.predict_proba(X))


def test_labels_are_no_probabilities():
    learner = TrainerLearner(lambda X, y, _: LogisticRegression().fit(X, y).predict)
    predictor = learner.with_task("classification").fit(rows())
    with pytest.raises(PredictionError, match=r"losses that work with it: \['zero_one'\]"):
        CLASSIFICATION["log"].evaluate(predictor, X, Y)


def test_one_column_of_probabilities_is_refused_instead_of_counted_as_wrong_labels():
    learner = TrainerLearner(
        lambda X, y, _: lambda new: LogisticRegression().fit(X, y).predict_proba(new)[:, 1]
    )
    predictor = learner.with_task("classification").fit(rows())
    with pytest.raises(PredictionError, match="are not classes; for probabilities return a column"):
        predictor.predict("label", X)


class Shares:
    """A model with a column for each of three classes, whichever its rows had."""

    def __init__(self, y):
        self.shares = np.bincount(y, minlength=3) / len(y)

    def __call__(self, X):
        return np.tile(self.shares, (len(X), 1))


class Named(Shares):
    """The same with a method for it."""

    predict_proba = Shares.__call__

    def predict(self, X):
        return self.predict_proba(X).argmax(axis=1)


@pytest.mark.parametrize("model", [Shares, Named])
def test_rows_that_lack_a_class_leave_the_columns_of_a_network_as_they_are(model):
    target = np.arange(N) % 3

    def train(X, y, sample_ids):
        del X, sample_ids
        return model(y)

    learner = TrainerLearner(train).with_task("classification").with_target(target)
    some = np.flatnonzero(target != 1)
    few = Rows(X=X.iloc[some], target=target[some], ids=some)
    predictor = learner.fit(few)
    losses = CLASSIFICATION["log"].evaluate(predictor, X.iloc[some], target[some])
    np.testing.assert_allclose(losses, np.log(2))
    assert list(predictor.classes) == [0, 1, 2]


@pytest.mark.parametrize("as_object", [True, False])
def test_numbers_of_classes_are_refused_where_the_classes_are_words(as_object):
    def train(X, y, sample_ids):
        model = neighbours(X, (y == "sick").astype(int), sample_ids)
        return model if as_object else model.predict

    with pytest.raises(PredictionError, match="not a class of the table; they are 'sick', 'well'"):
        b3.audit(None, FRAME.assign(y=WORDS), trainer=train, **AUDIT)


def test_values_may_come_as_a_column():
    learner = TrainerLearner(
        lambda X, y, _: lambda new: LinearRegression().fit(X, y).predict(new)[:, None]
    )
    predictor = learner.with_task("regression").fit(rows(SCORE))
    assert predictor.predict("value", X).shape == (N,)


def test_trainer_that_returns_nothing_is_told_so():
    learner = TrainerLearner(lambda *_: None).with_task("classification")
    with pytest.raises(ModelError, match="returned NoneType; a trainer returns"):
        learner.fit(rows())


# ---------------------------------------------------------------- the task follows from the loss or target


@pytest.mark.parametrize(
    ("target", "loss", "task"),
    [
        (Y, None, "classification"),
        (WORDS, None, "classification"),
        (SCORE, None, "regression"),
        (np.digitize(SCORE, [-0.5, 0.5]), "zero_one", "classification"),
        (np.digitize(SCORE, [-0.5, 0.5]), "squared", "regression"),
    ],
)
def test_task_is_that_of_the_loss_or_of_the_target(target, loss, task):
    model = LogisticRegression() if task == "classification" else LinearRegression()

    def train(X, y, sample_ids):
        del sample_ids
        return model.fit(X, y)

    report = b3.audit(None, FRAME.assign(y=target), trainer=train, loss=loss, **AUDIT)
    assert report.settings.task == task


def test_whole_numbers_could_be_either():
    frame = FRAME.assign(y=np.digitize(SCORE, [-0.5, 0.5]))
    with pytest.raises(InputError, match="3 whole numbers, which could be classes or values"):
        b3.audit(None, frame, trainer=neighbours, **AUDIT)


# ---------------------------------------------------------------- trainers stored with a run


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("form", ["models:/", "runs:/"])
def test_stored_trainer_is_found_by_a_later_audit(form):
    info = log_python_model()
    b3.log_trainer(neighbours, run_id=info.run_id)
    uri = info.model_uri if form == "models:/" else f"runs:/{info.run_id}/model"
    report = b3.audit(uri, FRAME, **AUDIT)
    assert (report.settings.refit, report.settings.refit_strength) == ("trainer", "full")
    assert report.curve == b3.audit(None, FRAME, trainer=neighbours, **AUDIT).curve
    assert "as stored with the run" in report.settings.refit_notes[0]
    assert mlflow.get_run(info.run_id).data.tags["b3.trainer"] == "test_trainers:neighbours"


@pytest.mark.usefixtures("mlflow_store")
def test_trainer_is_stored_with_the_active_run_as_source_code_with_its_helpers(own_module):
    (own_module / "helpers").mkdir()
    (own_module / "helpers" / "__init__.py").write_text("K = 3\n", encoding="utf-8")
    (own_module / "using.py").write_text(
        "from helpers import K\nfrom sklearn.neighbors import KNeighborsClassifier\n"
        "def train(X, y, sample_ids):\n    return KNeighborsClassifier(K).fit(X, y)\n",
        encoding="utf-8",
    )
    with mlflow.start_run() as run:
        b3.log_trainer("using:train", code_paths=[own_module / "helpers"])
    for name in ("using", "helpers"):
        sys.modules.pop(name, None)
    for path in [own_module / "using.py", *(own_module / "helpers").glob("*.py")]:
        path.unlink()
    code = find_trainer(run.info.run_id)
    assert [name for name, _ in code.files] == ["helpers/__init__.py", "using.py"]
    assert not {"using", "helpers"} & set(sys.modules)
    learner = TrainerLearner(code).with_task("classification")
    expected = KNeighborsClassifier(3).fit(X, Y).predict(X)
    np.testing.assert_array_equal(learner.fit(rows()).predict("label", X), expected)


@pytest.fixture
def package(own_module):
    """Write a package whose trainer imports relatively, and when it is called."""
    folder = own_module / "my_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "settings.py").write_text("K = 3\n", encoding="utf-8")
    (folder / "late.py").write_text("SIGN = 1\n", encoding="utf-8")
    (folder / "training.py").write_text(
        textwrap.dedent(
            """
            from sklearn.neighbors import KNeighborsClassifier
            from .settings import K

            def train(X, y, sample_ids):
                from my_package import late
                model = KNeighborsClassifier(K).fit(late.SIGN * X, y)

                def predict(X):
                    from my_package.late import SIGN
                    return model.predict(SIGN * X)

                return predict
            """
        ),
        encoding="utf-8",
    )
    yield folder
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


@pytest.mark.usefixtures("mlflow_store")
def test_trainer_of_a_package_finds_the_package_whenever_it_imports(package):
    with mlflow.start_run() as run:
        b3.log_trainer("my_package.training:train", code_paths=[package])
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]
    for path in package.glob("*.py"):
        path.unlink()
    code = find_trainer(run.info.run_id)
    assert code.function == "my_package.training:train"
    learner = TrainerLearner(code).with_task("classification")
    expected = KNeighborsClassifier(3).fit(X, Y).predict(X)
    np.testing.assert_array_equal(learner.fit(rows()).predict("label", X), expected)
    assert not [name for name in sys.modules if name.startswith("my_package")]


@pytest.mark.usefixtures("mlflow_store", "package")
def test_trainer_that_needs_its_package_is_not_stored_without():
    with mlflow.start_run(), pytest.raises(InputError, match=r"code_paths=.'path/to/my_package'"):
        b3.log_trainer("my_package.training:train")


@pytest.mark.usefixtures("mlflow_store")
def test_stored_trainer_runs_in_other_processes_too():
    info = log_python_model()
    b3.log_trainer(neighbours, run_id=info.run_id)
    one = b3.audit(info.model_uri, FRAME, **AUDIT)
    assert b3.audit(info.model_uri, FRAME, **AUDIT, n_jobs=2) == one


@pytest.mark.usefixtures("mlflow_store")
def test_changed_trainer_is_not_run(tmp_path):
    info = log_python_model()
    b3.log_trainer(neighbours, run_id=info.run_id)
    (file,) = tmp_path.rglob("b3/trainer/test_trainers.py")
    file.write_text(file.read_text(encoding="utf-8") + "\nprint('changed')\n", encoding="utf-8")
    with pytest.raises(ModelError, match="were changed after it was stored"):
        load_model(info.model_uri)


@pytest.mark.usefixtures("mlflow_store")
def test_index_that_names_files_elsewhere_is_refused(tmp_path):
    info = log_python_model()
    b3.log_trainer(neighbours, run_id=info.run_id)
    (index,) = tmp_path.rglob("b3/trainer/trainer.json")
    text = index.read_text(encoding="utf-8").replace("test_trainers.py", "../../elsewhere.py")
    index.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="files outside its folder"):
        load_model(info.model_uri)


def in_a_notebook(source):
    """Define a function as a notebook would: in `__main__`, with its source at hand."""
    import linecache

    name = f"<cell {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"__name__": "__main__", "np": np}
    exec(compile(source, name, "exec"), space)
    return space["train"]


@pytest.mark.usefixtures("mlflow_store")
def test_notebook_function_that_imports_what_it_needs_can_be_stored():
    train = in_a_notebook(
        "def train(X, y, sample_ids):\n"
        "    from sklearn.neighbors import KNeighborsClassifier\n"
        "    return KNeighborsClassifier(5).fit(X, y)\n"
    )
    with mlflow.start_run() as run:
        b3.log_trainer(train)
    learner = TrainerLearner(find_trainer(run.info.run_id)).with_task("classification")
    assert learner.fit(rows()).predict("label", X).shape == (N,)


@pytest.mark.usefixtures("mlflow_store")
def test_notebook_function_that_leans_on_its_surroundings_is_refused():
    train = in_a_notebook("def train(X, y, sample_ids):\n    return np.mean(y)\n")
    with mlflow.start_run(), pytest.raises(InputError, match="uses np from the script or notebook"):
        b3.log_trainer(train)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("trainer", [lambda *_: None, KNeighborsClassifier().fit])
def test_what_has_no_name_of_its_own_cannot_be_stored(trainer):
    with mlflow.start_run(), pytest.raises(InputError, match=r"cannot be stored|must take"):
        b3.log_trainer(trainer)


@pytest.mark.usefixtures("mlflow_store")
def test_storing_needs_a_run():
    with pytest.raises(InputError, match="needs run_id=… if no run is active"):
        b3.log_trainer(neighbours)
    with pytest.raises(TrackingError, match="could not be stored with run 0123"):
        b3.log_trainer(neighbours, run_id="0123")


@pytest.mark.usefixtures("mlflow_store")
def test_missing_code_path_is_named():
    with mlflow.start_run(), pytest.raises(InputError, match="'nowhere' does not exist"):
        b3.log_trainer(neighbours, code_paths=[Path("nowhere")])


@pytest.mark.usefixtures("mlflow_store")
def test_model_that_outlived_its_run_has_no_stored_trainer():
    assert find_trainer("0" * 32) is None


@pytest.mark.usefixtures("mlflow_store")
def test_asking_for_a_trainer_that_is_not_there_says_how_to_give_one():
    info = log_python_model()
    with pytest.raises(ModelError, match=r"none is stored with the run .*mlflow_b3.log_trainer"):
        load_model(info.model_uri, refit="trainer")
