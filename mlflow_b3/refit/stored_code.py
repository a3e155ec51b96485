"""Trainers stored with a run as source code, so that a later audit finds them."""

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
from typing import Any

from mlflow_b3.errors import InputError, ModelError, TrackingError
from mlflow_b3.version import __version__

FOLDER = "b3/trainer"
INDEX = "trainer.json"


@dataclass(frozen=True)
class StoredCode:
    """Source files and the function in them; plain text, so that it can travel to any worker.

    Attributes
    ----------
    function : str
        "module:function".
    files : tuple of (str, str)
        Relative path and text of each file.
    """

    function: str
    files: tuple[tuple[str, str], ...]

    def load(self) -> Callable[..., Any]:
        """Import the function, which runs the code."""
        return _load(self)[0]

    def at_home(self) -> AbstractContextManager[None]:
        """Let imports find the stored files first: functions may import when they are called."""
        return _load(self)[1].active()


class _Home:
    """A folder of this process's own with stored files, whose modules cannot mix with others.

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
        """Import from here, and leave the modules of others as they were afterwards."""
        with self._lock:  # threads enter and leave in any order
            if not self._users:
                self._shadowed = self._taken()
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
                    self._own.update(self._taken())
                    sys.modules.update(self._shadowed)

    def _taken(self) -> dict[str, ModuleType]:
        """Take the modules with names of ours out of those that Python knows."""
        return {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name.split(".")[0] in self._names
        }


@cache
def _load(code: StoredCode) -> tuple[Callable[..., Any], _Home]:
    """Import the function of some stored code from a folder of its own."""
    folder = tempfile.TemporaryDirectory(prefix="b3-trainer-")  # gone when the process ends
    root = Path(folder.name)
    for name, text in code.files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    module, _, function = code.function.partition(":")
    home = _Home(folder, {Path(name).parts[0].removesuffix(".py") for name, _ in code.files})
    try:
        with home.active():
            value: Any = import_module(module)
            for part in function.split("."):
                value = getattr(value, part)
    except Exception as error:  # the file's own code may raise anything
        raise ModelError(
            f"the trainer {code.function!r} that is stored with the run cannot be imported: "
            f"{type(error).__name__}: {error}. Give trainer= instead."
        ) from error
    loaded: Callable[..., Any] = value
    return loaded, home


def log_trainer(
    trainer: str | Callable[..., Any],
    *,
    run_id: str | None = None,
    code_paths: Sequence[str | Path] = (),
) -> None:
    """Store a trainer with a run, so that audits of the run's models refit by it.

    Its source code is stored as text, never a pickle: the file it is defined in, or, in a notebook
    or script, the function alone, which must then do its own imports.

    Parameters
    ----------
    trainer : "module:function" or function
        `(X, y, sample_ids) → predictor`; see `mlflow_b3.audit`.
    run_id : str, optional
        By default the active run.
    code_paths : sequence of paths, optional
        Further .py files, or folders with them, that it imports. A trainer in a package that imports
        relatively (`from . import …`) needs the folder of that package.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    from mlflow_b3.refit.trainer import TrainerLearner, import_function

    TrainerLearner(trainer)  # its arguments are checked before anything is written
    code = pack(import_function(trainer) if isinstance(trainer, str) else trainer, code_paths)
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("log_trainer needs run_id=… where no run is active.")
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
    """Return the trainer that is stored with a run, or None; its code is not run yet."""
    import mlflow
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        tags = mlflow.MlflowClient().get_run(run_id).data.tags
    except (MlflowException, OSError):
        return None  # a model that outlived its run, or is read from another server
    if "b3.trainer" not in tags:
        return None
    try:
        folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=FOLDER))
        index: Mapping[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        outside = [name for name in index["files"] if ".." in Path(name).parts or name[:1] in "/\\"]
        if outside:
            raise ValueError(f"its index names files outside of its folder: {outside}")
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
    """Return the source code that a function needs."""
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or "<" in name:
        raise InputError(
            f"trainer={function!r} cannot be stored; only functions defined at the top of a file or "
            "notebook cell can. Move it there."
        )
    files = _further_files(code_paths)
    module = function.__module__
    if module == "__main__":
        module = "b3_trainer"
        files["b3_trainer.py"] = _own_source(function)
    elif not _stored_with_its_package(module, files):
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


def _stored_with_its_package(module: str, files: Mapping[str, str]) -> bool:
    path = module.replace(".", "/")
    return "." in module and (f"{path}.py" in files or f"{path}/__init__.py" in files)


def _module_source(module: str, name: str) -> str:
    """Return the text of a file that needs no package around it."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or not path.endswith(".py"):
        raise InputError(f"trainer {module}:{name} has no source file that could be stored.")
    text = Path(path).read_text(encoding="utf-8")
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))):
        package = module.split(".")[0]
        raise InputError(
            f"trainer {module}:{name} imports from its package, which has to be stored with it: give "
            f"code_paths=['path/to/{package}']."
        )
    return text


def _own_source(function: Callable[..., Any]) -> str:
    """Return the text of a function that needs nothing from around it."""
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
