"""`handheld federate`: federated training on Flower."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from handheld.cli import output
from handheld.cli.federate_tables import budget_rows, by_device_table, rounds_table, target_rows
from handheld.cli.options import Json
from handheld.cli.stopping import terminated
from handheld.errors import HandheldError, ResultsError
from handheld.federated.app import settings_of, write_app
from handheld.federated.clock import check_clock
from handheld.federated.connect import NAME, connect, stop_simulation
from handheld.federated.keys import Keys, make_keys
from handheld.federated.page import write_page
from handheld.federated.processes import Federation, check_device, environment, free_port, link_command, node_command
from handheld.federated.protocols import as_data
from handheld.federated.record import COMPLETE, Record, newest, read_record
from handheld.federated.settings import checked

federate = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)

AppFolder = Annotated[Path, typer.Argument(metavar="APP", help="The folder of a Flower app.")]
KeysFolder = Annotated[
    Path | None, typer.Option("--keys", metavar="FOLDER", help="Use TLS and keys of `handheld federate keys`.")
]


@federate.callback()
def federate_command(context: typer.Context) -> None:
    """Train one model on many devices, with Flower."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@federate.command("init")
def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")], json: Json = False) -> None:
    """Write a small Flower app to begin with.

    It trains a small model on scikit-learn's digits, split unevenly by class. Change its model and its data.

    \b
    Examples:
    handheld federate init digits
    handheld federate run digits          # four devices of this machine
    flwr run digits --stream              # the same app in Flower's simulation
    """
    files = write_app(folder)
    if json:
        output.print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return
    output.out.print(f"wrote {', '.join(str(path) for path in files[:2])}", soft_wrap=True)
    output.out.print(f"next: handheld federate run {folder}", soft_wrap=True)


@federate.command("run")
def run(
    app: AppFolder,
    on: Annotated[
        str, typer.Option("--on", metavar="DEVICES", help="One SuperNode per device: opencl, ssh:user@host, adb, ….")
    ] = "opencl,opencl,opencl,reference:cpu",
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Rounds; default: those of the app.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Results; default: those of the app.")] = None,
    keys: KeysFolder = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="The port of the SuperLink; default: a free one.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a Flower app on devices that this machine reaches.

    Starts a SuperLink and one SuperNode per device on this machine, runs the app, and stops them. Programs that die
    are started again, and the training continues after its last round. So does the next start of this command.

    \b
    Examples:
    handheld federate run digits
    handheld federate run digits --on opencl,adb:R5CT10XYZ,ssh:pi@board
    handheld federate run digits --rounds 20 --keys keys
    """
    settings = settings_of(app)
    checked(settings)
    results = (out or Path(str(settings.get("out", "federated")))).resolve()
    given = {"out": f'out="{results.as_posix()}"', "rounds": f"rounds={rounds}" if rounds else ""}
    unknown = [name for name, text in given.items() if text and name not in settings]
    if unknown:
        raise HandheldError(
            f"{app / 'pyproject.toml'} has no setting {unknown[0]!r}, so it cannot be changed. Try: add it to "
            "[tool.flwr.app.config]"
        )
    devices = [device.strip() for device in on.split(",") if device.strip()]
    if not devices:
        raise HandheldError("no device is named. Try: --on opencl,opencl")
    before = newest(results)
    wanted = before + 1 if before and read_record(results / str(before)).status == COMPLETE else max(before, 1)

    def finished() -> bool:
        now = newest(results)
        return now >= wanted and read_record(results / str(now)).status == COMPLETE

    folder = results / "processes"
    with _told(), Federation(folder, devices, Keys(keys.resolve()) if keys else None, port, _say) as federation:
        for line in federation.run(app.resolve(), [text for text in given.values() if text], finished):
            if line.startswith(("INFO", "WARNING", "ERROR")) and line.partition(":")[2].strip():
                output.err.print(
                    line.partition(":")[2].strip(), style="dim", highlight=False, soft_wrap=True, markup=False
                )
    record = read_record(results / str(newest(results)))
    _show(record, results / str(newest(results)), json, {})


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say how to continue after Ctrl-C or SIGTERM."""
    try:
        with terminated():
            yield
    except KeyboardInterrupt:
        _say("stopped. The same command continues after the last round")
        raise


def _say(text: str) -> None:
    output.err.print(text, highlight=False, soft_wrap=True, markup=False)


@federate.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the keys are kept.")],
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name or address of the server; repeatable.")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Keys for so many devices.")] = 4,
    json: Json = False,
) -> None:
    """Make what TLS and node authentication need.

    ca.crt and one node key go to each device; server.key stays with the SuperLink. Existing keys are kept, so a
    larger --nodes adds devices.

    \b
    Examples:
    handheld federate keys keys --host server.local --host 192.168.1.20
    handheld federate keys keys --nodes 10
    """
    made = make_keys(
        folder, [*(host or []), *([] if (folder / "ca.crt").exists() else ["localhost", "127.0.0.1"])], nodes
    )
    if json:
        output.print_json({"folder": str(folder), "nodes": [str(path) for path in made.nodes]})
        return
    output.out.print(f"{folder} holds TLS of the server and keys for {len(made.nodes)} devices", soft_wrap=True)


