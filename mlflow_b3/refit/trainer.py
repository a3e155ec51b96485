"""Route `trainer`: a training function of the user, given or stored with the run."""

import ast
import hashlib
import inspect
import json
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import InputError, ModelError, PredictionError, TrackingError, closest
from mlflow_b3.refit.learner import FunctionPredictor, Learner, MethodPredictor, Rows, as_codes
from mlflow_b3.version import __version__

# --- Trainers stored with a run as source code

FOLDER = "b3/trainer"
INDEX = "trainer.json"


@dataclass(frozen=True)
class StoredCode:
    """Source files and the name of a function in them. Plain text can be sent to any worker.

    Attributes
    ----------
    function : str
        "module:function".
    files : tuple of (str, str)
        Relative path and content of each file.
    """

    function: str
    files: tuple[tuple[str, str], ...]

    def load(self) -> Callable[..., Any]:
        """Import the function. This runs the code."""
        return _load(self)[0]

    def importable(self) -> AbstractContextManager[None]:
        """Let imports find the stored files first. Functions may import when called."""
        return _load(self)[1].active()


class _ImportFolder:
    """A temporary folder with stored files. Its modules are isolated from other modules.

    Parameters
    ----------
    folder : TemporaryDirectory
    names : set of str
        The modules and packages in it.
    """

    def __init__(self, folder: "tempfile.TemporaryDirectory[str]", names: set[str]) -> None:
        self._kept = folder
        self._folder, self._names = folder.name, names
        self._own: dict[str, ModuleType] = {}
        self._shadowed: dict[str, ModuleType] = {}
        self._users = 0
        self._lock = Lock()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Import from this folder. Restore other modules afterwards."""
        with self._lock:  # threads enter and leave in any order
            if not self._users:
                self._shadowed = self._pop_modules()
                sys.modules.update(self._own)
                sys.path.insert(0, self._folder)
                invalidate_caches()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    sys.path.remove(self._folder)
                    self._own.update(self._pop_modules())
                    sys.modules.update(self._shadowed)

    def _pop_modules(self) -> dict[str, ModuleType]:
        """Remove modules with names in this folder from `sys.modules` and return them."""
        return {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name.split(".")[0] in self._names
        }


@cache
def _load(code: StoredCode) -> tuple[Callable[..., Any], _ImportFolder]:
    """Import the function of stored code from a folder of its own."""
    folder = tempfile.TemporaryDirectory(prefix="b3-trainer-")  # removed when the process ends
    root = Path(folder.name)
    for name, text in code.files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    module, _, function = code.function.partition(":")
    importing = _ImportFolder(
        folder, {Path(name).parts[0].removesuffix(".py") for name, _ in code.files}
    )
    try:
        with importing.active():
            value: Any = import_module(module)
            for part in function.split("."):
                value = getattr(value, part)
    except Exception as error:  # stored code may raise anything
        raise ModelError(
            f"the trainer {code.function!r} that is stored with the run cannot be imported: "
            f"{type(error).__name__}: {error}. Give trainer= instead."
        ) from error
    loaded: Callable[..., Any] = value
    return loaded, importing


def log_trainer(
    trainer: str | Callable[..., Any],
    *,
    run_id: str | None = None,
    code_paths: Sequence[str | Path] = (),
) -> None:
    """Store a trainer with a run. Audits of the run's models use it for refits.

    The source code is stored as text, never as a pickle: the file that defines the function or, in a
    notebook or script, the function alone, which must then do its own imports.

    Parameters
    ----------
    trainer : "module:function" or function
        `(X, y, sample_ids) → predictor`; see `mlflow_b3.audit`.
    run_id : str, optional
        Default: the active run.
    code_paths : sequence of paths, optional
        Further .py files, or folders of them, that it imports. A trainer with relative imports
        (`from . import …`) needs the folder of its package.

    Examples
    --------
    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> def train(X, y, sample_ids):
    ...     from sklearn.naive_bayes import GaussianNB
    ...
    ...     return GaussianNB().fit(X, y)
    >>> with mlflow.start_run() as run:
    ...     b3.log_trainer(train)
    >>> files = mlflow.MlflowClient().list_artifacts(run.info.run_id, "b3/trainer")
    >>> [file.path for file in files]
    ['b3/trainer/b3_trainer.py', 'b3/trainer/trainer.json']
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    TrainerLearner(trainer)  # check its arguments before writing anything
    code = pack(import_function(trainer) if isinstance(trainer, str) else trainer, code_paths)
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("log_trainer needs run_id=… if no run is active.")
        run_id = active.info.run_id
    index = {
        "function": code.function,
        "files": {name: _digest(text) for name, text in code.files},
        "version": __version__,
    }
    client = mlflow.MlflowClient()
    try:
        for name, text in code.files:
            client.log_text(run_id, text, f"{FOLDER}/{name}")
        client.log_text(run_id, json.dumps(index, indent=2), f"{FOLDER}/{INDEX}")
        client.set_tag(run_id, "b3.trainer", code.function)
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"the trainer could not be stored with run {run_id}: {error}"
        ) from error


