"""As numba-cuda: its own finder leads `import numba.cuda` to numba_cuda/numba/cuda.

There it finds the stand-in.
"""
