"""One document about many runs, as HTML or Markdown, made from summaries alone."""
