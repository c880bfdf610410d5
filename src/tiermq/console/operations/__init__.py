"""The operations of the catalogue, by what they are about. Each module registers its own when it is imported."""
