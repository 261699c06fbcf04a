"""The library page: lists, the labels of one model, the form for a new label, and downloads."""
