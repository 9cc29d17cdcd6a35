"""The same story on a real GPU, with the CUDA build of PyTorch.

Run by tests/gpu/run; skipped where there is no GPU.
"""
