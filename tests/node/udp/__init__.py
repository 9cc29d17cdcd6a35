"""A whole node whose clients come over UDP."""
