"""From a traced rule to the kernels that run it."""
