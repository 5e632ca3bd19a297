"""Tests of this folder may have more workers than the machine has cores."""

from tests.support.loading import many_cores  # noqa: F401 - a fixture, used by name
