"""See nodemgr/edge/compute."""
