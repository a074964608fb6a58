"""Datasets: arrays in, one fixed split out."""

from initmem.data.dataset import Dataset, Part, Sizes
from initmem.data.sources import load, sizes

__all__ = ["Dataset", "Part", "Sizes", "load", "sizes"]