@federate.command("link")
def link(
    keys: KeysFolder = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")] = 8000,
    database: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the state of the SuperLink here.")] = None,
) -> None:
    """Start Flower's SuperLink, with TLS and node authentication.

    Beyond this machine it needs --keys. Register its devices once, while it runs: handheld federate connect

    \b
    Examples:
    handheld federate link --keys keys --host 0.0.0.0
    handheld federate link --host ::1
    """
    host = host.strip("[]")
    command = link_command(host, free_port(port, host), Keys(keys) if keys else None, database)
    os.execve(command[0], command, environment())


@federate.command("connect")
def connect_command(
    link: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The SuperLink.")],
    keys: Annotated[Path, typer.Option("--keys", metavar="FOLDER", help="Keys of handheld federate keys.")],
    json: Json = False,
) -> None:
    """Register all devices of a folder of keys, and tell Flower's commands where the SuperLink is.

    The connection is named handheld in Flower's settings, beside others that are there.

    \b
    Examples:
    handheld federate connect server.local:8000 --keys keys
    flwr run digits handheld --stream
    """
    new, known = connect(link, Keys(keys))
    if json:
        output.print_json({"link": link, "registered": new, "known": known})
        return
    output.out.print(f"{new + known} devices are registered on {link}, {new} of them now", soft_wrap=True)
    output.out.print(f"next: flwr run APP {NAME} --stream", soft_wrap=True)


@federate.command("stop")
def stop(json: Json = False) -> None:
    """Stop the SuperLink that `flwr run` keeps in the background for simulations.

    \b
    Examples:
    handheld federate stop
    """
    stopped = stop_simulation()
    if json:
        output.print_json({"stopped": stopped})
        return
    output.out.print("the SuperLink of simulations was stopped" if stopped else "no SuperLink of simulations runs")


@federate.command("node")
def node(
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="What trains: opencl, adb, ssh:user@host.")],
    link: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink.")],
    part: Annotated[str, typer.Option(metavar="I/N", help="Which part of the data, from 0 on.")] = "0/1",
    keys: KeysFolder = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of this device.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="A local port; default: a free one.")
    ] = None,
) -> None:
    """Start Flower's SuperNode for one device.

    \b
    Examples:
    handheld federate node --on adb --link server.local:8000 --keys keys --key keys/node-1.key --part 0/4
    """
    number, _, total = part.partition("/")
    if not (number.isdigit() and total.isdigit() and int(number) < int(total)):
        raise HandheldError(f"--part {part} is not possible. Try: 0/4 to 3/4 for four devices")
    check_device(on)
    config: dict[str, str | int] = {"device": on, "partition-id": int(number), "num-partitions": int(total)}
    command = node_command(link, free_port(port), config, Keys(keys) if keys else None, key)
    if keys:
        check_clock(link, Keys(keys))
    os.execve(command[0], command, environment())


@federate.command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="An app, or the folder of a training.")],
    target: Annotated[float | None, typer.Option(metavar="VALUE", help="What it took to reach this value.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="WHAT=N", help="The best for at most N rounds, seconds, joules or bytes.")
    ] = None,
    metric: Annotated[str, typer.Option(metavar="NAME", help="The metric of --target and --budget.")] = "accuracy",
    json: Json = False,
) -> None:
    """Show what a federated training reached and what it cost; writes its page.

    \b
    Examples:
    handheld federate report digits --target 0.95
    handheld federate report digits/federated/1 --budget seconds=60
    """
    folder = _newest_in(folder)
    record = read_record(folder)
    where = folder if folder.is_dir() else folder.parent
    if metric not in {name for one in record.rounds for name in one.metrics}:
        raise ResultsError(
            f"this training has no metric {metric!r}. Try: "
            + ", ".join(sorted({name for one in record.rounds for name in one.metrics}))
        )
    write_page(record, where / "index.html")
    _show(record, where, json, {**target_rows(record, metric, target), **budget_rows(record, metric, budget)})


def _newest_in(folder: Path) -> Path:
    """The newest training of an app, or of a folder of trainings; else the folder itself."""
    if (folder / "pyproject.toml").is_file():
        app = folder
        folder = Path(str(settings_of(folder).get("out", "federated")))
        if not folder.is_dir():
            raise ResultsError(f"{app} has no results in {folder} yet. Try: handheld federate run {app}")
    number = newest(folder) if folder.is_dir() and not (folder / "federated.json").exists() else 0
    return folder / str(number) if number else folder


def _show(record: Record, where: Path, json: bool, answers: dict[str, str]) -> None:
    """`answers`: those to --target and --budget."""
    if json:
        output.print_json({"folder": str(where), **asdict(record), **as_data(record), "answers": answers})
        return
    output.out.print(rounds_table(record))
    output.out.print()
    output.out.print(by_device_table(record))
    output.out.print()
    if answers:
        output.out.print(output.grid(list(answers.items())))
    for note in record.notes:
        output.out.print(f"note: {note}", soft_wrap=True)
    for name, why in record.refused.items():
        output.out.print(f"refused: node {name}: {why}", soft_wrap=True)
    output.out.print(f"page: {where / 'index.html'}", soft_wrap=True)