def find_trainer(run_id: str | None) -> StoredCode | None:
    """Return the trainer that is stored with a run, or None. Its code is not run yet."""
    import mlflow
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        tags = mlflow.MlflowClient().get_run(run_id).data.tags
    except (MlflowException, OSError):
        return None  # the run was deleted, or is on another server
    if "b3.trainer" not in tags:
        return None
    try:
        folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=FOLDER))
        index: Mapping[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        outside = [name for name in index["files"] if ".." in Path(name).parts or name[:1] in "/\\"]
        if outside:
            raise ValueError(f"its index names files outside its folder: {outside}")
        files = tuple(
            (name, (folder / name).read_text(encoding="utf-8")) for name in index["files"]
        )
    except (MlflowException, OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"a trainer is stored with run {run_id}, but cannot be read: {error}. Give trainer=, "
            "or store it again with mlflow_b3.log_trainer."
        ) from error
    changed = [name for name, text in files if _digest(text) != index["files"][name]]
    if changed:
        raise ModelError(
            f"the files {changed} of the trainer stored with run {run_id} were changed after it was "
            "stored; store it again with mlflow_b3.log_trainer."
        )
    return StoredCode(function=str(index["function"]), files=files)


def pack(function: Callable[..., Any], code_paths: Sequence[str | Path] = ()) -> StoredCode:
    """Return the source code of a function and of the files it needs."""
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or "<" in name:
        raise InputError(
            f"trainer={function!r} cannot be stored; only functions at the top level of a file or "
            "notebook cell can. Move it there."
        )
    files = _further_files(code_paths)
    module = function.__module__
    if module == "__main__":
        module = "b3_trainer"
        files["b3_trainer.py"] = _function_source(function)
    elif not _includes_module(files, module):
        text = _module_source(module, name)
        module = module.rsplit(".", 1)[-1]
        files[f"{module}.py"] = text
    return StoredCode(function=f"{module}:{name}", files=tuple(sorted(files.items())))


def _further_files(code_paths: Sequence[str | Path]) -> dict[str, str]:
    files = {}
    for given in map(Path, code_paths):
        if not given.exists():
            raise InputError(f"code_paths: {str(given)!r} does not exist.")
        given = given.resolve()
        for path in sorted(given.rglob("*.py")) if given.is_dir() else [given]:
            files[path.relative_to(given.parent).as_posix()] = path.read_text(encoding="utf-8")
    return files


def _includes_module(files: Mapping[str, str], module: str) -> bool:
    path = module.replace(".", "/")
    return "." in module and (f"{path}.py" in files or f"{path}/__init__.py" in files)


def _module_source(module: str, name: str) -> str:
    """Return the source of a file that does not depend on its package."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or not path.endswith(".py"):
        raise InputError(f"trainer {module}:{name} has no source file that could be stored.")
    text = Path(path).read_text(encoding="utf-8")
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))):
        package = module.split(".")[0]
        raise InputError(
            f"trainer {module}:{name} imports from its package, which must be stored with it: give "
            f"code_paths=['path/to/{package}']."
        )
    return text


def _function_source(function: Callable[..., Any]) -> str:
    """Return the source of a function that uses no outer names."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InputError(
            f"the source of trainer {function.__qualname__!r} cannot be read: {error}. Put it into "
            "a .py file and give 'module:function'."
        ) from error
    outside = inspect.getclosurevars(function)
    needed = sorted({*outside.globals, *outside.nonlocals} - {function.__name__})
    if needed:
        raise InputError(
            f"trainer {function.__qualname__!r} uses {', '.join(needed)} from the script or "
            "notebook around it. Do these imports and definitions inside the function, or put it "
            "into a .py file and give 'module:function'."
        )
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- Route `trainer`: a function of the user trains the model

