"""The command line, assembled: `handheld doctor`, `train`, `package`, `verify`."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import handheld
from handheld.cli import doctor, package, show, train, verify
from handheld.errors import HandheldError

_DEBUG = "--debug"


class _Commands(TyperGroup):
    """Turns errors made on purpose into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            show.fail(str(stop) or "interrupted")
            raise typer.Exit(130) from None
        except (HandheldError, ImportError) as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            show.fail(_text(error))
            raise typer.Exit(1) from None


def _text(error: Exception) -> str:
    if not isinstance(error, ImportError):
        return str(error)
    if (error.name or "").partition(".")[0] == "torch":
        return ("this needs PyTorch, which is not installed here. Try: pip install "
                "'handheld[capture]', or use a step file packaged elsewhere")
    return f"{error}. Try: pip install {(error.name or 'the missing package').partition('.')[0]}"


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False,
                  add_completion=False, rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]})
app.command("doctor")(doctor.doctor)
app.command("train")(train.train)
app.command("package")(package.package)
app.command("verify")(verify.verify)


def _version(wanted: bool) -> None:
    if wanted:
        show.out.print(f"handheld {handheld.__version__}")
        raise typer.Exit


@app.callback()
def handheld_command(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                          help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks of errors.")] = False,
) -> None:
    """Train PyTorch models on phone-class hardware through OpenCL.

    \b
    handheld doctor                       what this machine can do
    handheld train lenet5 --data digits   train something real
    """


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point. `--debug` is understood anywhere on the line."""
    given = list(sys.argv[1:] if argv is None else argv)
    if _DEBUG in given:
        given = [_DEBUG, *(word for word in given if word != _DEBUG)]
    # drivers chatter while they build kernels; what matters becomes a BuildError
    warnings.filterwarnings("ignore", message="Non-empty compiler output")
    warnings.showwarning = _show_warning
    app(args=given, prog_name="handheld")


def _show_warning(message: Warning | str, *_: Any) -> None:
    show.warn(str(message))


if __name__ == "__main__":
    main()
