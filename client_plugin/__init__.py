"""The client in users' Python processes: import hook, adapters, waiting line.

Standard library only, Python 3.8 and later, nothing of `nodemgr`. Loaded by sitecustomize.py at the
first import of a framework, under a name of its own. Asking, waiting, holding and beating are done
by libnodemgr.so (csrc/client/client.h); here is what only Python can do:

- loading      wraps the loader of a framework
- hook         what happens before and after a framework's code runs
- adapters/    which calls of each framework use CUDA first, and which only ask about it
- lease        asks and waits, so that Ctrl-C ends a wait before the driver has been called
- waiting      the line that shows the state of a wait
- environment  os.environ, the task token, what CUDA_VISIBLE_DEVICES wishes
- native       libnodemgr.so through ctypes
- magic        %gpu, for IPython; summary: a task's GPUs in one line
- prediction/  the memory and the time of a training, before it runs on a GPU
- verbs/       `nodemgr` for the users of a container, a program of its own
- faults       one line for each fault of ours, once; the user's program goes on
"""
