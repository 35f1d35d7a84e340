"""Datasets: reading them, and building the ones that ship with GENIUS."""
