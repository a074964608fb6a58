"""Datasets: arrays with one fixed split into training, validation and test examples."""

from initmem.data.dataset import Dataset, Examples, Sizes
from initmem.data.sources import check, load, sizes

__all__ = ["Dataset", "Examples", "Sizes", "check", "load", "sizes"]
