from cupy.cuda import runtime


def is_available():
    return runtime.getDeviceCount() > 0
