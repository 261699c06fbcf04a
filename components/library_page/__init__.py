"""The library on its page: lists, the labels of one model, the form for a new one, and files to take along."""
