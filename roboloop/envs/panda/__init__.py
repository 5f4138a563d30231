"""A Franka Panda rig: its conventions, a simulation of it, and drivers that all look the same from above."""
