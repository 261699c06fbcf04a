"""Plotly figures of reports, one module per analyzer. The style sheet sets the colours of text and grid."""
