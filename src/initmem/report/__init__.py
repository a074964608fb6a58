"""The pages people look at: what stands on them (pure), and the templates that show it.

The report writes them to a file, the board serves them while a study runs. Both go through `content` and
`page`, so that they cannot disagree.
"""
