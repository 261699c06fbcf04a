"""The app's server: start, connections, the layers in front of Gradio, its routes and its log."""
