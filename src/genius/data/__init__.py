"""Datasets: reading them, and building the ones that ship with GENIUS.

`genius.data.datasets.open_collection("mbeir:DIR")` (or `coco:`, `flickr30k:`, `pairs:`, `images:`, or a bare path)
opens any of them; `genius.data.extract.extract` turns a collection and an encoder into a `FeatureSet`
(`genius.data.features`), which is all that training and evaluation read.
"""
