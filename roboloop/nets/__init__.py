"""Networks as plain layers over one flat parameter vector, with their backward passes written out."""
