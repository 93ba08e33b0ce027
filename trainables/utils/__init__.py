"""Helpers that are independent of training: seeding, S3, host paths, suggestions."""
