"""Trainers stored with a run as source code, so that a later audit finds them."""

import hashlib
import inspect
import json
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path
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
        return _load(self)


@cache
def _load(code: StoredCode) -> Callable[..., Any]:
    """Import from a folder of this process's own, so that two runs' modules cannot mix."""
    root = Path(tempfile.mkdtemp(prefix="b3-trainer-"))
    for name, text in code.files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    module, _, function = code.function.partition(":")
    stored = {Path(name).parts[0].removesuffix(".py") for name, _ in code.files}
    shadowed = {name: sys.modules.pop(name) for name in list(sys.modules) if _root(name) in stored}
    sys.path.insert(0, str(root))
    invalidate_caches()
    try:
        value: Any = import_module(module)
        for part in function.split("."):
            value = getattr(value, part)
    except Exception as error:  # the file's own code may raise anything
        raise ModelError(
            f"the trainer {code.function!r} that is stored with the run cannot be imported: "
            f"{type(error).__name__}: {error}. Give trainer= instead."
        ) from error
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if _root(name) in stored]:
            del sys.modules[name]
        sys.modules.update(shadowed)
    loaded: Callable[..., Any] = value
    return loaded


def _root(name: str) -> str:
    return name.split(".")[0]


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
        Further .py files, or folders with them, that it imports.
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
        if "b3.trainer" not in mlflow.MlflowClient().get_run(run_id).data.tags:
            return None
        folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=FOLDER))
        index: Mapping[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files = tuple(
            (name, (folder / name).read_text(encoding="utf-8")) for name in index["files"]
        )
    except (MlflowException, OSError, ValueError) as error:
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
    files: dict[str, str] = {}
    module = function.__module__
    if module == "__main__":
        module = "b3_trainer"
        files["b3_trainer.py"] = _own_source(function)
    else:
        found = sys.modules.get(module)
        path = getattr(found, "__file__", None)
        if path is None or not path.endswith(".py"):
            raise InputError(f"trainer {module}:{name} has no source file that could be stored.")
        module = module.rsplit(".", 1)[-1]
        files[f"{module}.py"] = Path(path).read_text(encoding="utf-8")
    for given in map(Path, code_paths):
        if not given.exists():
            raise InputError(f"code_paths: {str(given)!r} does not exist.")
        paths = sorted(given.rglob("*.py")) if given.is_dir() else [given]
        for path in paths:
            relative = path.relative_to(given.parent).as_posix()
            files[relative] = path.read_text(encoding="utf-8")
    return StoredCode(function=f"{module}:{name}", files=tuple(sorted(files.items())))


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
