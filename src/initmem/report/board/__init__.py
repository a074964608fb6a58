"""The board: the pages of the report, live while a study runs."""
