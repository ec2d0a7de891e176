"""From a request to trials: what is asked, the advisor's settings, a prediction for each."""
