"""The documentation is read as a user reads it: its commands run as they are printed."""
