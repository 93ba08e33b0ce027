"""Figures of the report, one module each: analysis tables in, charts out."""
