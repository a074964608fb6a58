"""The contents of a store at one moment: read once, shown everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from initmem.recipe import AnyRecipe
from initmem.store.record import RunRecord
from initmem.store.results import Results
from initmem.study import Study, recipes_of


@dataclass(frozen=True, slots=True)
class Survey:
    """Records, studies, the runs in training, and what is wrong with each record that cannot be read."""

    records: Sequence[RunRecord]
    damaged: Sequence[str]
    studies: Sequence[Study]
    training: frozenset[str]  # ids of the runs that a living worker has claimed

    @classmethod
    def of(cls, store: Results) -> Survey:
        """Read a store. Claims come first: a run that ends meanwhile is seen twice rather than not at all."""
        training = frozenset(store.training())
        records, damaged = store.survey()
        done = {record.id for record in records}
        return cls(records, damaged, store.studies(), training - done)

    def order(self) -> list[AnyRecipe]:
        """The recipes, each once, in the order of the studies."""
        return recipes_of(self.studies)
