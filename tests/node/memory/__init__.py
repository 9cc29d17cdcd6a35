"""Named memory and ranges of memory on a real node."""
