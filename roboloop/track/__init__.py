"""What a run leaves behind and how it is read: metrics, mirrors, progress, statistics, plots, videos."""
