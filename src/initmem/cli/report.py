"""initmem report."""

from __future__ import annotations

from initmem.cli.base import AsJson, Output, StoreArgument, app, print_json, say


@app.command()
def report(store: StoreArgument, output: Output = None, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about a store.

    It opens offline.
    """
    from initmem.report.report import write_report
    from initmem.store.results import open_results

    beside = store / "report.html" if store.is_dir() else store.with_suffix(".html")
    place = write_report(open_results(store), output or beside)
    if as_json:
        print_json("report", [{"report": place, "bytes": place.stat().st_size}])
    else:
        say(f"report: {place}")
