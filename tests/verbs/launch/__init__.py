"""The start of programs: how a command is recognised."""
