"""The operation blocks: each operation is defined once, here, with its kernel and its derivative side by side."""
