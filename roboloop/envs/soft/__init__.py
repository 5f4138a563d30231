"""Rope and cloth on a table, moved by picking a point and placing it elsewhere."""
