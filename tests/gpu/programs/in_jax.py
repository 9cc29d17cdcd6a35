"""The same through JAX."""

import json
import sys

import jax
import jax.numpy as jnp

print(
    json.dumps({"devices": [d.platform for d in jax.devices()], "sum": float(jnp.ones(8).sum())}),
    flush=True,
)
sys.stdin.readline()
