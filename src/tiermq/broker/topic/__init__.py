"""Topics of a broker, and their registration at name servers."""
