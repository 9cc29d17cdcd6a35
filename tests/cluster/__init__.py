"""A cluster of real processes: one head, several managers on simulated GPUs, and their failures."""
