"""Modules that several folders of tests share: models, artificial files and sensors, comparisons."""
