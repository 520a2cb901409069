"""The stories that cross rooms, each to be read from top to bottom."""
