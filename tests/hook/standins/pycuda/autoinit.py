import pycuda.driver as cuda

cuda.init()
