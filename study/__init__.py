"""How trials become a study, and a study an answer."""
