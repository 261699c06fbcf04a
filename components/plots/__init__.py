"""Shared parts of Plotly figures. The style sheet sets the colours of text and grid."""
