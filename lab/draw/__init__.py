"""Pictograms of our own, and the screenshots of the documentation that are taken over them."""
