"""One way to read results, whether they are in a store or in an archive, and the progress of its studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from initmem.recipe import AnyRecipe
from initmem.record import RunRecord, crash_causes
from initmem.store.archive import Archive
from initmem.store.store import Store
from initmem.study import Study, recipes_of

Results: TypeAlias = Store | Archive  # reports, figures and tables read either


def open_results(path: str | Path) -> Results:
    """Open a store, or an archive of one."""
    return Archive(path) if Path(path).is_file() else Store(path)


class Collection(NamedTuple):
    """Records, and the studies that requested them as far as they are known."""

    records: list[RunRecord]
    studies: list[Study]


Source: TypeAlias = str | Path | Results | Collection | Iterable[str | Path | Results | RunRecord]


def collected(source: Source) -> Collection:
    """What several stores, archives, paths of these, or plain records hold; a run that several hold, once."""
    if isinstance(source, Collection):
        return source
    parts = [source] if isinstance(source, str | Path | Results) else source
    records: dict[str, RunRecord] = {}
    studies: list[Study] = []
    for part in parts:
        if isinstance(part, RunRecord):
            records[part.id] = part
        else:
            results = open_results(part) if isinstance(part, str | Path) else part
            records |= {record.id: record for record in results.records()}
            studies += results.studies()
    return Collection(list(records.values()), studies)


@dataclass(frozen=True, slots=True)
class Survey:
    """Records, studies, the runs in training, and what is wrong with each record that cannot be read."""

    records: Sequence[RunRecord]
    damaged: Sequence[str]
    studies: Sequence[Study]
    training: frozenset[str]  # ids of the runs that a living worker has claimed

    @classmethod
    def of(cls, results: Results) -> Survey:
        """Read a store. Claims come first: a run that ends meanwhile is seen twice rather than not at all."""
        training = frozenset(results.training())
        records, damaged = results.survey()
        done = {record.id for record in records}
        return cls(records, damaged, results.studies(), training - done)

    def order(self) -> list[AnyRecipe]:
        """The recipes, each once, in the order of the studies."""
        return recipes_of(self.studies)


def store_status(results: Results) -> dict[str, Any]:
    """Counts per study and recipe."""
    survey = Survey.of(results)
    return {"store": str(results.path), "studies": study_status(survey), "damaged": list(survey.damaged)}


def study_status(survey: Survey) -> list[dict[str, Any]]:
    """Counts per study and, below it, per recipe."""
    statuses = {record.id: record.status for record in survey.records}
    studies = []
    for study in survey.studies:
        rows: list[dict[str, Any]] = []
        for recipe, label in zip(study.recipes, study.labels(), strict=True):
            runs = study.runs(recipe)
            counts = Counter(statuses.get(run.id, "missing") for run in runs)
            training = sum(run.id in survey.training for run in runs)
            rows.append(
                {
                    "recipe": label,
                    "runs": len(runs),
                    "completed": counts["completed"],
                    "diverged": counts["diverged"],
                    "crashed": counts["crashed"],
                    "training": training,
                    "missing": counts["missing"],
                }
            )
        total = sum(row["runs"] for row in rows)
        requested = {run.id for run in study.all_runs()}
        causes = crash_causes(record for record in survey.records if record.id in requested)
        studies.append(
            {
                "name": study.name,
                "preset": study.preset,
                "runs": total,
                "done": total - sum(row["missing"] for row in rows),
                "recipes": rows,
                "crashes": [cause._asdict() for cause in causes],
            }
        )
    return studies
