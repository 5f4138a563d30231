"""The loop, its schedules, evaluation, checkpoints and the run directory."""
