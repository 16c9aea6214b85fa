"""Reverse sweep and forward push. Knows the kinds of rules, and no operation by name."""
