"""Where runs are executed: this machine, a Ray cluster, or Slurm."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.engines.engine import Engine, Settings
from initmem.errors import ConfigError, allowed

ENGINES = ("local", "ray", "slurm")


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    settings: Settings | None = None,
    address: str | None = None,
    records_travel: bool = False,
    slurm: Sequence[str] = (),
) -> Engine:
    """An engine and what it is told; an option that it does not know is a mistake."""
    if name not in ENGINES:
        raise ConfigError(f"engine = {name!r} ({allowed(ENGINES)})")
    if name != "ray" and (address is not None or records_travel):
        raise ConfigError(f"address and records-travel with engine = {name!r} (allowed: with engine ray)")
    if name != "slurm" and slurm:
        raise ConfigError(f"slurm = {slurm[0]!r} with engine = {name!r} (allowed: with engine slurm)")
    if name == "ray":
        from initmem.engines.ray import RayEngine

        return RayEngine(workers=workers, settings=settings, address=address, records_travel=records_travel)
    if name == "slurm":
        from initmem.engines.slurm import SlurmEngine

        return SlurmEngine(workers=workers, settings=settings, options=slurm)
    from initmem.engines.local import LocalEngine

    return LocalEngine(workers=workers, settings=settings)
