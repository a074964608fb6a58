"""Datasets: arrays in, one fixed split out."""

from initmem.data.dataset import Dataset, Part, Sizes
from initmem.data.sources import check, load, sizes

__all__ = ["Dataset", "Part", "Sizes", "check", "load", "sizes"]
