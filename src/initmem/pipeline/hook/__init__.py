"""The folder that comes first on the PYTHONPATH of programs, for its `sitecustomize`."""
