"""From a trial table to a page, figures and tables."""
