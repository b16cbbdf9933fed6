"""`handheld serve`: the runs of a folder in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.cli import output
from handheld.cli.options import Json
from handheld.serve.server import PORT, Server


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with run files. Default: the current folder.")
    ] = Path(),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port on this machine. 0: any free port.")
    ] = PORT,
    json: Json = False,
) -> None:
    """Show the runs of a folder in a browser, and compare them.

    The list names all run files of the folder and its sub-folders. A run that is going on is shown live.
    Only this machine can reach the server. Ctrl-C ends it.

    \b
    Examples:
    handheld serve
    handheld serve results --port 9000
    """
    with Server(folder, port) as server:
        try:
            _say(server, folder, json)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            output.stopped("the server has ended")


def _say(server: Server, folder: Path, json: bool) -> None:
    files = server.folder.count()
    if json:
        output.print_json({"address": server.address, "folder": str(folder), "files": files})
        return
    where = f"{output.path(folder.absolute())}: {output.count(files, 'file')} named .run"
    output.out.print(output.grid([("serving", server.address), ("folder", where), ("", "Ctrl-C ends the server")]))
