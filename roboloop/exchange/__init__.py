"""Other people's datasets: each format in a module of its own, in terms of whole episodes."""
