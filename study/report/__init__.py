"""Study reports: page, figures, tables and JSON, written from a trial table."""
