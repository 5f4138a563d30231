"""Many runs: sweeps, the slots they run in, and the launcher; reads run directories and starts commands."""
