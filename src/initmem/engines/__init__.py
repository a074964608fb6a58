"""Engines differ only in WHERE a run is executed."""
