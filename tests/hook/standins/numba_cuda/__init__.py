"""Where numba-cuda is installed, its own finder takes `import numba.cuda` to numba_cuda/numba/cuda:
it finds the stand-in there.
"""
