"""Assembles the commands (`doctor`, `train`, `profile`, ...) and turns their errors into exit codes."""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

import handheld
from handheld import callers
from handheld.cli import (
    advise,
    bench,
    compare,
    cost,
    doctor,
    export,
    federate,
    fit,
    fleet,
    import_trace,
    output,
    package,
    plan,
    predict,
    profile,
    report,
    runner,
    serve,
    show,
    stopping,
    study,
    target,
    train,
    tune,
    verify,
    where,
)
from handheld.errors import HandheldError
from handheld.run.interrupt import Interrupted, ignore_interrupts

_DEBUG = "--debug"
#: What a system says that refuses a file. These are no faults of Handheld, so they need no traceback.
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR)


def _plain(text: str) -> str:
    """Help without the backslashes that typer writes for rich's markup, which is off here."""
    return text.replace("\\[", "[")


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Commands(_Group):
    """Prints a known error as one line and sets the exit code.

    With --json, stdout always holds one document. After an error it is `{"error": {"type", "message"}}`.
    """

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as stop:
                _stopped(stop, as_json)
        except typer.Exit:
            raise
        except KeyboardInterrupt as again:  # a second Ctrl-C arrived while the first was handled
            _stopped(again, as_json)
        except Exception as error:
            if as_json:
                output.print_error(type(error).__name__, _text(error))
            if ctx.params.get("debug"):
                traceback.print_exc()
            elif not _expected(error):
                raise
            output.fail(_text(error))
            raise typer.Exit(1) from None


def _stopped(stop: KeyboardInterrupt, as_json: bool) -> NoReturn:
    ignore_interrupts()
    cause = _cause(stop)
    text = str(cause) or "interrupted"
    if as_json:
        output.print_error("Interrupted", text)
    output.stopped(text)
    raise typer.Exit(128 + getattr(cause, "signal", signal.SIGINT)) from None


class _Interrupts:
    """Raises KeyboardInterrupt for Ctrl-C, unless another one came less than `QUIET_S` before.

    A quick second Ctrl-C would interrupt the clean-up that the first one started.
    """

    QUIET_S = 2.0

    def __init__(self) -> None:
        self._last = -self.QUIET_S

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= self.QUIET_S:
            self._last = now
            raise KeyboardInterrupt


def _cause(stop: BaseException) -> BaseException:
    """The `Interrupted` that the first Ctrl-C led to, even if a second Ctrl-C hid it; else `stop`."""
    error: BaseException | None = stop
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error or stop


def _expected(error: Exception) -> bool:
    """Whether to show one line, without a traceback: own errors, missing packages, files that the system refuses, and
    OpenCL driver errors."""
    from_driver = type(error).__module__.partition(".")[0] == "pyopencl"
    return isinstance(error, (HandheldError, ImportError)) or _refused(error) or from_driver


def _refused(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _REFUSALS


def _text(error: Exception) -> str:
    if hasattr(error, "format_message"):  # an error of the command line itself, such as an unknown option
        return str(error.format_message())
    if isinstance(error, OSError) and _refused(error):
        return f"{error.filename or 'the output'} cannot be read or written: {error.strerror}"
    if not isinstance(error, ImportError):
        name = "" if isinstance(error, HandheldError) else f"{type(error).__name__}: "
        return f"{name}{error}"
    if (error.name or "").partition(".")[0] == "torch":
        return (
            "this needs PyTorch, which is not installed here. Try: pip install torch, "
            "or use a step file packaged elsewhere"
        )
    hint = f". Try: pip install {error.name.partition('.')[0]}" if error.name else ""
    return f"{str(error).rstrip('.')}{hint}"


app = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("doctor")(doctor.doctor)
app.command("train")(train.train)
app.command("predict")(predict.predict)
app.command("profile")(profile.profile)
app.command("show")(show.show)
app.command("report")(report.report)
app.command("advise")(advise.advise)
app.command("export")(export.export)
app.command("import")(import_trace.import_)
app.command("plan")(plan.plan)
app.command("fit")(fit.fit)
app.command("cost")(cost.cost)
app.command("where")(where.where)
app.command("package")(package.package)
app.command("verify")(verify.verify)
app.command("tune")(tune.tune)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("serve")(serve.serve)
app.add_typer(study.study, name="study")
app.add_typer(runner.runner, name="runner")
app.add_typer(target.target, name="target")
app.add_typer(federate.federate, name="federate")
app.add_typer(fleet.fleet, name="fleet")
for group in app.registered_groups:
    group.cls = _Group
for part in (app, *(group.typer_instance for group in app.registered_groups)):
    for command in part.registered_commands if part else ():
        command.cls = _Command


def _version(wanted: bool) -> None:
    if wanted:
        output.out.print(f"handheld {handheld.__version__}")
        raise typer.Exit


@app.callback()
def handheld_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks of errors.")] = False,
) -> None:
    """Train PyTorch models on phone-class hardware and measure every op.

    \b
    Start here:
    handheld doctor                       show what this machine can do
    handheld train lenet5 --data digits   train a first model
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning. One about the user's own code names its file and line."""
    if callers.is_user_file(filename):
        output.warn(str(message), f"{output.path(Path(filename))}:{lineno}")
    else:
        output.warn(str(message))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line. `--debug` may stand anywhere in `argv`."""
    given = list(sys.argv[1:] if argv is None else argv)
    if _DEBUG in given:
        given = [_DEBUG, *(word for word in given if word != _DEBUG)]
    warnings.showwarning = _show_warning
    output.write_any_encoding()
    own = threading.current_thread() is threading.main_thread()
    if own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupts())
        stopping.answer()
    app(args=given, prog_name="handheld")


if __name__ == "__main__":
    main()
