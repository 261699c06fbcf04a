"""The product: pages, plots, downloads. Everything from outside is text here, escaped where it meets HTML."""
