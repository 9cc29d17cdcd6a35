"""The eager context: devices are listed once, logical ones set before it is initialised."""

from dataclasses import dataclass

import cuda_driver

from ..platform import build_info

assert build_info


@dataclass(frozen=True)
class PhysicalDevice:
    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    memory_limit: int


class Context:
    def __init__(self):
        self._physical_devices = None
        self._virtual_device_map = {}
        self._initialized = False

    def _initialize_physical_devices(self, reinitialize=False):
        if reinitialize or self._physical_devices is None:
            gpus = [
                PhysicalDevice(f"GPU:{index}", "GPU") for index in range(cuda_driver.device_count())
            ]
            self._physical_devices = [PhysicalDevice("CPU:0", "CPU"), *gpus]

    def list_physical_devices(self, device_type=None):
        self._initialize_physical_devices()
        return [
            device for device in self._physical_devices if device_type in (None, device.device_type)
        ]

    def set_logical_device_configuration(self, device, devices):
        self._virtual_device_map[device] = devices

    def ensure_initialized(self):
        self._initialize_physical_devices()
        self._initialized = True


_context = Context()


def context():
    return _context
