"""The demo: a real collection that pip installed, one search of each kind, a contact sheet. No download, no hub."""
