"""One training system for robot learning: from the first reset to a policy that can be trusted on the robot."""

__version__ = "0.1.0"
