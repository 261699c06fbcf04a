"""Makes environments with only some extras of the package, whose libraries are links to those of this environment."""

import tomllib
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(requirement: Requirement) -> str:
    return requirement.name + "".join(f"[{each}]" for each in sorted(requirement.extras))


def extra(*names: str) -> dict[str, str]:
    """Return the requirements of extras of the package, or without a name those of the base: distribution with extras -> versions."""
    found: dict[str, str] = {}
    texts = [text for name in names for text in project()["optional-dependencies"][name]] if names else project()["dependencies"]
    for requirement in map(Requirement, texts):
        found |= extra(*sorted(requirement.extras)) if requirement.name == "mantissa" else {named(requirement): str(requirement.specifier)}
    return found


def required(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the distributions that ``pip install name[extras]`` installs, including itself, among those in this environment."""
    found = {name}
    for requirement in map(Requirement, metadata.requires(name) or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            found |= required(requirement.name, requirement.extras)
    return found


def linked(folder: Path, *extras: str) -> Path:
    """Make an environment in ``folder`` with the libraries of the base and ``extras``. Returns the folder of its programs."""
    venv.create(folder)
    (packages,) = folder.glob("lib/*/site-packages")
    asked = map(Requirement, {**extra(), **(extra(*extras) if extras else {})})
    for name in {each for requirement in asked for each in required(requirement.name, requirement.extras)}:
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return folder / "bin"
