"""The paper: its studies, figures, tables and published values."""
