"""The head of a cluster as a program, on stand-in nodes."""
