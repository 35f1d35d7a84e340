"""Evaluation: metrics, the harness that runs several methods over the same pools, reports, the paper's numbers.

Reads features and models; knows nothing of serving. Needs torch and numpy; Faiss and matplotlib are used if present.
"""
