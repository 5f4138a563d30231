"""Experience: the replay ring that trains, and the journal that keeps it."""
