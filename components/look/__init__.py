"""How every page looks: theme, style sheets, the bar at the top."""
