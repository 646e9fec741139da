"""Prints the features of GPU 0, as the driver's API reports them: a JSON object."""

import ctypes
import json

_ATTRIBUTES = {  # cuda.h, CUdevice_attribute
    "multiprocessors": 16,
    "compute_mode": 20,  # 0: default, 2: prohibited, 3: one process
    "concurrent_kernels": 31,
    "copy_engines": 40,
    "major": 75,
    "minor": 76,
    "managed_memory": 83,
    "stream_values_of_64_bits": 122,
    "virtual_memory": 102,
    "posix_descriptors": 103,
    "memory_pools": 115,
    "ipc_events": 125,
}


def main():
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *args):
        result = getattr(cuda, name)(*args)
        if result != 0:
            raise RuntimeError("%s: error %d" % (name, result))

    call("cuInit", 0)
    number, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(number))
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGet", ctypes.byref(device), 0)
    found = {"gpus": number.value, "cuda": version.value}
    for name, code in _ATTRIBUTES.items():
        value = ctypes.c_int()
        result = cuda.cuDeviceGetAttribute(ctypes.byref(value), code, device)
        found[name] = value.value if result == 0 else "error %d" % result
    print(json.dumps(found))


main()
