"""From a report to Plotly figures, one module per analyzer. Colours of text and grid come from the style sheet."""
