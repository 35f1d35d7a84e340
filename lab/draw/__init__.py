"""The pictures of the documentation, drawn by these programs: `python -m lab.draw`. Nothing in them is anyone else's."""
