"""The thin edges: sockets, store, NVML, processes, ledger, clock. They decide nothing."""
