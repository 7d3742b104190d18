"""What fedmc's HTTP servers share: tokens, names of hosts, headers, and pages that fetch nothing from elsewhere."""
