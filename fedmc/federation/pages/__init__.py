"""Read-only pages for operators, on loopback: what a server or node is doing now, as HTML and as metrics."""
