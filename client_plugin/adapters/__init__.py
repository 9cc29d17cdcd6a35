"""One adapter per framework: its first calls of CUDA (gates) and its questions about CUDA.

An adapter offers
    DEFAULTS           variables that the framework is given unless the user has set them
    FIRST_USE_UNSEEN   whether only the shim can see its first use of CUDA (without the shim it
                       acquires at load)
    USES_CUDA          absent: True. False: a shell, whose load needs no library and no task token
    prepare()          absent: nothing. Called when the framework's import begins, also again
    adapt(module)      wraps its calls with hook.gate and hook.question; called when the framework
                       is loaded, again after a reload
"""
