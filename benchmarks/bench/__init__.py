"""Peers and workloads of `initmem bench`. Scripts import `bench`: hence relative imports."""