Trainer = Callable[..., Any]
#: Optional keyword arguments of a trainer.
EXTRAS = ("sample_weight", "seed")


class TrainerLearner(Learner):
    """Trains by a function `(X, y, sample_ids) → predictor`.

    Parameters
    ----------
    trainer : "module:function", callable or StoredCode
        It receives the features as a DataFrame indexed by the row labels of the table, the target,
        and the row labels again, to look up data outside the table. If it has arguments
        `sample_weight` or `seed`, it receives these by keyword. It returns an object with `predict`
        (and optionally `predict_proba` or `decision_function`, and `classes_`), or a function
        `X → predictions`.

    Notes
    -----
    A function, or an object without `predict_proba`, may return a column of probabilities per
    class, in sorted order. Labels are then the most probable classes. The classes are those of the
    training rows, or those of the whole table if there are that many columns.
    """

    route = "trainer"
    inputs = ModelInputs(anything=True)
    _classes: NDArray[Any] | None = None

    def __init__(self, trainer: str | Trainer | StoredCode) -> None:
        self._trainer = trainer
        function = _function(trainer)
        arguments = _arguments(function)
        self.name = f"trainer {_name(trainer)}"
        self._extras = tuple(name for name in EXTRAS if name in arguments)
        self.weighted = "sample_weight" in self._extras
        self.stochastic = "seed" in self._extras
        self.notes = (f"trained by {_name(trainer)}",)
        if not self.stochastic:
            self.notes += ("it takes no seed: if it is random, another audit gives other numbers",)

    @property
    def code(self) -> Any:
        """The code of a refit: the function, its module if given by name, or stored code."""
        if isinstance(self._trainer, str):
            return sys.modules[self._trainer.partition(":")[0]]
        return self._trainer

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:
        """Index the rows by their labels in the table."""
        return X.set_axis(ids, axis=0) if hasattr(X, "set_axis") else X

    def with_target(self, target: NDArray[Any]) -> Self:
        """Set the classes of the whole table. A model may have a column for each."""
        other = self.copied()
        other._classes = None if self.task == "regression" else as_codes(target)[0]
        return other

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Call the function with these rows."""
        given = {"sample_weight": rows.weight, "seed": seed}
        extras = {name: given[name] for name in self._extras}
        if not isinstance(self._trainer, StoredCode):
            trained = _function(self._trainer)(rows.X, rows.target, rows.ids, **extras)
            return self._predictor(trained, rows.target)
        with self._trainer.importable():
            trained = self._trainer.load()(rows.X, rows.target, rows.ids, **extras)
            return StoredPredictor(self._predictor(trained, rows.target), self._trainer)

    def _predictor(self, trained: Any, target: NDArray[Any]) -> Predictor:
        name = _name(self._trainer)
        if self.task == "regression":
            return as_values(trained, name)
        known = as_codes(target)[0]
        return as_classifier(
            trained, known, known if self._classes is None else self._classes, name
        )


class StoredPredictor:
    """A predictor of stored code, which may import more of it when called."""

    def __init__(self, predictor: Predictor, code: StoredCode) -> None:
        self._predictor, self._code = predictor, code
        self.classes = predictor.classes

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        with self._code.importable():
            given = self._predictor.predict(kind, X)
        self.classes = self._predictor.classes
        return given


def as_values(trained: Any, name: str) -> Predictor:
    """Wrap the output of a trainer as a predictor of values."""
    predict = _predict(trained, name)
    return FunctionPredictor({"value": lambda X: _flat(predict(X))}, name=name)


def as_classifier(trained: Any, known: NDArray[Any], table: NDArray[Any], name: str) -> Predictor:
    """Wrap the output of a trainer as a predictor of classes.

    Parameters
    ----------
    trained : object
    known, table : array
        The classes of the training rows, and of all rows.
    name : str
        The name of the trainer in error messages.
    """
    predict = _predict(trained, name)
    if any(hasattr(trained, method) for method in ("predict_proba", "decision_function")):
        return EstimatorPredictor(trained, known, table, name)
    return ClassifierFunction(predict, known, table, name)


def _predict(trained: Any, name: str) -> Callable[[Any], Any]:
    predict = getattr(trained, "predict", trained)
    if not callable(predict):
        raise ModelError(
            f"{name} returned {type(trained).__name__}; a trainer returns an object with predict, "
            "or a function X → predictions."
        )
    found: Callable[[Any], Any] = predict
    return found


class EstimatorPredictor(MethodPredictor):
    """A trained object with scikit-learn's methods. It may lack `classes_`."""

    def __init__(self, trained: Any, known: NDArray[Any], table: NDArray[Any], name: str) -> None:
        own = getattr(trained, "classes_", None)
        super().__init__(trained, known if own is None else np.asarray(own))
        self._silent = own is None
        self._table, self._name = table, name

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        given = super().predict(kind, X)
        if kind == "label":
            _require_labels(_flat(given), self._name, self._table)
        elif self._silent and given.ndim == 2 and given.shape[1] == len(self._table):
            self.classes = self._table
        return given


