"""As PyCUDA: the package itself has nothing to do with the driver."""
