"""Writes a small Flower app to begin with: digits, split by class."""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path

from handheld.errors import HandheldError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def write_app(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder. Returns its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HandheldError(f"{folder} exists already. Try: another folder")
    name = re.sub(r"\W+", "_", folder.resolve().name).strip("_").lower() or "app"
    if not name.isidentifier():
        name = f"app_{name}"
    files = {"pyproject.toml": "pyproject.toml.txt", f"{name}/app.py": "app.py.txt"}
    template = resources.files("handheld.federated") / "template"
    written = []
    out = (folder / "federated").resolve().as_posix()
    for path, source in files.items():
        text = (template / source).read_text(encoding="utf-8").replace("@NAME@", name).replace("@OUT@", out)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        written.append(folder / path)
    (folder / name / "__init__.py").touch()
    return [*written, folder / name / "__init__.py"]


def settings_of(app: Path) -> dict[str, object]:
    """The run config of an app. Raises HandheldError if it is no Flower app."""
    path = app / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        return dict(project["tool"]["flwr"]["app"].get("config", {}))
    except OSError as error:
        raise HandheldError(
            f"{app} is no Flower app: {path.name}: {error.strerror}. Try: handheld federate init"
        ) from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise HandheldError(f"{path} is not that of a Flower app ({error}). Try: handheld federate init") from None
