"""What every other package may import: types, config, schedules, random streams, errors."""
