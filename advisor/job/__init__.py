"""One training job: model, layout, batch, precision, and its split over a pipeline."""
