import cuda_driver


class BaseSession:
    def __init__(self, target=""):
        self.devices = cuda_driver.device_count()
