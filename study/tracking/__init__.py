"""MLflow as the study's home: writing it and reading it back."""
