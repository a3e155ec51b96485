"""The requirements in the folder of a logged model: read, compared with ours, and added to."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mlflow_b3.errors import ModelError

#: A package pinned as conda writes it: name=version, perhaps with a build.
CONDA_PIN = re.compile(r"([\w.\-]+)\s*={1,2}\s*([\w.]+)(=\S+)?")


class ModelRequirements:
    """What a model was logged with, for one of MLflow's environment managers.

    Parameters
    ----------
    folder : pathlib.Path
        A copy of the model's folder, which may be changed.
    uri : str
        What errors call the model.
    conda : bool
        Whether conda.yaml counts, or python_env.yaml with requirements.txt.
    """

    def __init__(self, folder: Path, uri: str, *, conda: bool) -> None:
        self._folder = folder
        self._uri = uri
        self._conda = conda
        self._file = folder / ("conda.yaml" if conda else "python_env.yaml")
        try:
            self._content: Any = yaml.safe_load(self._file.read_text(encoding="utf-8"))
            self._lists = self._content["dependencies"]
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise ModelError(
                f"model={uri!r} was logged without a usable {self._file.name}, which says what its "
                f"environment is made of: {error}. Leave env_manager out."
            ) from error

    def require_python(self, allowed: str) -> None:
        """Raise an error if the model's Python is not one that this package runs on."""
        python = self._pins().get("python") if self._conda else self._content.get("python")
        if python and Version(str(python)) not in SpecifierSet(allowed):
            raise ModelError(
                f"model={self._uri!r} was logged with Python {python}; mlflow-b3 needs {allowed}. "
                "Leave env_manager out and audit it here, or log it again with a newer Python."
            )

    def require_no_conflict(self, needed: Sequence[Requirement]) -> None:
        """Raise an error that names every version that is pinned to one that we cannot use."""
        pins = self._pins()
        conflicts = []
        for ours in needed:
            pinned = pins.get(canonicalize_name(ours.name))
            if pinned and not ours.specifier.contains(pinned, prereleases=True):
                conflicts.append(f"{ours.name} {pinned}, while mlflow-b3 needs {ours.specifier}")
        if conflicts:
            raise ModelError(
                f"model={self._uri!r} cannot be audited in its own environment. It pins "
                f"{'; '.join(conflicts)}. Log the model again with newer versions, or leave "
                "env_manager out and audit it in an environment where it can be loaded."
            )

    def add(self, needed: Sequence[Requirement]) -> None:
        """Write our requirements next to those of the model."""
        texts = [str(requirement) for requirement in needed]
        if self._conda:
            within = [part for part in self._lists if isinstance(part, dict) and "pip" in part]
            if within:
                within[0]["pip"] += texts
            else:
                self._lists += ["pip", {"pip": texts}]
        else:
            self._lists += texts
            # MLflow would install from the lock alone; requirements.txt says the same
            (self._folder / "uv.lock").unlink(missing_ok=True)
        self._file.write_text(yaml.safe_dump(self._content), encoding="utf-8")

    def _pins(self) -> dict[str, str]:
        """Return the exact versions that the model asks for, by name."""
        pins: dict[str, str] = {}
        for line in self._lines():
            found = CONDA_PIN.fullmatch(line) if self._conda else None
            if found and _is_version(found[2]):
                pins[canonicalize_name(found[1])] = found[2]
            for name, version in _pinned(line):
                pins[name] = version
        return pins

    def _lines(self) -> Iterator[str]:
        for part in self._lists:
            for line in part.get("pip", []) if isinstance(part, dict) else [part]:
                yield from self._expanded(str(line).strip())

    def _expanded(self, line: str) -> Iterator[str]:
        """Yield a requirement, or those of the file that a line such as `-r file` names."""
        other = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", line)
        if other is None:
            yield line
        elif (self._folder / other[1]).is_file():
            text = (self._folder / other[1]).read_text(encoding="utf-8")
            yield from (row.split(" #")[0].strip() for row in text.splitlines())


def _pinned(line: str) -> Iterator[tuple[str, str]]:
    """Yield the name and version of a requirement such as `numpy==2.1`, if it is one."""
    try:
        requirement = Requirement(line.split(" --")[0].rstrip("\\ "))  # hashes are of no interest
    except InvalidRequirement:
        return  # options, addresses and files are for the installer
    if requirement.marker is not None and not requirement.marker.evaluate():
        return
    for specifier in requirement.specifier:
        if specifier.operator in ("==", "===") and _is_version(specifier.version):
            yield canonicalize_name(requirement.name), specifier.version


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
