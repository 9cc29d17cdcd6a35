import cuda_driver


def getDeviceCount():
    return cuda_driver.device_count()
