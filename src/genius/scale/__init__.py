"""Beyond one machine: encoders on Ray (`bulk`).

Imported by the command line alone, behind an option: nothing here is needed, or loaded, without it.
"""
