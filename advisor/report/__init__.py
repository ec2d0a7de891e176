"""What users see: pages, JSON, CSV, pictures."""
