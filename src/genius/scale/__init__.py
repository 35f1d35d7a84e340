"""Beyond one machine: encoders on Ray (`bulk`) and object stores (`objects`).

Imported by the command line alone, behind an option or an address: nothing here is needed, or loaded, without it.
"""
