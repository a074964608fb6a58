"""Presentation: plot data (pure) -> drawings, tables, report."""
