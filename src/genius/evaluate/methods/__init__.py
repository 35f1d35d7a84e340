"""Retrieval methods under one interface, so that one run compares them on the same queries and pools."""
