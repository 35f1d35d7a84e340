"""The model: fusion, quantizer, generator, and `Genius` that holds them (paper 4.2 and 4.3)."""
