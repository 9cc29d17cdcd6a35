import cuda_driver

from numba.cuda.cudadrv.error import CudaSupportError


class Driver:
    def __init__(self):
        self.is_initialized = False
        self.initialization_error = None

    def ensure_initialized(self):
        if self.is_initialized:
            return
        self.is_initialized = True
        try:
            cuda_driver.initialise()
        except cuda_driver.DriverError as error:
            self.initialization_error = str(error)
            raise CudaSupportError("Error at driver init: " + str(error)) from None

    @property
    def is_available(self):
        self.ensure_initialized()
        return self.initialization_error is None

    def count(self):
        self.ensure_initialized()
        if self.initialization_error is not None:
            raise CudaSupportError("Error at driver init: " + self.initialization_error)
        return cuda_driver.device_count()


driver = Driver()
