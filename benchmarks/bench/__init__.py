"""Peers and workloads of `python -m benchmarks.bench`. Scripts import `bench`: hence relative imports."""
