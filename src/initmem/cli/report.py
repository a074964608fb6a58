"""initmem report."""

from __future__ import annotations

import shlex

from initmem.cli.base import AsJson, Output, StoreArgument, app, print_json, say


@app.command()
def report(store: StoreArgument, output: Output = None, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about a store.

    It opens offline.
    """
    from initmem.report.page import write_report
    from initmem.store.results import open_results

    beside = store / "report.html" if store.is_dir() else store.with_suffix(".html")
    typed = shlex.join(["initmem", "report", str(store), *(["-o", str(output)] if output else [])])
    place = write_report(open_results(store), output or beside, command=typed)
    if as_json:
        print_json("report", [{"report": place, "bytes": place.stat().st_size}])
    else:
        say(f"report: {place}")
