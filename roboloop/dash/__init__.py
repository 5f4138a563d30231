"""The local page that follows runs: a server that reads run directories, and a page without a build step."""
