"""What operators ask and change."""
