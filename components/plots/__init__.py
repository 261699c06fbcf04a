"""What figures share: layout, colours, marks and axes. The page's script sets the colours of text and grid."""
