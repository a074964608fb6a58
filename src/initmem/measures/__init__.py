"""Measures: pure functions of records. They never see a path."""
