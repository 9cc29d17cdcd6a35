build_info = {"is_cuda_build": True}
