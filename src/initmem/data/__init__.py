"""Datasets: arrays with one fixed split into training, validation and test examples."""
