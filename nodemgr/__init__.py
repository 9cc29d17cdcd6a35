"""nodemgr: GPUs on demand for development environments."""
