"""Tests of the transforms and of the pipeline that runs them."""
