"""Learning algorithms: nets and losses; never environments, samplers or files."""
