"""Claims of papers, judged by the trials of a study."""
