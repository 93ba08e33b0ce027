"""Configuration of a study: the schema and loader of study files, and the planner."""
