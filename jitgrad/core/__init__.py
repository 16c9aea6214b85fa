"""What everything else stands on: abstract values, primitives, graphs, and the dispatch between eager and traced."""
