"""initmem board."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Annotated

import typer

from initmem.cli.base import AsJson, StoreArgument, app, print_json, say


@app.command()
def board(
    store: StoreArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 finds a free port.")] = 8765,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Any address but loopback requires a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Visitors must present it.", show_default="made where needed"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the report live while a study runs.

    Progress, curves, crashed runs and the memory so far.
    """
    from initmem.report.board import Board
    from initmem.store.results import open_results

    served = Board(open_results(store), host=host, port=port, token=token)
    if as_json:
        print_json("board", [{"board": served.url}])
    else:
        say(f"board: {served.url} (Ctrl-C stops it)")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends like Ctrl-C
    with contextlib.suppress(KeyboardInterrupt):
        served.serve()
