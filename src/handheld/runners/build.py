"""Builds the runner from its C sources."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from handheld.errors import DeviceError
from handheld.runners import sources
from handheld.runners.android import NAMES
from handheld.runners.compilers import Compiler, choose
from handheld.runners.platforms import named

PATIENCE_S = 300.0
SHOWN = 12  # lines of a compiler's message


def build(platform: str, out: Path, compiler: str | None = None) -> Compiler:
    """Builds the runner for a platform into the file `out`, which is replaced at once. Returns the compiler used."""
    chosen = choose(named(platform), compiler)
    source = f'-DHANDHELD_SOURCE="{sources.source_hash()}"'
    files = [path.name for path in sources.c_files()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".runner-", dir=out.parent) as folder:
            made = Path(folder).resolve() / sources.EXECUTABLE
            libraries = _stubs(chosen, made.parent) if chosen.bare else ["-ldl", "-lm"]
            _compile(chosen.line([source, *files], libraries, made), platform)
            made.chmod(0o755)
            os.replace(made, out)
    except OSError as error:
        reason = error.strerror or error
        raise DeviceError(f"the runner could not be built at {out}: {reason}. Try: --out with another file") from error
    return chosen


def _stubs(compiler: Compiler, folder: Path) -> list[str]:
    """Libraries for the linker that hold Android's names, one file each."""
    made = []
    for library, names in NAMES.items():
        text = folder / f"{library}.c"
        text.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
        _compile(compiler.shared_line(str(text), library, folder / library), "android-arm64")
        made.append(str(folder / library))
    return made


def _compile(line: list[str], platform: str) -> None:
    """Runs a compiler in the folder of the sources, so that no path of this machine gets into the executable."""
    try:
        done = subprocess.run(
            line, cwd=sources.NATIVE, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{line[0]} did not finish within {PATIENCE_S:.0f} s. Try: --with another compiler"
        ) from error
    if done.returncode != 0:
        said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[:SHOWN])
        raise DeviceError(
            f"the runner for {platform} could not be built: {Path(line[0]).name} ended with code {done.returncode}. "
            f"Try: --with another compiler, if one is installed\n{said}"
        )
