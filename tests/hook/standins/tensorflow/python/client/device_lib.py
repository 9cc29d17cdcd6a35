import cuda_driver


def list_local_devices():
    return list(range(cuda_driver.device_count()))
