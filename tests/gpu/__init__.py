"""The story, shares and suspension on a real GPU.

Run by tests/gpu/run; skipped where there is no GPU.
"""
