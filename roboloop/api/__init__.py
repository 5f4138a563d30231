"""What a script or a notebook can do: the same as the command line, with the same promises."""
