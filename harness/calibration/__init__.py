"""Fits the calibrations of configs/calibration to measured or published times."""
