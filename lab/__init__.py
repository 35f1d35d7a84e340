"""The laboratory: programs that train, measure and draw what the documentation shows. Not part of the installed package."""
