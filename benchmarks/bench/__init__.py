"""Peers and workloads of `initmem bench`. Scripts beside it import it as `bench`: hence relative imports."""
