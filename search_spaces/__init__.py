"""What may be searched: one space per loss."""
