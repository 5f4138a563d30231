"""What a researcher brings to roboloop, as a package of their own."""
