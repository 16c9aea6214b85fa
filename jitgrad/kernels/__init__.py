"""Compiled loops: source text, vector math, compile policy and the disk cache. The only package that imports Numba."""
