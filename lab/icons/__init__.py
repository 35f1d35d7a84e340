"""The icon benchmark (docs/icons.md): vectors of its pictures and texts. What built it is in the history, at ba75c78c."""
