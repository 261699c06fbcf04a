"""The product: pages, plots, downloads. All external input is handled as text and escaped where it enters HTML."""
