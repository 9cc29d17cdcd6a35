"""As Numba: much more than its CUDA target."""