class ClassifierFunction:
    """A function that returns labels or class probabilities, as inferred from their shape."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        classes: NDArray[Any],
        table: NDArray[Any],
        name: str,
    ) -> None:
        self.classes: NDArray[Any] | None = classes
        self._function, self._name = function, name
        self._table = table

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        assert self.classes is not None
        given = _flat(self._function(X))
        if given.ndim == 2 and given.shape[1] in (len(self.classes), len(self._table)):
            if given.shape[1] != len(self.classes):
                self.classes = self._table  # it has columns for classes that its rows lack
            shared = FunctionPredictor.from_probabilities(
                lambda _: given, self.classes, name=self._name
            )
        else:
            _require_labels(given, self._name, self._table)
            shared = FunctionPredictor({"label": lambda _: given}, self.classes, name=self._name)
        return shared.predict(kind, X)


def _require_labels(given: NDArray[Any], name: str, classes: NDArray[Any]) -> None:
    """Raise an error for predictions that are not labels of the table."""
    if given.ndim > 1 or (given.dtype.kind == "f" and (given != np.round(given)).any()):
        raise PredictionError(
            f"the predictor of {name} returns numbers of shape {given.shape} that are not classes; for "
            f"probabilities return a column for each of the {len(classes)} classes, in sorted order."
        )
    if len(given) and set(given.tolist()).isdisjoint(classes.tolist()):
        raise PredictionError(
            f"the predictor of {name} returns {given.tolist()[0]!r}, which is not a class of the "
            f"table; they are {', '.join(map(repr, classes[:10].tolist()))}. Return labels, not their numbers."
        )


def _flat(predictions: Any) -> NDArray[Any]:
    given = np.asarray(predictions)
    return given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given


def _name(trainer: str | Trainer | StoredCode) -> str:
    if isinstance(trainer, str):
        return trainer
    if isinstance(trainer, StoredCode):
        return f"{trainer.function} as stored with the run"
    module = getattr(trainer, "__module__", None)
    name = getattr(trainer, "__qualname__", type(trainer).__name__)
    return name if module in (None, "__main__") else f"{module}:{name}"


def _function(trainer: str | Trainer | StoredCode) -> Trainer:
    if isinstance(trainer, StoredCode):
        return trainer.load()
    return import_function(trainer) if isinstance(trainer, str) else trainer


def import_function(name: str) -> Trainer:
    """Import "module:function". The current folder is searched too."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise InputError(f"trainer={name!r} is not of the form 'module:function'.")
    if str(Path.cwd()) not in sys.path:  # as with `python -m`, but not with the console script
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: Any = import_module(module)
        for part in function.split("."):
            value = getattr(value, part)
    except ImportError as error:
        raise InputError(
            f"trainer={name!r} cannot be imported: {error}. Modules are searched in the current "
            f"folder, {str(Path.cwd())!r}, and on Python's path (PYTHONPATH)."
        ) from error
    except AttributeError as error:
        raise InputError(
            f"trainer={name!r} cannot be imported: {error}.{closest(function, dir(value))}"
        ) from error
    trainer: Trainer = value
    return trainer


def _arguments(function: Any) -> set[str]:
    if not callable(function):
        raise InputError(
            f"trainer={function!r} is not callable; give 'module:function' or a function "
            "(X, y, sample_ids) → predictor."
        )
    try:
        signature = inspect.signature(function)
        signature.bind(None, None, None)
    except ValueError:  # some built-in functions have no signature
        return set()
    except TypeError:
        # more than three arguments are allowed if the others are in EXTRAS
        extras = {name: None for name in EXTRAS if name in signature.parameters}
        try:
            signature.bind(None, None, None, **extras)
        except TypeError as error:
            raise InputError(
                f"trainer {getattr(function, '__name__', function)!r} must take (X, y, sample_ids), "
                f"and may take sample_weight and seed by keyword: {error}."
            ) from error
    return set(signature.parameters)
