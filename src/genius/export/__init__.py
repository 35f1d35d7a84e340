"""What leaves GENIUS for other programs: its parts as ONNX files, and a collection as a folder that a browser searches alone."""
