"""Legged robots that are described once and simulated by any of several engines."""
