"""Where numba-cuda is installed, a finder of its own takes `import numba.cuda` to numba_cuda/numba/cuda: it finds the stand-in there too."""
