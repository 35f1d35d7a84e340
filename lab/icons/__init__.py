"""The icon benchmark: eight retrieval tasks from icon sets and dictionaries that anyone can install by name."""
